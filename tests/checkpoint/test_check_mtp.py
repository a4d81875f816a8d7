"""Files of layers of multi-token prediction: what fits is healthy, alone or in the target's checkpoint, and faults are
named. What the classes read is compared with the engines in `test_check_names.py`, over the cases of `mtp_cases.py`.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from check_drafts import HIDDEN, TARGET, Config, Tensors, target_tensors, write
from mtp_cases import DEEPSEEK, ERNIE, GLM, GLM_LITE, LAYERS, MIMO, MTP_CASES

from eagletrace.check import FileCheck, check
from eagletrace.checkpoint import TensorInfo, describe, open_checkpoint
from eagletrace.checkpoint.engines import predict, release
from eagletrace.checkpoint.engines.rules import RULES, SERVED_AS

ENGINE = "sglang==0.5.23"
CONFIGS = {config["architectures"][0]: config for config in (DEEPSEEK, GLM, GLM_LITE, MIMO, ERNIE)}
WEIGHTS = ("weights.not_loaded", "weights.missing", "weights.shapes", "weights.neutral", "weights.unused_keys")
TARGETS = {draft: target for target, (_, draft) in SERVED_AS.items() if target != "DeepseekV32ForCausalLM"}


def filled(name: str) -> Tensors:
    """Random values for a case's tensors, norms near one; embeddings and head are the target's."""
    random, found, target = np.random.default_rng(0), Tensors(), target_tensors()
    copies = {"embed_tokens.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}
    for key, shape in MTP_CASES[name][1].items():
        values = random.standard_normal(shape) * 0.1 + (1 if "norm" in key else 0)
        copied = next((of for end, of in copies.items() if key.endswith(end)), None)
        found[key] = values.astype(ml_dtypes.bfloat16) if copied is None else target[copied]
    return found


def served(folder: Path, name: str, config: Config | None = None, engine: str = ENGINE) -> FileCheck:
    """A case's files beside a target, checked; `config` in place of the case's."""
    config = MTP_CASES[name][0] if config is None else config
    beside = {**TARGET, "num_hidden_layers": LAYERS}
    return check(
        write(folder / "draft", config, filled(name)), write(folder / "target", beside, target_tensors()), engine
    )


def fates(name: str) -> dict[str, str]:
    """What becomes of a case's tensors."""
    config, shapes = MTP_CASES[name]
    rules = release(ENGINE).rules(config["architectures"][0])
    assert rules is not None
    infos = {key: TensorInfo(key, "bfloat16", shape, Path(), 0, 0) for key, shape in shapes.items()}
    return dict(predict(infos, config, rules).fates)


def statuses(found: FileCheck) -> dict[str, str]:
    return {check.id: check.status for check in found.checks}


@pytest.mark.parametrize("name", [
    "deepseek", "deepseek, alone", "deepseek, with the shared parts", "deepseek, experts stacked", "glm", "glm lite",
    "mimo", "ernie",
])  # fmt: skip
def test_a_whole_layer_is_healthy(name: str, tmp_path: Path) -> None:
    found = served(tmp_path, name)
    assert found.causes == ()
    assert {id: statuses(found)[id] for id in WEIGHTS} == dict.fromkeys(WEIGHTS, "ok")


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_layer_in_the_target_s_checkpoint_is_found_there(architecture: str, tmp_path: Path) -> None:
    """config.json names the target's class, and the folder is given as draft and as target."""
    name = next(name for name, (config, _) in MTP_CASES.items() if config["architectures"][0] == architecture)
    random = np.random.default_rng(1)
    layers = {
        f"model.layers.{number}.{part}.weight": random.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for number in range(LAYERS)
        for part, shape in (("input_layernorm", (HIDDEN,)), ("self_attn.q_proj", (HIDDEN, HIDDEN)))
    }
    config = {**CONFIGS[architecture], "architectures": [TARGETS[architecture]]}
    folder = write(tmp_path / "model", config, {**target_tensors(), **layers, **filled(name)})
    assert describe(open_checkpoint(folder)).algorithm == "NEXTN"
    found = check(folder, folder, ENGINE)
    assert found.causes == ()
    assert {id: statuses(found)[id] for id in WEIGHTS} == dict.fromkeys(WEIGHTS, "ok")
    assert next(c.reason for c in found.checks if c.id == "config.architecture").endswith(f" as {architecture}")


