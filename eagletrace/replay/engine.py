"""A replay of a run: read, search, and put into words."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from eagletrace.replay import changed, recorded
from eagletrace.replay import material as materials
from eagletrace.replay.changes.repairs import ALIKE, apart
from eagletrace.replay.material import Material
from eagletrace.replay.result import REPRODUCES, Hypothesis, Potential, Replay
from eagletrace.replay.scoring import served as served_acceptance
from eagletrace.replay.search import Found, Progress, Tried, search
from eagletrace.replay.stages import agreement
from eagletrace.store import Run

STRUCTURE = 1.5
"""Largest singular value over that of noise: the lab's trained tables have 3 and more, random ones 1.0."""
SAMPLE = 2048
WIDE = 1024


def replay(run: Run, draft: Path, target: Path, *, max_positions: int = recorded.MAX_POSITIONS,
           progress: Progress = lambda _: None) -> Replay:  # fmt: skip
    """Recompute a run's drafts from its recorded states with the reference, and search for what explains them.

    `draft` and `target` are checkpoint folders. NotRecordedError when the run holds no states; ReplayError and
    CheckpointError for folders that cannot be used, or do not fit the run.
    """
    progress("reading the recorded states")
    recording = recorded.read(run, max_positions)
    progress("reading the checkpoints")
    material = materials.load(run, draft, target)
    parts = None if (when := changed.moment(run)) is None else changed.split(recording, when)
    whole, recording = recording, parts[0] if parts else recording
    with _threads(material):
        found = search(material, recording, progress)
        fell = _changed(material, found, parts)
    should, copy = found.should, copy_of(material)
    stages = agreement(found.recipe, recording) if found.recipe is not None else ()
    served = served_acceptance(recording)
    notes = [*recording.notes, *dict.fromkeys(material.differs), *material.unknown]
    if found.unrunnable:
        notes.append(f"the draft as its files say cannot be run on what was recorded: {found.unrunnable}")
    return Replay(
        fidelity=should.by_depth if should is not None else {},
        overall=should.fidelity if should is not None else 0.0,
        potential=should.potential() if should is not None else Potential(1.0, 1.0, float("inf")),
        served=served,
        explained=found.served.fidelity,
        as_served=found.served.potential(),
        best=found.best.potential() if found.best is not None else None,
        stages=stages,
        found=(*fell, *_hypotheses(found, served, copy)),
        others=tuple(_hypothesis(t, found, served) for t in (*found.harmless, *found.tried)),
        harmless=tuple(t.change.cause for t in found.harmless),
        undecided=tuple(_hypothesis(t, found, served) for t in found.undecided),
        embedding_copy=copy,
        deaf=found.deaf,
        requests=len(whole.sequences),
        tokens=whole.positions,
        rounds=whole.rounds,
        notes=tuple(notes),
    )


def _changed(
    material: Material, found: Found, parts: tuple[recorded.Recording, recorded.Recording] | None
) -> tuple[Hypothesis, ...]:
    """What a change of the weights cost, where one was recorded."""
    if parts is None or found.as_served is None:
        return ()
    fell = changed.judged(material, found.as_served, found.served.fidelity, *parts)
    return () if fell is None else (fell,)


def _hypotheses(found: Found, served: Potential, copy: str) -> tuple[Hypothesis, ...]:
    """The changes that hold. Where several are needed, the accept length is what comes back without all of them.

    A draft that uses nothing of the target's hidden states, with the embeddings of another model, is that model's.
    """
    if found.deaf and copy == "other" and not found.harmful:
        text = (
            "the embeddings in the draft's file are another model's, and with them too the draft uses nothing of the "
            "served target's hidden states"
        )
        return (Hypothesis("target.mismatch", text, found.served.fidelity, None, served.accept_length),)
    changes = [*found.harmful, *found.repaired]
    if not changes:
        return _verdict(found, served)
    best = found.best.potential() if found.best is not None else None
    groups: dict[str, list[Tried]] = {}
    for tried in sorted(changes, key=lambda t: -t.gain[0]):
        groups.setdefault(tried.change.cause, []).append(tried)
    parts = tuple(groups) if len(groups) > 1 else ()
    return tuple(
        Hypothesis(
            cause, "; ".join(t.change.text for t in group), found.served.fidelity, best.accept_length if best else None,
            served.accept_length, parts, group[0] in found.repaired, best.ci_low if best else None, group[0].gain[0],
        )
        for cause, group in groups.items()
    )  # fmt: skip


def _verdict(found: Found, served: Potential) -> tuple[Hypothesis, ...]:
    """Drafts that are what the output continues with, and were rejected all the same."""
    drafted = found.served.potential()
    if found.served.fidelity < REPRODUCES or drafted.ci_low <= served.ci_high:
        return ()
    text = "drafts that equal the target's own next tokens were rejected"
    return (
        Hypothesis("sampling.rule", text, found.served.fidelity, drafted.accept_length, served.accept_length,
                   repaired_low=drafted.ci_low),
    )  # fmt: skip


def _hypothesis(tried: Tried, found: Found, served: Potential) -> Hypothesis:
    walks = bool(tried.scored.walks)
    return Hypothesis(
        tried.change.cause, tried.change.text, found.served.fidelity if walks else tried.scored.fidelity,
        tried.scored.accept_length if walks else None, served.accept_length, gain=tried.gain[0],
    )  # fmt: skip


@contextmanager
def _threads(material: Material) -> Generator[None]:
    """One thread for small models: what more of them save is less than what they cost to wake."""
    before = torch.get_num_threads()
    if material.architecture.hidden_size < WIDE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def copy_of(material: Material) -> str:
    """What the embeddings in the draft's file are: none, same, noise or other."""
    own = material.filed.get("embed_tokens.weight")
    if own is None or own.shape != material.target_embedding.shape:
        return "none"
    if apart(own, material.target_embedding) < ALIKE:
        return "same"
    return "other" if structured(own) else "noise"


def structured(table: Tensor) -> bool:
    """Whether a table was trained: the largest singular value of noise of the same size is known (Marchenko and
    Pastur 1967), and that of a trained one is far above."""
    rows = table[:: max(len(table) // SAMPLE, 1)].float()
    largest = float(torch.linalg.matrix_norm(rows, 2))
    noise = float(rows.std()) * (math.sqrt(rows.shape[0]) + math.sqrt(rows.shape[1]))
    return largest > STRUCTURE * noise


def reproduced(replayed: Replay) -> bool:
    """Whether the reference drafts what was served, with all that was found."""
    return replayed.explained >= REPRODUCES
