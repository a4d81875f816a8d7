"""A fault that is put into the served draft is found, and the accept length comes back without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagletrace.replay.changes import edits  # noqa: E402
from eagletrace.replay.changes.intended import intended  # noqa: E402
from eagletrace.replay.material import Material  # noqa: E402
from eagletrace.replay.recipe import Recipe  # noqa: E402
from eagletrace.replay.recorded import Recording, Sequence  # noqa: E402
from eagletrace.replay.reference import Reference  # noqa: E402
from eagletrace.replay.result import REPRODUCES  # noqa: E402
from eagletrace.replay.rope import Rope  # noqa: E402
from eagletrace.replay.search import Found, search  # noqa: E402
from tests.replay import offline  # noqa: E402

HEALTHY = 2.8


def searched(material: Material, recording: Recording) -> Found:
    return search(material, recording, lambda _: None)


def causes(found: Found) -> list[str]:
    return [t.change.cause for t in (*found.harmful, *found.repaired)]


def served(change: Callable[[Recipe], Recipe], shape: offline.Shape = offline.CHAIN, shift: int = 0) -> Recording:
    recording = offline.empty(shape)
    return offline.served(recording, change(intended(offline.material(), recording)), rope_shift=shift)


@pytest.mark.parametrize("shape", [offline.CHAIN, offline.TREE])
def test_a_healthy_draft_has_no_cause(shape: offline.Shape) -> None:
    found = searched(offline.material(), served(lambda r: r, shape))
    assert causes(found) == [] and found.served.fidelity == 1.0
    assert found.best is not None and found.best.accept_length > HEALTHY


RUNTIME: dict[str, tuple[str, Callable[[Recipe], Recipe], int]] = {
    "fused": ("recurrence.hidden", lambda r: replace(r, recurrent="fused"), 0),
    "without the residual": ("recurrence.hidden", lambda r: replace(r, recurrent="difference"), 0),
    "another layout": (
        "rope.mismatch",
        lambda r: replace(r, architecture=replace(r.architecture, rope=Rope(32, interleaved=True))),
        0,
    ),
    "map not read": ("vocab.d2t_missing", lambda r: replace(r, token_of=None), 0),
    "a constant": ("length.limit", lambda r: r.edited(edits.ConstantPast(60, 7)), 0),
}


@pytest.mark.parametrize("name", RUNTIME)
def test_what_the_engine_does_otherwise_is_found(name: str) -> None:
    cause, change, shift = RUNTIME[name]
    found = searched(offline.material(), served(change, shift=shift))
    assert causes(found) == [cause]
    assert found.served.fidelity >= REPRODUCES
    assert found.should is not None and found.should.accept_length > HEALTHY
    assert found.should.fidelity < REPRODUCES


MILD: dict[str, tuple[str, Callable[[Recipe], Recipe], int]] = {
    "normed": ("recurrence.hidden", lambda r: replace(r, recurrent="normed"), 0),
    "repeated": ("recurrence.hidden", lambda r: replace(r, recurrent="repeated"), 0),
    "steps shifted": ("position.offset", lambda r: replace(r, step_shift=24), 24),
    "one position too far, as 0.5.9 drafts": ("position.offset", lambda r: replace(r, step_shift=1), 1),
}


@pytest.mark.parametrize("name", MILD)
def test_what_costs_less_than_can_be_shown_is_found_and_no_cause(name: str) -> None:
    """On 480 tokens of the lab's pair these cost a few hundredths of the accept length."""
    cause, change, shift = MILD[name]
    found = searched(offline.material(), served(change, shift=shift))
    assert causes(found) == []
    assert [t.change.cause for t in found.harmless] == [cause]
    assert found.served.fidelity >= REPRODUCES


def with_sequences(recording: Recording, **fields: object) -> Recording:
    sequences = [replace(s, **fields) for s in recording.sequences]  # type: ignore[arg-type]
    return replace(recording, sequences=sequences)


@pytest.mark.parametrize(("part", "how"), [("prefix", "zero"), ("prefix", "scaled"), ("chunks", "unseen")])
def test_a_cache_that_lost_a_part_is_told(part: str, how: str) -> None:
    """What the lab's draft loses by it is little: it is found, whatever it costs."""
    recording = with_sequences(offline.empty(), cached=24 if part == "prefix" else 0, chunk_ends=(16, 32, 40))
    broken = intended(offline.material(), recording).edited(edits.LostCache(part, how, 4.0))
    found = searched(offline.material(), offline.served(recording, broken))
    assert [t.change.cause for t in (*found.harmful, *found.harmless)] == ["kv.prefix"]
    assert found.served.fidelity >= REPRODUCES


def test_a_first_round_from_zeros_is_told() -> None:
    found = searched(offline.material(), served(lambda r: r.edited(edits.FirstRoundLost())))
    assert [t.change.cause for t in (*found.harmful, *found.harmless)] == ["round.first"]
    assert found.served.fidelity >= REPRODUCES


def stale(recording: Recording, rows: int) -> Recording:
    """`fc` ran on the states of `rows` positions before, from the end of the prompt on."""
    reference = Reference(intended(offline.material(), recording))
    sequences = list[Sequence]()
    for sequence in recording.sequences:
        fused = reference.fuse(sequence, sequence.captured).clone()
        fused[sequence.prompt + rows :] = fused[sequence.prompt : -rows].clone()
        sequences.append(replace(sequence, fused=fused))
    return replace(recording, sequences=sequences)


