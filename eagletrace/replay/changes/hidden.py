"""What an engine may do to a draft without leaving a fact: tried where the reference does not draft what was served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from eagletrace.replay.changes import edits, settings
from eagletrace.replay.changes.model import Change
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe, Recurrent
from eagletrace.replay.recorded import Recording, Round, Sequence
from eagletrace.replay.reference import Reference
from eagletrace.replay.result import ReplayError
from eagletrace.replay.stages import TOLERANCE

SHIFTS = (1, -1, 2, -2, 3, -3)
STALE = 0.25  # of the states that differ, how many must be another position's
KEY_SCALES = (0.25, 1 / 3, 0.5, 2.0, 3.0, 4.0)
"""Scales at which a quantised or restored cache may come back."""
MANY = 0.9  # of the rounds past a limit, how many must draft the one constant token


def hidden(material: Material, recording: Recording, recipe: Recipe) -> list[Change]:
    """Changes that may explain served tokens; each is tried on top of what the trace shows."""
    return [
        *_recurrence(recipe),
        *_slots(recording, recipe),
        *_inputs(recording, recipe),
        *_positions(recording),
        *_cache(recording),
        *_rounds(recording),
        *_limit(material, recording),
        *settings.rotary(material, recipe, served=True),
        *settings.norms(material, recipe, served=True),
        *settings.vocabulary(material, recipe),
    ]


def _recurrence(recipe: Recipe) -> list[Change]:
    fed: dict[Recurrent, str] = {
        "normed": "depth 2 and deeper are fed the state after the final norm (or before it, where norm_output is set)",
        "repeated": "depth 2 and deeper are fed the extend's state again at every step",
        "difference": "depth 2 and deeper are fed what the draft's layer added, without the residual",
        "fused": "depth 2 and deeper are fed the fused target states again",
    }
    if recipe.architecture.final_norm is None:
        del fed["normed"]
    changes = [_recurrent(kind, text) for kind, text in fed.items()]
    if recipe.architecture.norm_before_residual:
        text = "the first layer's residual is the hidden state before its norm (norm_before_residual is not read)"
        shape = replace(recipe.architecture, norm_before_residual=False)
        changes.append(Change("recurrence.hidden", text, lambda r: replace(r, architecture=shape), "residual"))
    return changes


def _slots(recording: Recording, recipe: Recipe) -> list[Change]:
    """Without `fc`, another of the aux states than the last."""
    width, size = recording.sequences[0].captured.shape[1], recipe.architecture.hidden_size
    if recipe.apply_fc or width <= size or width % size:
        return []
    kept = tuple(e for e in recipe.edits if not isinstance(e, edits.OneSlot))
    return [
        Change("fc.bypassed", f"fc was not applied: aux state {slot} entered the draft's layer as it was",
               lambda r, slot=slot: replace(r, edits=(*kept, edits.OneSlot(slot, width // size))), "fc")
        for slot in range(width // size - 1)
    ]  # fmt: skip


def _recurrent(kind: Recurrent, text: str) -> Change:
    return Change("recurrence.hidden", text, lambda r: replace(r, recurrent=kind), "recurrence")


def _inputs(recording: Recording, recipe: Recipe) -> list[Change]:
    """What entered the draft's layer is not what its inputs give: the recorded states explain it."""
    changes: list[Change] = []
    if any(_own_tokens_differ(s) for s in recording.sequences):
        edge = all(_differ_at_chunk_ends(s) for s in recording.sequences)
        cause = "kv.prefix" if edge else "position.offset"
        where = "at the ends of prompt chunks" if edge else "in the draft's extend"
        text = f"other tokens than the sequence's own {where}"
        changes.append(Change(cause, text, lambda r: r.edited(edits.GivenTokens()), "inputs"))
    if _stale(recording, recipe):
        text = "fc ran on other states than the target left (of an earlier launch, as a captured graph's old inputs)"
        changes.append(Change("graph.stale", text, lambda r: r.edited(edits.AsRecorded()), "inputs"))
    return changes


def _stale(recording: Recording, recipe: Recipe) -> bool:
    """Whether recorded states after `fc` differ from the computed ones, and some of them are those of other positions.

    Not all can be: a graph's old input may have been a token's that was rejected, whose state is not recorded.
    """
    reference = Reference(recipe)
    differing = others = 0
    with torch.inference_mode():
        for sequence in recording.sequences:
            if sequence.fused is None:
                continue
            try:
                computed = reference.fuse(sequence, reference.inputs(sequence))
            except ReplayError:
                return False
            if computed.shape != sequence.fused.shape:
                return False
            error = (sequence.fused - computed).norm(dim=-1) / computed.norm(dim=-1).clamp(min=1e-30)
            wrong = error > TOLERANCE
            differing += int(wrong.sum())
            apart = torch.cdist(sequence.fused[wrong], computed) / computed.norm(dim=-1).clamp(min=1e-30)
            others += int((apart.amin(-1) < TOLERANCE).sum()) if bool(wrong.any()) else 0
    return differing > 0 and others >= STALE * differing


def _own_tokens_differ(sequence: Sequence) -> bool:
    return bool(_differing(sequence).any())


def _differing(sequence: Sequence) -> Tensor:
    given = sequence.given_tokens
    if given is None:
        return torch.zeros(0, dtype=torch.bool)
    return (given >= 0) & (given != sequence.tokens[1 : len(given) + 1])


