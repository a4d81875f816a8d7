"""Configurations of any content and tensors of any shape: an answer or a message, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from check_drafts import LLAMA, MLA, TARGET, target_tensors, tensors, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagletrace.check import check
from eagletrace.checkpoint.write import write_safetensors
from eagletrace.errors import EagletraceError

KEYS = [
    *LLAMA, *MLA, "eagle_config", "rope_scaling", "rope_parameters", "eagle_aux_hidden_state_layer_ids", "fc_norm",
    "bias",
    "num_aux_hidden_states", "target_hidden_size", "norm_before_fc", "norm_output", "transformer_layer_config",
    "text_config", "speculators_config", "speculators_model_type", "quantization_config", "use_aux_norm",
]  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-3, 600) | st.floats(allow_nan=False) | st.text(max_size=8)
NESTED_KEYS = st.sampled_from(
    [*KEYS, "layer_ids", "use_aux_hidden_state", "verifier", "architectures", "factor", "type"]
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NESTED_KEYS, inner, max_size=4),
    max_leaves=8,
)
CONFIGS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5)
NAMES = st.sampled_from(
    [*tensors(LLAMA), *tensors(MLA), "embed_tokens.weight", "lm_head.weight_scale", "input_norm.weight"]
)
SHAPES = st.lists(st.integers(0, 5), max_size=3)
TYPES = st.sampled_from([np.float32, np.float16, np.int64, np.bool_, np.uint8])
TENSORS = st.dictionaries(NAMES, st.tuples(SHAPES, TYPES), max_size=4)
ENGINES = st.sampled_from(["0.5.3", "0.5.9", "0.5.13", "0.5.23"])
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def answered(draft: Path, target: Path, engine: str) -> None:
    try:
        result = check(draft, target, engine)
    except EagletraceError as error:
        assert str(error)
    else:
        assert result.verdict in ("fault", "healthy")
        json.dumps(result.to_json()["checks"])


def folders(tmp_path: Path) -> tuple[Path, Path]:
    if not (tmp_path / "draft").exists():
        write(tmp_path / "draft", LLAMA, tensors(LLAMA))
        write(tmp_path / "target", TARGET, target_tensors())
    return tmp_path / "draft", tmp_path / "target"


@FUZZ
@given(changes=CONFIGS, of_target=CONFIGS, engine=ENGINES)
def test_any_configuration(tmp_path: Path, changes: dict[str, Any], of_target: dict[str, Any], engine: str) -> None:
    draft, target = folders(tmp_path)
    (draft / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    (target / "config.json").write_text(json.dumps({**TARGET, **of_target}))
    answered(draft, target, engine)


@FUZZ
@given(changed=TENSORS, config=st.sampled_from([LLAMA, MLA]), engine=ENGINES)
def test_any_tensors(tmp_path: Path, changed: dict[str, Any], config: dict[str, Any], engine: str) -> None:
    draft, target = folders(tmp_path)
    values: dict[str, Any] = dict(tensors(config))
    values |= {key: np.ones(shape, dtype=dtype) for key, (shape, dtype) in changed.items()}
    (draft / "config.json").write_text(json.dumps(config))
    (draft / "model.safetensors").unlink(missing_ok=True)
    write_safetensors(draft / "model.safetensors", values)
    answered(draft, target, engine)
    (draft / "model.safetensors").unlink()
    write_safetensors(draft / "model.safetensors", tensors(LLAMA))