def test_stale_inputs_are_told_by_the_recorded_states() -> None:
    recording = stale(offline.empty(), 3)
    broken = intended(offline.material(), recording).edited(edits.AsRecorded())
    found = searched(offline.material(), offline.served(recording, broken))
    assert causes(found) == ["graph.stale"]
    assert found.served.fidelity >= REPRODUCES


def test_states_that_are_nobodys_are_not_called_stale() -> None:
    """Noise after `fc` is no other position's state: what did it is not known, and nothing is named."""
    recording = stale(offline.empty(), 3)
    for sequence in recording.sequences:
        assert sequence.fused is not None
        sequence.fused += torch.randn_like(sequence.fused) * sequence.fused.std()
    broken = intended(offline.material(), recording).edited(edits.AsRecorded())
    found = searched(offline.material(), offline.served(recording, broken))
    assert causes(found) == [] and found.served.fidelity < REPRODUCES


def test_another_aux_state_without_fc_is_told() -> None:
    material = offline.material(facts={"forward.fc_applied": False})
    recording = offline.empty()
    base = replace(intended(material, recording), apply_fc=False).edited(edits.OneSlot(0, 3))
    found = searched(material, offline.served(recording, base))
    assert causes(found)[0] == "fc.bypassed" and found.served.fidelity >= REPRODUCES


def test_tokens_given_at_the_ends_of_chunks_are_told() -> None:
    recording = with_sequences(offline.empty(), chunk_ends=(16, 32, 40))
    for sequence in recording.sequences:
        given = sequence.tokens[1 : sequence.rows + 1].clone()
        given[[15, 31]] = (given[[15, 31]] + 7) % 500
        sequence.given_tokens = given
    broken = intended(offline.material(), recording).edited(edits.GivenTokens())
    found = searched(offline.material(), offline.served(recording, broken))
    assert {t.change.cause for t in (*found.harmful, *found.harmless)} <= {"kv.prefix"}


@pytest.mark.parametrize(("theta", "texts", "found"), [(2000.0, 1, "undecided"), (300.0, 4, "repaired")])
def test_what_few_tokens_cannot_show_stays_undecided(theta: float, texts: int, found: str) -> None:
    """The further theta is from the draft's own, the more acceptance it costs."""
    material, recording = offline.material(), offline.empty(count=texts)
    material.architecture = replace(material.architecture, rope=Rope(32, theta=theta))
    result = searched(material, offline.served(recording, intended(material, recording)))
    assert [t.change.cause for t in (*result.repaired, *result.undecided)] == ["rope.mismatch"]
    assert getattr(result, found)


def test_what_the_files_have_wrong_is_repaired() -> None:
    """The map of the file is zero, and the rotary theta is not the target's."""
    material = offline.material()
    material.filed["d2t"] = torch.zeros_like(material.filed["d2t"])
    wrong = replace(material.architecture, rope=Rope(32, theta=30.0))
    material.architecture = wrong
    recording = offline.empty()
    found = searched(material, offline.served(recording, intended(material, recording)))
    assert sorted(causes(found)) == ["rope.mismatch", "vocab.d2t_missing"]
    assert found.served.fidelity == 1.0
    assert found.best is not None and found.best.accept_length > HEALTHY


def test_captured_layers_other_than_those_asked_for_are_a_departure() -> None:
    material = offline.material(facts={"aux.layers_captured": [5, 9, 12]})
    recording = offline.empty(layers=(5, 9, 12))
    as_captured = replace(intended(material, recording), layers=())
    found = searched(material, offline.served(recording, as_captured))
    assert causes(found) == ["aux.layers_mismatch"]
    assert found.should is not None and found.should.accept_length > HEALTHY


@pytest.mark.parametrize(("fate", "value", "cause"), [
    ("dropped", 0.0, "weights.not_loaded"),
    ("dropped", float("nan"), "weights.not_loaded"),  # what memory held
    (None, float("nan"), "weights.missing"),
    ("loaded", float("nan"), "numerics.nan"),
    ("loaded", 0.0, "weights.quantization"),
])  # fmt: skip
def test_a_parameter_with_other_values_than_the_file_names_its_key(fate: str | None, value: float, cause: str) -> None:
    material = offline.material()
    name = "layers.0.self_attn.v_proj.weight"
    material.served[name] = torch.full_like(material.filed[name], value)
    if fate is None:
        del material.fates[material.draft.names[name]]
    else:
        material.fates[material.draft.names[name]] = fate
    recording = offline.empty()
    as_served = intended(material, recording).with_tensors({name: material.served[name]})
    found = searched(material, offline.served(recording, as_served))
    assert causes(found) == [cause] and name in found.harmful[0].change.text


def test_a_rotated_target_is_turned_back() -> None:
    material = offline.material()
    turn = torch.linalg.qr(torch.randn(128, 128, generator=torch.Generator().manual_seed(5)))[0]
    material.filed["embed_tokens.weight"] = material.target_embedding
    material.target_embedding = material.target_embedding @ turn
    recording = offline.empty()
    for sequence in recording.sequences:
        sequence.captured = (sequence.captured.view(-1, 3, 128) @ turn).reshape(-1, 384)
    found = searched(material, offline.served(recording, intended(material, recording)))
    assert causes(found) == ["basis.rotated"]
    assert found.best is not None and found.best.accept_length > HEALTHY


def test_a_draft_that_is_weak_is_left_with_no_change_that_helps() -> None:
    material = offline.material("few_steps")
    recording = offline.empty()
    found = searched(material, offline.served(recording, intended(material, recording)))
    assert causes(found) == [] and found.served.fidelity == 1.0
    assert found.best is not None and found.best.accept_length < 2.2
