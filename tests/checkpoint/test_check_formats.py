"""Every trainer's format is understood: SpecForge, speculators (flat and nested), the original EAGLE, real configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from check_drafts import (
    EAGLE,
    HIDDEN,
    LAYERS,
    LLAMA,
    MLA,
    QWEN_EAGLE,
    SIZES,
    TARGET,
    VOCAB,
    Config,
    Tensors,
    shapes,
    structured,
    target_tensors,
    tensors,
    write,
)

from eagletrace.check import FileCheck, check
from eagletrace.checkpoint import describe, open_checkpoint

CONFIGS = sorted((Path(__file__).parent / "draft_configs").glob("*.json"))

SPECULATORS: Config = {
    "architectures": ["Eagle3Speculator"], "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
    "draft_vocab_size": LLAMA["draft_vocab_size"], "target_hidden_size": None, "norm_before_residual": False,
    "eagle_aux_hidden_state_layer_ids": [2, 6, 9], "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "speculators_model_type": "eagle3", "speculators_version": "0.2.0",
    "speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": ["LlamaForCausalLM"]}},
    "transformer_layer_config": {**SIZES, "model_type": "llama", "num_hidden_layers": 1},
}  # fmt: skip
FLAT_SPECULATORS: Config = {
    **LLAMA, "speculators_model_type": "eagle3", "speculators_config": {"algorithm": "eagle3"},
    "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
}  # fmt: skip


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write(tmp_path / "target", TARGET, target_tensors())


def causes(result: FileCheck) -> list[str]:
    return [cause.id for cause in result.causes]


def alarms(result: FileCheck) -> set[str]:
    return {c.id for c in result.checks if c.status == "alarm"}


def speculators(values: Tensors) -> Tensors:
    """As the library saves: layers.0, a frozen copy of the target's embeddings, the verifier's head."""
    renamed = {key.replace("midlayer.", "layers.0."): array for key, array in values.items()}
    frozen = target_tensors()
    return {**renamed, "embed_tokens.weight": frozen["model.embed_tokens.weight"],
            "verifier_lm_head.weight": frozen["lm_head.weight"]}  # fmt: skip


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
def test_specforge(tmp_path: Path, target: Path, layer: str) -> None:
    draft = write(tmp_path / "draft", LLAMA, tensors(LLAMA, layer))
    described = describe(open_checkpoint(draft))
    assert (described.trainer, described.algorithm, described.aux_count) == ("specforge", "EAGLE3", 3)
    assert described.shape("layers.0.self_attn.q_proj.weight") == (HIDDEN, 2 * HIDDEN)
    assert causes(check(draft, target, "sglang==0.5.23")) == []


def test_speculators_flat_is_served(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path / "draft", FLAT_SPECULATORS, speculators(tensors(LLAMA)))
    described = describe(open_checkpoint(draft))
    assert described.trainer == "speculators"
    assert described.aux_ids[0].means_inputs
    result = check(draft, target, "sglang==0.5.23")
    assert causes(result) == [] and alarms(result) == {"aux.ids_unread", "weights.unused_keys"}


def test_speculators_flat_on_an_old_release(tmp_path: Path, target: Path) -> None:
    """The story: layers.0.* is dropped without a word up to 0.5.11."""
    draft = write(tmp_path / "draft", FLAT_SPECULATORS, speculators(tensors(LLAMA)))
    assert causes(check(draft, target, "sglang==0.5.11"))[0] == "weights.not_loaded"
    assert causes(check(draft, target, "sglang==0.5.12")) == []


def test_speculators_nested_is_described_and_refused_as_the_engine_does(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path / "draft", SPECULATORS, speculators(tensors(LLAMA)))
    described = describe(open_checkpoint(draft))
    assert (described.trainer, described.algorithm, described.hidden_size) == ("speculators", "EAGLE3", HIDDEN)
    assert described.settings["intermediate_size"] == SIZES["intermediate_size"]
    result = check(draft, target, "sglang==0.5.23")
    assert causes(result) == ["config.algorithm_mismatch"]
    assert {"config.architecture", "config.settings"} <= alarms(result)


@pytest.mark.parametrize("lost", ["target_hidden_size", "draft_vocab_size"])
def test_where_tensors_land_is_told_before_the_configuration_is_mended(lost: str, tmp_path: Path, target: Path) -> None:
    """The class asks for these before it looks at any tensor; --fix sets them."""
    config = {**SPECULATORS, "target_hidden_size": HIDDEN}
    config |= {"target_hidden_size": None} if lost == "target_hidden_size" else {}
    config = {key: value for key, value in config.items() if key != lost or value is None}
    draft = write(tmp_path / "draft", config, speculators(tensors(LLAMA)))
    assert causes(check(draft, target, "sglang==0.5.9")) == ["config.algorithm_mismatch", "weights.not_loaded"]
    assert causes(check(draft, target, "sglang==0.5.23")) == ["config.algorithm_mismatch"]


def test_speculators_nested_is_repaired(tmp_path: Path, target: Path) -> None:
    other = {**SPECULATORS, "eagle_aux_hidden_state_layer_ids": [4, 8, 10]}
    draft = write(tmp_path / "draft", other, speculators(tensors(LLAMA)))
    result = check(draft, target, "sglang==0.5.9", fix=tmp_path / "fixed")
    assert result.verdict == "fault" and result.repair is not None and result.repair.verdict == "healthy"
    config = json.loads((tmp_path / "fixed" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["hidden_size"] == HIDDEN and config["model_type"] == "llama"
    assert "target_hidden_size" not in config and "transformer_layer_config" not in config
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 7, 9]
    assert "midlayer.mlp.up_proj.weight" in open_checkpoint(tmp_path / "fixed")


@pytest.mark.parametrize(("inputs", "written"), [([4, 8, 10], [4, 8, 10]), ([2, 6, 9], [1, 5, 8])])
def test_repaired_ids_are_as_the_targets_class_reads_them(
    inputs: list[int], written: list[int], tmp_path: Path
) -> None:
    """Kimi-K2.5's takes ids as inputs of layers, but for a first one of 1, where it adds one as a Llama's does."""
    kimi = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": TARGET}
    target = write(tmp_path / "kimi", kimi, target_tensors())
    spoken = {**SPECULATORS, "eagle_aux_hidden_state_layer_ids": inputs}
    draft = write(tmp_path / "draft", spoken, speculators(tensors(LLAMA)))
    result = check(draft, target, "sglang==0.5.23", fix=tmp_path / "fixed")
    assert result.repair is not None and result.repair.verdict == "healthy"
    config = json.loads((tmp_path / "fixed" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == written


def test_speculators_norm_before_residual_is_not_what_sglang_does(tmp_path: Path, target: Path) -> None:
    config = {**FLAT_SPECULATORS, "norm_before_residual": True}
    draft = write(tmp_path / "draft", config, speculators(tensors(LLAMA)))
    assert causes(check(draft, target, "0.5.23")) == ["recurrence.hidden"]


@pytest.mark.parametrize("config", [EAGLE, QWEN_EAGLE], ids=["llama", "qwen2"])
def test_original_eagle(tmp_path: Path, target: Path, config: Config) -> None:
    draft = write(tmp_path / "draft", config, tensors(config, "layers.0"))
    described = describe(open_checkpoint(draft))
    assert (described.algorithm, described.fc_in) == ("EAGLE", 2 * HIDDEN)
    assert causes(check(draft, target, "0.5.23")) == []


def test_original_eagle_under_its_target_s_architecture(tmp_path: Path, target: Path) -> None:
    """As published: architectures names LlamaForCausalLM, which SGLang serves as a plain model."""
    config = {**EAGLE, "architectures": ["LlamaForCausalLM"]}
    draft = write(tmp_path / "draft", config, tensors(EAGLE, "layers.0"))
    result = check(draft, target, "0.5.23", fix=tmp_path / "fixed")
    assert causes(result) == ["config.algorithm_mismatch"]
    assert result.repair is not None and result.repair.verdict == "healthy"


def test_original_eagle_without_the_bias_of_fc(tmp_path: Path, target: Path) -> None:
    values = {key: array for key, array in tensors(EAGLE, "layers.0").items() if key != "fc.bias"}
    draft = write(tmp_path / "draft", EAGLE, values)
    result = check(draft, target, "0.5.23")
    assert causes(result) == []  # it may have been trained without one, and small random values may cost nothing
    assert {c.id for c in result.checks if c.status == "alarm"} == {"weights.neutral"}


def test_original_eagle3_is_told_by_its_tensors(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"]}
    draft = write(tmp_path / "draft", config, tensors(LLAMA))
    assert describe(open_checkpoint(draft)).algorithm == "EAGLE3"
    assert causes(check(draft, engine="0.5.23"))[0] == "config.algorithm_mismatch"


def test_mla_drafts(tmp_path: Path) -> None:
    kimi = {**TARGET, "architectures": ["KimiK25ForConditionalGeneration"], "text_config": TARGET}
    target = write(tmp_path / "target", kimi, target_tensors())
    draft = write(tmp_path / "draft", MLA, tensors(MLA, "layers.0"))
    described = describe(open_checkpoint(draft))
    assert described.attention == "mla" and described.rope.type == "yarn"
    assert causes(check(draft, target, "0.5.23")) == []
    old = check(draft, target, "0.5.9")
    assert set(causes(old)) == {"config.algorithm_mismatch", "aux.not_captured"}
    assert {"config.architecture", "aux.target_class"} <= alarms(old)


def test_nextn_heads_of_a_class_without_rules_are_left_alone(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["GlmMoeDsaForCausalLMNextN"], "num_hidden_layers": 61}
    draft = write(tmp_path / "draft", config, {"model.layers.61.eh_proj.weight": np.eye(4, 8, dtype=np.float16)})
    result = check(draft, engine="0.5.23")
    assert describe(open_checkpoint(draft)).algorithm == "NEXTN"
    assert result.verdict == "healthy"
    assert {c.id for c in result.checks if c.status == "unknown"} >= {"weights.not_loaded", "weights.missing"}


SHRINK = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 512, "draft_vocab_size": 384, "head_dim": 16,
          "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


def shrunk(config: Config) -> Config:
    """A real configuration with smaller sizes; what it does not name stays away."""
    return {key: SHRINK.get(key, value) for key, value in config.items()}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f.stem)
def test_real_configurations_pass_on_a_release_that_knows_their_flags(tmp_path: Path, file: Path) -> None:
    config: Config = shrunk(json.loads(file.read_text()))
    depth = 62 if "deepseek" in file.stem else 24
    sizes: Config = {**TARGET, **{k: config[k] for k in ("hidden_size", "vocab_size", "max_position_embeddings")},
                     "num_hidden_layers": depth, "rope_theta": config.get("rope_theta", 10000.0),
                     "rope_scaling": config.get("rope_scaling")}  # fmt: skip
    target = write(tmp_path / "target", sizes, target_tensors(config["vocab_size"], config["hidden_size"]))
    values = random_tensors(config)
    draft = write(tmp_path / "draft", config, values)
    described = describe(open_checkpoint(draft))
    assert described.algorithm == "EAGLE3" and described.aux_count == 3
    result = check(draft, target, "0.5.23")
    assert causes(result) == [], [c.reason for c in result.checks if c.status == "alarm"]
    assert not alarms(result)
    old = causes(check(draft, target, "0.5.9"))
    assert old == (["fc.norm_mismatch", "recurrence.hidden"] if config.get("fc_norm") else [])


def random_tensors(config: Config) -> Tensors:
    """Random tensors of a configuration's shapes, with a map."""
    random = np.random.default_rng(0)
    values: dict[str, Any] = {
        key: (random.standard_normal(shape) * 0.1 + ("norm" in key)).astype(ml_dtypes.bfloat16)
        for key, shape in shapes(config).items()
        if key not in ("d2t", "t2d")
    }
    values["lm_head.weight"] = structured(values["lm_head.weight"].shape, 5)
    kept = np.sort(random.permutation(VOCAB)[: config["draft_vocab_size"]])
    return {**values, "d2t": kept - np.arange(len(kept)), "t2d": np.isin(np.arange(VOCAB), kept)}


def test_the_configurations_of_the_issue_are_there() -> None:
    assert len(CONFIGS) == 6 and LAYERS == 12
