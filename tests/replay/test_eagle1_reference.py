"""EAGLE-1 drafts: the reference against the lab's trainer, and what the search finds of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor

from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.pair.evaluate import load_draft, load_target
from eagletrace.replay.changes.edits import FinalNorm
from eagletrace.replay.changes.intended import intended
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording
from eagletrace.replay.reference import Reference
from eagletrace.replay.result import REPRODUCES, ReplayError
from eagletrace.replay.search import Found, search
from tests.replay import offline

HIDDEN, LAYERS, VOCAB = 128, 12, 512
BYTES = 259  # ids of special tokens and bytes
SERVED = {"aux.layers_captured": None, "hot_token_id": None}


@cache
def final_norm() -> FinalNorm:
    """The target's own, as transformers has it."""
    norm = load_target(shipped_pair() / "target").model.norm
    return FinalNorm(norm.weight, norm.variance_epsilon)


def material(variant: str = "eagle1", token_map: Tensor | None = None) -> Material:
    served = SERVED if token_map is None else {**SERVED, "hot_token_id": {"length": len(token_map)}}
    return replace(offline.material(variant, served), target_norm=final_norm().weight, token_map=token_map)


def before_norm(count: int = 2) -> Recording:
    """Sequences whose draft was given the output of the target's last layer, as it is."""
    return offline.empty(layers=(LAYERS,), count=count)


def normed(count: int = 2) -> Recording:
    """Sequences whose draft was given what an EAGLE-1 draft is trained on."""
    recording = before_norm(count)
    sequences = [replace(s, captured=final_norm().inputs(s, s.captured)) for s in recording.sequences]
    return replace(recording, sequences=sequences)


def searched(of: Material, recording: Recording, served_by: Recipe) -> Found:
    return search(of, offline.served(recording, served_by), lambda _: None)


@pytest.mark.parametrize("variant", ["eagle1", "eagle1_no_bias"])
def test_chains_are_those_of_the_trainer(variant: str) -> None:
    """The trainer runs all anchors of a text at once, with its own attention, cache and `fc`."""
    recording = normed(2)
    recipe = intended(material(variant), recording)
    draft = load_draft(shipped_pair() / "drafts" / variant, LAYERS, target_head=recipe.head)
    offline.assert_chains_are_the_trainers(recording, recipe, draft)


def test_a_draft_served_right_has_no_cause() -> None:
    found = searched(material(), normed(), intended(material(), normed()))
    assert (found.harmful, found.harmless, found.repaired, found.served.fidelity) == ([], [], [], 1.0)
    assert found.should is not None and found.should.accept_length > 2.5


def test_states_before_the_targets_final_norm_are_told_and_what_the_norm_regains() -> None:
    found = searched(material(), before_norm(), intended(material(), before_norm()))
    assert [t.change.cause for t in found.repaired] == ["fc.norm_mismatch"]
    assert found.served.fidelity >= REPRODUCES
    assert found.should is not None and found.best is not None
    assert found.should.accept_length < 1.3 < 2.5 < found.best.accept_length


def test_a_token_map_without_frequent_tokens_is_told_and_what_the_whole_head_regains() -> None:
    rare = material(token_map=torch.arange(BYTES, VOCAB))
    recipe = intended(rare, normed())
    assert recipe.head.shape == (VOCAB - BYTES, HIDDEN)
    found = searched(rare, normed(), recipe)
    assert [t.change.cause for t in found.repaired] == ["vocab.coverage"]
    assert found.served.fidelity >= REPRODUCES
    assert found.best is not None and found.best.accept_length > 1.3 * found.served.accept_length


@pytest.mark.parametrize(("scale", "harmful"), [(0.02, False), (3.0, True)])
def test_a_bias_that_the_file_lacks_is_judged_by_what_it_costs(scale: float, harmful: bool) -> None:
    of = material("eagle1_no_bias")
    of.served["fc.bias"] = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(0)) * scale
    found = searched(of, normed(), intended(of, normed()).with_tensors({"fc.bias": of.served["fc.bias"]}))
    assert "fc.bias" not in intended(of, normed()).tensors
    assert [t.change.cause for t in (found.harmful if harmful else found.harmless)] == ["weights.missing"]
    assert found.served.fidelity == 1.0


def test_a_chain_is_a_tree_of_one_branch_and_sees_what_a_longer_sequence_would() -> None:
    """Depth 2 is the extend's last row over the same tokens, fed with the draft's own state at that row."""
    recording = normed(1)
    reference, sequence = Reference(intended(material(), recording)), recording.sequences[0]
    with torch.inference_mode():
        extended = reference.extend(sequence)
        drafted = reference.draft(sequence, extended, torch.tensor([50]), 2, 1, 2)
        tree = reference.draft(sequence, extended, torch.tensor([50]), 2, 2, 4)
        longer = replace(
            sequence, tokens=torch.cat([sequence.tokens[:52], drafted.tokens[0]]),
            captured=torch.cat([sequence.captured[:51], extended.out[50:51]]),
        )  # fmt: skip
        second = reference.logits(reference.extend(longer).out[51]).argmax()
    assert drafted.tokens[0, 1] == second
    assert tree.tokens[0, 0] == drafted.tokens[0, 0]


def test_states_of_the_wrong_width_are_refused_by_name() -> None:
    recording = offline.empty(layers=(2, 6, 9), count=1)
    with pytest.raises(ReplayError, match="fc takes 256 elements, embedding and hidden state have 512"):
        Reference(intended(material(), recording)).extend(recording.sequences[0])
