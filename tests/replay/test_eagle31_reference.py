"""A draft of two decoder layers that takes four aux states, each with a norm, and is fed its normed state: the
reference against the lab's trainer, and what the search finds of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.pair.evaluate import load_draft
from eagletrace.replay.changes.intended import intended
from eagletrace.replay.material import Material
from eagletrace.replay.recorded import Recording
from eagletrace.replay.result import REPRODUCES
from eagletrace.replay.search import Found, search
from tests.replay import offline

FOUR, HIDDEN = (2, 5, 8, 10), 128
HEALTHY = 2.7
NORM, OTHER_NAME = (f"layers.1.{name}.weight" for name in ("hidden_norm", "input_layernorm"))


def material(**changes: object) -> Material:
    of = offline.material("eagle31", {"aux.layers_captured": list(FOUR)})
    of.expected["aux.layers_captured"] = list(FOUR)
    return replace(of, **changes)  # pyright: ignore[reportArgumentType]


def four(count: int = 4) -> Recording:
    return offline.empty(layers=FOUR, count=count)


def searched(of: Material, served: Material) -> Found:
    """What the search says of a draft as its files say (`of`), served as another."""
    recording = four()
    return search(of, offline.served(recording, intended(served, recording)), lambda _: None)


def test_chains_are_those_of_the_trainer() -> None:
    """The trainer runs all anchors of a text at once, with its own attention, cache, norms and `fc`."""
    recording = four(2)
    recipe = intended(material(), recording)
    draft = load_draft(shipped_pair() / "drafts" / "eagle31", 12)
    assert draft.layers == FOUR
    offline.assert_chains_are_the_trainers(recording, recipe, draft)


def test_a_draft_served_right_has_no_cause() -> None:
    found = searched(material(), material())
    assert (found.harmful, found.harmless, found.repaired, found.served.fidelity) == ([], [], [], 1.0)
    assert found.should is not None and found.should.accept_length > HEALTHY


def test_a_layer_that_was_not_built_is_told_and_what_it_regains() -> None:
    of = material(layers_built=1)
    found = searched(of, replace(of, architecture=replace(of.architecture, layers=1)))
    assert [t.change.cause for t in found.harmful] == ["weights.not_loaded"] and found.repaired == []
    assert found.served.fidelity >= REPRODUCES
    assert found.should is not None and found.should.accept_length > HEALTHY
    assert found.should.accept_length > 1.2 * found.served.accept_length


def test_a_norm_of_each_state_that_is_switched_off_is_told_and_what_it_regains() -> None:
    of = material()
    off = replace(of, architecture=replace(of.architecture, fc_norm=False))
    found = searched(off, off)
    assert [t.change.cause for t in found.repaired] == ["fc.norm_mismatch"] and found.harmful == []
    assert found.served.fidelity >= REPRODUCES
    assert found.best is not None and found.best.accept_length > HEALTHY
    assert found.best.accept_length > 1.2 * found.served.accept_length


def test_aux_states_in_descending_order_are_told() -> None:
    of = material()
    blocks = of.filed["fc.weight"].chunk(4, -1)
    norms = {f"fc_norm.{slot}.weight": of.filed[f"fc_norm.{3 - slot}.weight"] for slot in range(4)}
    swapped = {**of.filed, "fc.weight": torch.cat(blocks[::-1], -1), **norms}
    found = searched(replace(of, filed=swapped), replace(of, filed=swapped))
    assert [t.change.cause for t in found.repaired] == ["aux.layers_mismatch"]
    assert "another order" in found.repaired[0].change.text
    assert found.best is not None and found.best.accept_length > HEALTHY


def test_the_norm_of_a_later_layer_under_the_name_of_speculators_is_left_at_ones() -> None:
    """SGLang loads it into a norm that it never uses; the reference knows what it is, and that it was not served.

    The norm is made to matter: what it multiplies by, the projections after it divide by.
    """
    of, served = material(), material()
    names = {OTHER_NAME if name == NORM else name: key for name, key in of.draft.names.items()}
    of = replace(of, draft=replace(of.draft, names=names))
    scale = torch.rand(HIDDEN, generator=torch.Generator().manual_seed(0)) * 4 + 0.1
    for part in "qkv":
        name = f"layers.1.self_attn.{part}_proj.weight"
        of.filed[name] = of.served[name] = served.filed[name] = of.filed[name] / scale
    of.filed[OTHER_NAME] = of.filed.pop(NORM) * scale
    of.served[NORM] = served.filed[NORM] = torch.ones(HIDDEN)
    found = searched(of, served)
    assert [t.change.cause for t in found.harmful] == ["weights.missing"] and found.repaired == []
    assert NORM in found.harmful[0].change.text
    assert found.served.fidelity == 1.0
    assert found.should is not None and found.should.accept_length > HEALTHY and found.should.fidelity < REPRODUCES