@pytest.mark.parametrize(
    ("name", "cause", "said"),
    [
        ("deepseek, an expert missing", "weights.missing", "no tensor of the file fills its part 2.up_proj"),
        ("deepseek, one of a pair", "weights.not_loaded", "q_a_proj.weight [16, 32] would land nowhere, while"),
        ("deepseek, no fusion, no norm", "weights.missing", "model.eh_proj.weight [32, 64]: no tensor"),
        ("deepseek, no prefix", "weights.not_loaded", "what begins with model.layers.3.: 30 tensors"),
        ("deepseek, alone under the model's count", "weights.not_loaded", "with num_hidden_layers 3 the class loads"),
        ("deepseek, of a dense layer", "weights.not_loaded", "is looked for as model.decoder.mlp.gate_up_proj.weight"),
        ("deepseek, narrow fusion", "weights.not_loaded", "eh_proj.weight is [32, 32]"),
        ("deepseek, two layers", "config.algorithm_mismatch", "num_nextn_predict_layers is 2"),
        ("glm, experts of another name", "weights.not_loaded", "while model.decoder.mlp.experts.w"),
        ("glm, fused in the file", "weights.not_loaded", "while model.decoder.self_attn.qkv_proj.weight is"),
        ("mimo, layer of the wrong name", "weights.not_loaded", "is looked for as model.layers.3.token_layernorm"),
        ("mimo, a norm too many", "weights.not_loaded", "is looked for as model.mtp_block.enorm.weight"),
        ("ernie, no gate", "weights.missing", "fills its part gate_proj"),
    ],
)  # fmt: skip
def test_faults_are_named(name: str, cause: str, said: str, tmp_path: Path) -> None:
    found = served(tmp_path, name)
    assert [c.id for c in found.causes][:1] == [cause]
    assert said in found.causes[0].evidence[0].text


@pytest.mark.parametrize("name", ["deepseek, alone under the model's count", "mimo, layer of the wrong name"])
def test_what_no_target_s_tensors_stand_beside_is_dropped(name: str) -> None:
    assert set(fates(name).values()) - {"loaded"} == {"dropped"}


@pytest.mark.parametrize("name", ["deepseek, in the target", "glm, in the target", "ernie, in the target"])
def test_the_target_s_tensors_are_passed_over(name: str) -> None:
    alone, found = fates(name.partition(",")[0]), fates(name)
    assert {found.pop(key) for key in alone} == {"loaded"}
    assert len(found) >= 7 and set(found.values()) == {"ignored_by_engine"}


def test_an_exported_layer_under_the_model_s_count_is_repaired(tmp_path: Path) -> None:
    served(tmp_path, "deepseek, alone under the model's count")
    repaired = check(tmp_path / "draft", tmp_path / "target", ENGINE, fix=tmp_path / "repaired").repair
    assert repaired is not None and repaired.verdict == "healthy"
    assert repaired.changed == ('config.json: "num_hidden_layers": 1 (the file is an export of the layer alone)',)


def test_nothing_is_renamed_in_a_layer(tmp_path: Path) -> None:
    """It is found by its number, and its parameters have other names than its tensors."""
    served(tmp_path, "deepseek, one of a pair")
    repaired = check(tmp_path / "draft", tmp_path / "target", ENGINE, fix=tmp_path / "repaired").repair
    assert repaired is not None and repaired.changed == ()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"index_topk": 8}, "index_topk"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"architectures": ["Qwen3NextForCausalLMMTP"]}, "not known: see config.architecture"),
        ({"architectures": ["GlmMoeDsaForCausalLM"]}, "not known: see config.architecture"),
    ],
)
def test_what_has_no_rules_is_unknown_and_says_why(settings: Config, why: str, tmp_path: Path) -> None:
    found = served(tmp_path, "deepseek", {**DEEPSEEK, **settings})
    assert found.causes == ()
    assert {id: statuses(found)[id] for id in WEIGHTS} == dict.fromkeys(WEIGHTS, "unknown")
    assert why in next(c.reason for c in found.checks if c.id == "weights.not_loaded")


def test_a_missing_count_ends_loading_before_transformers_5(tmp_path: Path) -> None:
    assert served(tmp_path / "new", "deepseek, no count").causes == ()
    old = served(tmp_path / "old", "deepseek, no count", engine="sglang==0.5.9")
    assert [c.id for c in old.causes] == ["config.algorithm_mismatch"]
    assert "num_nextn_predict_layers" in old.causes[0].evidence[0].text


def test_a_release_without_the_class_says_since_when(tmp_path: Path) -> None:
    found = served(tmp_path, "glm lite", engine="sglang==0.5.12")
    assert "0.5.13 and later have it" in found.causes[0].evidence[0].text


def test_every_target_s_class_has_rules_for_its_layer() -> None:
    assert {draft for _, draft in SERVED_AS.values()} == set(CONFIGS) <= set(RULES)
    for target, (since, draft) in SERVED_AS.items():
        rules = release(since).rules(draft)
        assert rules is not None and release(since).served_as(target) == draft
    assert release("0.5.11").served_as("DeepseekV32ForCausalLM") is None
