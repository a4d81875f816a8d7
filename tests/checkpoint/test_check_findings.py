"""Each check fires on what it is for, stays quiet on a right draft, and says what it would need when it cannot tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from check_drafts import (
    DRAFT_VOCAB,
    EAGLE,
    HIDDEN,
    LLAMA,
    TARGET,
    VOCAB,
    Config,
    Tensors,
    structured,
    target_tensors,
    tensors,
    write,
)

from eagletrace.check import FileCheck, check
from eagletrace.check.declared import FUNCTIONS, declared
from eagletrace.diagnose import CAUSES

EIGHT = ml_dtypes.float8_e4m3fn
IDS = "eagle_aux_hidden_state_layer_ids"
Edit = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Wrong:
    """A draft with one thing wrong: what is edited, and the cause that must come first (None: an alarm, no cause)."""

    cause: str | None
    tensors: Edit = lambda t: t
    config: Mapping[str, Any] | None = None
    target: Mapping[str, Any] | None = None
    target_tensors: Edit = lambda t: t
    base: Config | None = None
    engine: str = "0.5.23"
    tokenizers: bool = False


def without(*parts: str) -> Edit:
    return lambda t: {k: v for k, v in t.items() if not any(p in k for p in parts)}


def setting(key: str, value: Any) -> Edit:
    def edit(t: Tensors) -> Tensors:
        array: Any = value(t) if callable(value) else value
        return {**t, key: array}

    return edit


def renamed(t: Tensors) -> Tensors:
    return {key.replace("midlayer", "decoder"): array for key, array in t.items()}


def with_nan(t: Tensors) -> Any:
    array = t["fc.weight"].copy()
    array[3, 5] = np.nan
    return array


def absolute(t: Tensors) -> Any:
    return t["d2t"] + np.arange(DRAFT_VOCAB)


def duplicate(t: Tensors) -> Any:
    array = t["d2t"].copy()
    array[10] = array[9] - 1
    return array


def shuffled(t: Tensors) -> Any:
    ids = absolute(t).copy()
    ids[[3, 4]] = ids[[4, 3]]
    return ids - np.arange(DRAFT_VOCAB)


def moved(t: Tensors) -> Any:
    mask = t["t2d"].copy()
    mask[np.flatnonzero(mask)[:5]], mask[np.flatnonzero(~mask)[:5]] = False, True
    return mask


def rotated(t: Tensors) -> Tensors:
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((HIDDEN, HIDDEN)))
    key = "model.embed_tokens.weight"
    return {**t, key: (t[key].astype(np.float32) @ basis).astype(np.float32)}


COPY = target_tensors()["model.embed_tokens.weight"]
NOISY = (COPY.astype(np.float32) + 0.03 * np.random.default_rng(9).standard_normal(COPY.shape)).astype(np.float32)
RANDOM = np.random.default_rng(3).standard_normal(COPY.shape)
Q = "midlayer.self_attn.q_proj.weight"

WRONG: dict[str, Wrong] = {
    "config.architecture": Wrong("config.algorithm_mismatch", config={"architectures": ["Eagle3DraftModel"]}),
    "config.settings": Wrong("config.algorithm_mismatch", config={"num_attention_heads": None}),
    "target.hidden_size": Wrong("target.mismatch", target={"hidden_size": 2 * HIDDEN}),
    "target.vocab_size": Wrong(None, target={"vocab_size": VOCAB + 64}),
    "target.tokenizer": Wrong(None, tokenizers=True),
    "target.named": Wrong(None, config={"speculators_config": {"verifier": {"architectures": ["Qwen3ForCausalLM"]}}}),
    "target.sibling": Wrong(None, setting("embed_tokens.weight", NOISY)),
    "rope.settings": Wrong(None, target={"rope_theta": 500_000.0}),
    "length.config": Wrong(None, target={"max_position_embeddings": 4096}),
    "aux.flag": Wrong("aux.not_captured", config={"eagle_config": {"use_aux_hidden_state": False}}),
    "aux.target_class": Wrong("aux.not_captured", target={"architectures": ["KimiVLForConditionalGeneration"]}),
    "aux.states": Wrong("aux.not_captured", target={"num_hidden_layers": 6}),
    "aux.layers": Wrong("aux.layers_mismatch", config={IDS: [4, 8, 10]}),
    "aux.ids_unread": Wrong(None, config={IDS: [2, 6, 9]}),
    "aux.width": Wrong("aux.width_mismatch", setting("fc.weight", structured((HIDDEN, 3 * HIDDEN + 8), 8))),
    "fc.norm": Wrong("fc.norm_mismatch", setting("input_norm.weight", np.ones(3 * HIDDEN, dtype=np.float32))),
    "recurrence.settings": Wrong("recurrence.hidden", config={"norm_output": True}, engine="0.5.9"),
    "weights.not_loaded": Wrong("weights.not_loaded", renamed),
    "weights.layers": Wrong("weights.not_loaded", config={"num_hidden_layers": 1},
                            base={**LLAMA, "num_hidden_layers": 2}),
    "weights.missing": Wrong("weights.missing", without("v_proj")),
    "weights.shapes": Wrong("weights.not_loaded", setting(Q, np.eye(HIDDEN, dtype=np.float32))),
    "weights.neutral": Wrong(None, without("hidden_norm")),
    "weights.unused_keys": Wrong(None, setting("verifier_lm_head.weight", np.eye(HIDDEN, dtype=np.float32))),
    "weights.decoded": Wrong("weights.quantization", lambda t: {
        **t, Q: t[Q].astype(EIGHT), "midlayer.self_attn.q_proj.weight_scale": np.array([7.0], dtype=np.float32)}),
    "weights.scales": Wrong("weights.quantization", setting("fc.weight_scale", np.array([0.5], dtype=np.float32))),
    "weights.constant": Wrong("weights.missing", setting(Q, np.zeros((HIDDEN, 2 * HIDDEN), dtype=np.float16))),
    "numerics.nan_weights": Wrong("numerics.nan", setting("fc.weight", with_nan)),
    "target.embeddings": Wrong("target.mismatch", setting("embed_tokens.weight", structured((VOCAB, HIDDEN), 77))),
    "basis.embeddings": Wrong("basis.rotated", setting("embed_tokens.weight", COPY), target_tensors=rotated),
    "embed.replaced": Wrong(None, setting("embed_tokens.weight", RANDOM)),
    "lm_head.tied": Wrong("lm_head.replaced", config={"tie_word_embeddings": True}),
    "lm_head.replaced": Wrong("lm_head.replaced", without("d2t", "t2d"), config={"draft_vocab_size": None},
                              base={**LLAMA, "draft_vocab_size": VOCAB}),
    "lm_head.origin": Wrong(None, setting(
        "lm_head.weight", np.random.default_rng(4).standard_normal((DRAFT_VOCAB, HIDDEN)).astype(np.float32))),
    "vocab.d2t_encoding": Wrong("vocab.d2t_encoding", setting("d2t", absolute)),
    "vocab.d2t_missing": Wrong("vocab.d2t_missing", without("d2t")),
    "vocab.head_rows": Wrong("vocab.d2t_mismatch", config={"draft_vocab_size": DRAFT_VOCAB - 64}),
    "vocab.d2t_length": Wrong("vocab.d2t_mismatch", lambda t: {**t, "d2t": t["d2t"][:-1]}),
    "vocab.d2t_mismatch": Wrong("vocab.d2t_mismatch", setting("d2t", duplicate)),
    "vocab.d2t_order": Wrong(None, setting("d2t", shuffled)),
    "vocab.t2d": Wrong("vocab.d2t_mismatch", setting("t2d", moved)),
    "vocab.bytes": Wrong("vocab.coverage", tokenizers=True, config={"draft_vocab_size": 64}, tensors=lambda t: {
        **t, "lm_head.weight": t["lm_head.weight"][:64], "d2t": np.full(64, 300),
        "t2d": np.isin(np.arange(VOCAB), np.arange(300, 364))}),
}  # fmt: skip

NO_ALARM = {"config.algorithm": "the algorithm is a setting of the server"}


def tokenizer(shift: int = 0) -> str:
    """A tokenizer of 512 tokens, printable characters first."""
    vocabulary = {chr(33 + i) if i < 94 else f"t{i}": (i + shift) % VOCAB for i in range(VOCAB)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocabulary}})


def made(folder: Path, wrong: Wrong) -> tuple[Path, Path]:
    base = wrong.base or LLAMA
    draft = write(folder / "draft", {**base, **(wrong.config or {})}, wrong.tensors(tensors(base)))
    target = write(folder / "target", {**TARGET, **(wrong.target or {})}, wrong.target_tensors(target_tensors()))
    if wrong.tokenizers:
        (target / "tokenizer.json").write_text(tokenizer())
        (draft / "tokenizer.json").write_text(tokenizer(1))
    return draft, target


def alarms(result: FileCheck) -> set[str]:
    return {c.id for c in result.checks if c.status == "alarm"}


@pytest.mark.parametrize("id", WRONG)
def test_it_fires_and_its_cause_comes_first(tmp_path: Path, id: str) -> None:
    wrong = WRONG[id]
    draft, target = made(tmp_path, wrong)
    result = check(draft, target, wrong.engine)
    assert id in alarms(result), [c for c in result.checks if c.id == id]
    causes = [cause.id for cause in result.causes]
    assert causes[:1] == ([wrong.cause] if wrong.cause else []), [(c.id, c.reason) for c in result.checks]
    assert result.exit_code == (1 if wrong.cause else 0)


def test_every_check_has_a_case() -> None:
    assert set(WRONG) | set(NO_ALARM) == set(FUNCTIONS)


@pytest.mark.parametrize("engine", ["0.5.3", "0.5.9", "0.5.12", "0.5.17", "0.5.23"])
def test_a_right_draft_is_quiet(tmp_path: Path, engine: str) -> None:
    draft, target = made(tmp_path, Wrong(None))
    result = check(draft, target, f"sglang=={engine}")
    assert result.verdict == "healthy" and not alarms(result) and not result.notes
    statuses = {c.id: c.status for c in result.checks}
    assert "unknown" not in statuses.values(), statuses


def test_a_norm_that_later_layers_never_read_is_not_missed(tmp_path: Path) -> None:
    """The class has a norm of the embedding in every layer, and reads it in the first alone."""
    two, idle = {**LLAMA, "num_hidden_layers": 2}, "layers.1.input_layernorm.weight"
    draft, target = made(tmp_path, Wrong(None, lambda t: {k: v for k, v in t.items() if k != idle}, base=two))
    assert idle in tensors(two)
    result = check(draft, target, "0.5.23")
    assert result.verdict == "healthy" and not alarms(result)
    draft, target = made(tmp_path / "other", Wrong(None, without("layers.1.hidden_norm"), base=two))
    assert alarms(check(draft, target, "0.5.23")) == {"weights.neutral"}


def test_without_a_target_it_says_what_to_give(tmp_path: Path) -> None:
    draft, _ = made(tmp_path, Wrong(None))
    result = check(draft, engine="0.5.23")
    unknown = {c.id: c.reason for c in result.checks if c.status == "unknown"}
    assert {"aux.layers", "aux.states", "aux.target_class", "rope.settings", "target.hidden_size"} <= set(unknown)
    assert all("--target" in reason for reason in unknown.values()), unknown
    assert result.verdict == "healthy" and "--target" in result.next


def test_every_check_is_declared_with_a_cause_that_exists() -> None:
    for id, file in declared().items():
        assert file.id == id and file.file.title
        assert file.causes[0] in CAUSES


def test_an_alarm_that_names_no_cause_says_why(tmp_path: Path) -> None:
    draft, target = made(tmp_path, WRONG["weights.unused_keys"])
    reasons = [c.reason for c in check(draft, target, "0.5.23").checks if c.status == "alarm"]
    assert reasons and all("files alone show no acceptance" in reason for reason in reasons)


def test_an_effect_is_evidence_and_no_second_cause(tmp_path: Path) -> None:
    draft, target = made(tmp_path, WRONG["vocab.d2t_encoding"])
    result = check(draft, target, "0.5.23")
    assert [cause.id for cause in result.causes] == ["vocab.d2t_encoding"]
    assert {e.query for e in result.causes[0].evidence} >= {"vocab_d2t_encoding"}
    assert "vocab.d2t_mismatch" in alarms(result)


def test_releases_differ_as_their_sources_do(tmp_path: Path) -> None:
    normed = {**LLAMA, "norm_before_fc": True}
    draft, target = made(tmp_path, Wrong(None, base=normed))
    assert [c.id for c in check(draft, target, "0.5.16").causes] == ["fc.norm_mismatch"]
    assert check(draft, target, "0.5.17").verdict == "healthy"


@pytest.mark.parametrize(
    "ids, architecture, engine, captured",
    [
        ([1, 5, 8], "LlamaForCausalLM", "0.5.23", [2, 6, 9]),
        ([2, 6, 9], "DeepseekV3ForCausalLM", "0.5.23", [2, 6, 9]),
        ([1, 6, 9], "DeepseekV3ForCausalLM", "0.5.23", [2, 7, 10]),
        ([2, 6, 9], "DeepseekV3ForCausalLM", "0.5.9", [3, 7, 10]),
        ([2, 6, 12], "GptOssForCausalLM", "0.5.17", [2, 6, 12]),
        ([2, 6, 12], "GptOssForCausalLM", "0.5.16", [3, 7, 13]),
    ],
)
def test_what_an_id_means_depends_on_target_and_release(
    tmp_path: Path, ids: list[int], architecture: str, engine: str, captured: list[int]
) -> None:
    wrong = Wrong(None, config={"eagle_config": {IDS: ids}}, target={"architectures": [architecture]})
    draft, target = made(tmp_path, wrong)
    reasons = {c.id: c.reason for c in check(draft, target, engine).checks}
    assert str(captured) in reasons["aux.layers"]


def test_layer_ids_outside_the_target_are_no_states(tmp_path: Path) -> None:
    draft, target = made(tmp_path, Wrong(None, config={"eagle_config": {IDS: [1, 5, 40]}}))
    assert [c.id for c in check(draft, target, "0.5.23").causes] == ["aux.not_captured"]


def test_an_eagle_draft_s_head_is_the_target_s(tmp_path: Path) -> None:
    config: Config = EAGLE
    values = tensors(config, "layers.0")
    copied = {**values, "lm_head.weight": target_tensors()["lm_head.weight"]}
    target = write(tmp_path / "target", TARGET, target_tensors())
    statuses = {c.id: c.status for c in check(write(tmp_path / "a", config, copied), target, "0.5.23").checks}
    assert statuses["lm_head.replaced"] == "ok"
    other = {**values, "lm_head.weight": structured((VOCAB, HIDDEN), 50)}
    assert "lm_head.replaced" in alarms(check(write(tmp_path / "b", config, other), target, "0.5.23"))


def test_fp8_without_scales_is_an_alarm_and_no_cause(tmp_path: Path) -> None:
    draft, target = made(tmp_path, Wrong(None, lambda t: {**t, Q: t[Q].astype(EIGHT)}))
    result = check(draft, target, "0.5.23")
    assert result.verdict == "healthy" and "weights.decoded" in alarms(result)


def test_scales_of_one_are_an_alarm_and_no_cause(tmp_path: Path) -> None:
    draft, target = made(tmp_path, Wrong(None, setting("fc.weight_scale", np.array([1.0], dtype=np.float32))))
    result = check(draft, target, "0.5.23")
    assert result.verdict == "healthy" and alarms(result) == {"weights.scales"}


def test_a_quantised_draft_with_its_configuration_is_left_to_a_trace(tmp_path: Path) -> None:
    wrong = Wrong(None, lambda t: {**t, Q: t[Q].astype(EIGHT)}, config={"quantization_config": {"quant_method": "fp8"}})
    draft, target = made(tmp_path, wrong)
    result = check(draft, target, "0.5.23")
    assert result.verdict == "healthy"
    assert {c.id for c in result.checks if c.status == "unknown"} >= {"weights.decoded", "weights.not_loaded"}