def _differ_at_chunk_ends(sequence: Sequence) -> bool:
    return set(torch.nonzero(_differing(sequence)).flatten().tolist()) <= {end - 1 for end in sequence.chunk_ends}


def _positions(recording: Recording) -> list[Change]:
    """Shifts of the steps, and of the whole answer against the prompt; those that rotary positions show come first."""
    seen = Counter(
        position - (r.anchor + depth - 1)
        for s in recording.sequences for r in s.rounds
        for depth, position in zip(r.depths, r.rope_positions, strict=True) if position is not None and depth > 1
    )  # fmt: skip
    shown = [shift for shift, _ in seen.most_common(2) if shift]
    changes = [_answer(shift) for shift in shown]
    if not shown:
        changes += [_steps(shift) for shift in SHIFTS] + [_answer(shift) for shift in SHIFTS[:2]]
    return changes


def _steps(shift: int) -> Change:
    text = f"draft positions {abs(shift)} too {'high' if shift > 0 else 'low'} at depth 2 and deeper"
    return Change("position.offset", text, lambda r: replace(r, step_shift=shift), "positions")


def _answer(shift: int) -> Change:
    text = f"the draft's positions of the answer are {abs(shift)} too {'high' if shift > 0 else 'low'}"
    return Change(
        "position.offset", text,
        lambda r: replace(r, step_shift=shift).edited(edits.AnswerShifted(shift)), "positions",
    )  # fmt: skip


def _cache(recording: Recording) -> list[Change]:
    changes: list[Change] = []
    parts: list[tuple[str, str]] = []
    if any(s.cached for s in recording.sequences):
        parts.append(("prefix", "the draft's KV of cached prefixes"))
    if any(len(s.chunk_ends) > 1 for s in recording.sequences):
        parts.append(("chunks", "the draft's KV of all prompt chunks but the last"))
    for part, text in parts:
        changes.append(_lost(f"{text} is zero", edits.LostCache(part, "zero")))
        changes.append(_lost(f"{text} is not seen", edits.LostCache(part, "unseen")))
        changes += [
            _lost(f"{text} has keys {scale:g} times too large", edits.LostCache(part, "scaled", scale))
            for scale in KEY_SCALES
        ]
    return changes


def _lost(text: str, edit: edits.LostCache) -> Change:
    return Change("kv.prefix", text, lambda r: r.edited(edit), "cache")


def _rounds(recording: Recording) -> list[Change]:
    """Rounds that start from the wrong state: the first after a prefill, or those of some rows of a batch."""
    changes = [
        Change("round.first", "the first round after a prefill starts from zeros",
               lambda r: r.edited(edits.FirstRoundLost()), "rounds"),
    ]  # fmt: skip
    if any(r.batch_size > 1 for s in recording.sequences for r in s.rounds):
        changes.append(
            Change("batch.row", "every request of a batch starts from the state of the last row",
                   lambda r: r.edited(_rows_of_the_last(recording, r)), "rounds")
        )  # fmt: skip
    return changes


def _rows_of_the_last(recording: Recording, recipe: Recipe) -> edits.RowOfAnother:
    """Of each launch's extend, the state of its last row, for all its other rows.

    A round drafts from the extend of its request's launch before; a request in its first round starts from its own
    prefill. Where the last row was of a request that ended there, what it would have gone on from may not be recorded.
    """
    reference = Reference(recipe)
    launches: dict[int, list[tuple[Sequence, Round]]] = {}
    out: dict[int, Tensor] = {}
    with torch.inference_mode():
        for sequence in recording.sequences:
            out[sequence.seq] = reference.extend(sequence).out
            for served in sequence.rounds:
                launches.setdefault(served.number, []).append((sequence, served))
    states: dict[tuple[int, int], Tensor] = {}
    for sequence in recording.sequences:
        for before, served in pairwise(sequence.rounds):
            if served.request_round != before.request_round + 1:
                continue
            last, at = max(launches[before.number], key=lambda pair: pair[1].row)
            goes_on = at.anchor + at.correct + 1
            if goes_on < len(out[last.seq]):
                states[sequence.seq, served.anchor] = out[last.seq][goes_on]
    return edits.RowOfAnother(states)


def _limit(material: Material, recording: Recording) -> list[Change]:
    """A position past which one constant token is drafted, whatever came before."""
    drafted = sorted(
        (r.anchor + depth - 1, token)
        for s in recording.sequences for r in s.rounds for depth, token in zip(r.depths, r.tokens, strict=True)
    )  # fmt: skip
    half = [token for _, token in drafted[len(drafted) * 3 // 4 :]]
    if not half:
        return []
    token, count = Counter(half).most_common(1)[0]
    if count < MANY * len(half):
        return []
    other = [position for position, t in drafted if t != token]
    if not other:
        return []  # everywhere, so that no limit is to blame
    limit = other[-1] + 1
    served = material.served_map()
    ids = [token] if served is None else torch.nonzero(served == token).flatten().tolist()
    if not ids:
        return []
    text = f"from position {limit} on the draft answers one constant token"
    edit = edits.ConstantPast(limit, int(ids[0]))
    return [Change("length.limit", text, lambda r: r.edited(edit), "limit")]
