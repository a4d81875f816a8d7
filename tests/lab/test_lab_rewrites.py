"""Changes that rewrite many tensors keep what they say they keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagletrace.lab.faults import CASES, case, draft_folder, materialize
from eagletrace.lab.faults.changes import NoEffectError, PairFiles
from eagletrace.lab.faults.checkpoint import Checkpoint
from eagletrace.lab.faults.rewrites import DivideByScales, OneNan, Quantize, ReverseLayerIds

torch = pytest.importorskip("torch")
IDS = "eagle_aux_hidden_state_layer_ids"


def changed(name: str, pair: Path, out: Path) -> tuple[dict[str, Any], Checkpoint]:
    """Tensors of the draft before, and the draft after."""
    entry = case(name)
    before = Checkpoint.read(draft_folder(pair, entry.variant)).tensors
    return before, Checkpoint.read(materialize(entry, pair, out).draft)


def test_int8_matrices_come_back_with_their_scales(tiny_pair: Path, tmp_path: Path) -> None:
    before, after = changed("int8-scales-unread", tiny_pair, tmp_path)
    matrices = [key for key in before if key.startswith("midlayer.") and "_proj" in key]
    assert len(matrices) == 7
    for key in matrices:
        scale = after.tensors[f"{key}_scale"]
        assert after.tensors[key].dtype == torch.int8 and scale.shape == (len(before[key]), 1)
        assert ((after.tensors[key] * scale - before[key]).abs() <= scale * 0.501).all()
    assert torch.equal(after.tensors["fc.weight"], before["fc.weight"])


@pytest.mark.parametrize(("name", "scale"), [("fc-scale-unread", 1 / 16), ("unit-scales", 1.0)])
def test_scaled_matrices_times_their_scales_are_the_old_ones(
    name: str, scale: float, tiny_pair: Path, tmp_path: Path
) -> None:
    before, after = changed(name, tiny_pair, tmp_path)
    scales = [key for key in after.tensors if key.endswith("_scale")]
    assert scales and set(after.tensors) - set(scales) == set(before)
    for key in scales:
        assert after.tensors[key].tolist() == [scale]
        assert torch.equal(after.tensors[key.removesuffix("_scale")] * scale, before[key.removesuffix("_scale")])


def test_one_value_is_nan(tiny_pair: Path, tmp_path: Path) -> None:
    _, after = changed("nan-in-o-proj", tiny_pair, tmp_path)
    counts = {key: int(tensor.isnan().sum()) for key, tensor in after.tensors.items()}
    assert {key for key, count in counts.items() if count} == {"midlayer.self_attn.o_proj.weight"}
    assert sum(counts.values()) == 1


def test_d2t_shifted_and_with_duplicates(tiny_pair: Path, tmp_path: Path) -> None:
    before, shifted = changed("d2t-shifted-by-a-row", tiny_pair, tmp_path)
    ids = torch.arange(len(before["d2t"]))
    kept = before["d2t"] + ids
    assert torch.equal((shifted.tensors["d2t"] + ids)[:-1], kept[1:])
    _, doubled = changed("d2t-duplicates", tiny_pair, tmp_path)
    tokens = doubled.tensors["d2t"] + ids
    assert torch.equal(tokens[::2], kept[::2]) and torch.equal(tokens[1::2], kept[::2])
    assert set(doubled.tensors) == set(before)


def test_slots_of_fc_follow_the_ids_or_do_not(tiny_pair: Path, tmp_path: Path) -> None:
    before, fault = changed("aux-slots-in-another-order", tiny_pair, tmp_path)
    _, control = changed("layer-ids-descending", tiny_pair, tmp_path)
    assert fault.config["eagle_config"][IDS] == control.config["eagle_config"][IDS] == [9, 7, 3]
    first, second, third = before["fc.weight"].chunk(3, -1)
    assert torch.equal(fault.tensors["fc.weight"], torch.cat([third, second, first], -1))
    assert torch.equal(control.tensors["fc.weight"], before["fc.weight"])


def test_a_folded_norm_leaves_the_logits(tiny_pair: Path, tmp_path: Path) -> None:
    before, after = changed("final-norm-folded", tiny_pair, tmp_path)
    hidden = torch.randn(3, before["norm.weight"].numel())
    wanted = (hidden * before["norm.weight"]) @ before["lm_head.weight"].T
    torch.testing.assert_close(hidden @ after.tensors["lm_head.weight"].T, wanted)
    assert "norm.weight" not in after.tensors


def test_fused_projections_hold_the_same_rows(tiny_pair: Path, tmp_path: Path) -> None:
    before, after = changed("fused-projections", tiny_pair, tmp_path)
    for fused, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
        block = fused.split(".")[0]
        rows = [before[f"midlayer.{block}.{part}_proj.weight"] for part in parts]
        assert torch.equal(after.tensors[f"midlayer.{fused}.weight"], torch.cat(rows))
        assert not [part for part in parts if f"midlayer.{block}.{part}_proj.weight" in after.tensors]


def test_configs(tiny_pair: Path, tmp_path: Path) -> None:
    _, after = changed("rope-theta-under-parameters", tiny_pair, tmp_path)
    assert "rope_theta" not in after.config
    assert after.config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    for name, flag in (("norm-before-fc-unset", "norm_before_fc"), ("norm-output-unset", "norm_output")):
        before, after = changed(name, tiny_pair, tmp_path)
        assert flag not in after.config and set(after.tensors) == set(before)
    _, after = changed("norm-before-fc", tiny_pair, tmp_path)
    assert after.config["norm_before_fc"] is True


def test_frozen_embeddings_are_those_of_the_target_before_it_is_rotated(tiny_pair: Path, tmp_path: Path) -> None:
    target = Checkpoint.read(tiny_pair / "target").tensors["model.embed_tokens.weight"]
    for name in ("frozen-embeddings", "target-rotated"):
        _, after = changed(name, tiny_pair, tmp_path)
        assert torch.equal(after.tensors["embed_tokens.weight"], target)
    rotated = Checkpoint.read(materialize(case("target-rotated"), tiny_pair, tmp_path).target).tensors
    embeddings = rotated["model.embed_tokens.weight"]
    assert not torch.allclose(embeddings, target, atol=0.1)
    torch.testing.assert_close(embeddings @ embeddings.T, target @ target.T, atol=1e-4, rtol=1e-4)


def test_a_rotated_target_says_the_same(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer

    from eagletrace.lab.pair import prompts, shipped_pair
    from eagletrace.lab.pair.evaluate import load_target
    from eagletrace.lab.pair.rollout import continue_greedily, states_of

    folder = shipped_pair() / "target"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(text).ids[:8] for text in prompts(6, seed=2)])
    plain = load_target(folder)
    rotated = load_target(materialize(case("target-rotated"), shipped_pair(), tmp_path).target)
    texts = continue_greedily(plain, ids, 64)
    assert torch.equal(continue_greedily(rotated, ids, 64), texts)
    before, after = states_of(plain, texts)[0][6], states_of(rotated, texts)[0][6]
    torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1), atol=1e-2, rtol=1e-4)
    assert torch.cosine_similarity(before, after, dim=-1).abs().mean() < 0.3


def test_what_is_sent_half_way(tiny_pair: Path, tmp_path: Path) -> None:
    target = Checkpoint.read(tiny_pair / "target").tensors
    sent = {}
    for name in ("both-updated", "target-updated", "same-weights-updated"):
        prepared = materialize(case(name), tiny_pair, tmp_path)
        assert prepared.update is not None and prepared.update.name.startswith("update-")
        assert prepared.target == tiny_pair / "target"
        sent[name] = Checkpoint.read(prepared.update).tensors
    layers = {key for key in sent["target-updated"] if key.startswith("model.layers.")}
    assert layers == set(sent["target-updated"]) and "model.layers.0.mlp.up_proj.weight" not in layers
    for key in layers:
        assert not torch.equal(sent["target-updated"][key], target[key])
        assert torch.equal(sent["same-weights-updated"][key], target[key])
    for name, variant in (("both-updated", "few_steps"), ("same-weights-updated", "default")):
        draft = Checkpoint.read(tiny_pair / "drafts" / variant).tensors
        own = set(sent[name]) - layers
        assert own == {key for key in draft if key.startswith(("midlayer.", "fc."))}
        assert all(torch.equal(sent[name][key], draft[key]) for key in own)
    assert materialize(case("healthy"), tiny_pair, tmp_path).update is None


@pytest.mark.parametrize(
    "change", [Quantize("no_such"), DivideByScales("no_such", 2.0), OneNan("no_such"), ReverseLayerIds(slots=True)]
)
def test_a_change_that_finds_nothing_is_refused(change: Quantize, tiny_pair: Path) -> None:
    pair = PairFiles(Checkpoint.read(tiny_pair / "drafts" / "default"), Checkpoint.read(tiny_pair / "target"))
    with pytest.raises(NoEffectError):
        change.apply(pair)


def test_every_change_applies_to_the_shipped_pair(tmp_path: Path) -> None:
    from eagletrace.lab.pair import shipped_pair

    digests: dict[str, str] = {}
    for entry in CASES.values():
        prepared = materialize(entry, shipped_pair(entry.pair), tmp_path)
        served = f"{prepared.draft.name} {prepared.target.name} {prepared.update and prepared.update.name}"
        served += f" {sorted(entry.flags.items())} {sorted(entry.env.items())} {entry.runtime} {entry.load}"
        served += f" {entry.engine} {entry.worker} {entry.token_map}"
        assert served not in digests, f"{entry.name} serves what {digests[served]} serves"
        digests[served] = entry.name
