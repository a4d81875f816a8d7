"""Recorded against recomputed values, stage by stage: where the served draft and the reference first part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording, Sequence
from eagletrace.replay.reference import Reference
from eagletrace.replay.result import ReplayError, StageAgreement

TOLERANCE = 0.02
"""Relative error of a row from which on it is said to differ: bfloat16 keeps 8 bits, and a layer adds some."""
ORDER = ("input_ids", "fc_out", "draft_out")


def agreement(recipe: Recipe, recording: Recording) -> tuple[StageAgreement, ...]:
    """Agreement of each recorded stage, in the order in which the draft runs.

    `input_ids`: token ids given to the extend (no cosine); `fc_out`: into the decoder layer; `draft_out`: the state
    that drafts depth 1 and is handed to depth 2.
    """
    found: dict[str, list[tuple[int, Tensor, Tensor]]] = {name: [] for name in ORDER}
    try:
        reference = Reference(recipe)
        with torch.inference_mode():
            for sequence in recording.sequences:
                for stage, position, recorded, computed in _pairs(reference, sequence):
                    found[stage].append((position, recorded, computed))
    except ReplayError:  # such states cannot be computed from what was recorded
        return ()
    return tuple(_agreement(stage, pairs) for stage, pairs in found.items() if pairs)


def _pairs(reference: Reference, sequence: Sequence) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """(stage, position, recorded row, computed row) of one sequence."""
    extended = reference.extend(sequence)
    if sequence.given_tokens is not None:
        for position in torch.nonzero(sequence.given_tokens >= 0).flatten().tolist():
            yield "input_ids", position, sequence.given_tokens[position], sequence.tokens[position + 1]
    if sequence.fused is not None and sequence.fused.shape == extended.fused.shape:
        for position in torch.nonzero(~sequence.fused.isnan().all(-1)).flatten().tolist():
            yield "fc_out", position, sequence.fused[position], extended.fused[position]
    for (stage, position, depth), value in sorted(sequence.stages.items()):
        if stage == "draft_out" and depth <= 1 and position < len(extended.out):
            row = extended.out[position]
            handed = reference.handed_on(extended.start[position], None, extended.fused[position], row)
            yield "draft_out", position, value.reshape(-1)[: len(row)], handed


def _agreement(stage: str, pairs: list[tuple[int, Tensor, Tensor]]) -> StageAgreement:
    recorded = torch.stack([a.double().reshape(-1) for _, a, _ in pairs])
    computed = torch.stack([b.double().reshape(-1) for _, _, b in pairs])
    if stage == "input_ids":
        bad = (recorded != computed).any(-1)
        return StageAgreement(stage, None, None, _first(pairs, bad), len(pairs))
    error = (recorded - computed).norm(dim=-1) / recorded.norm(dim=-1).clamp(min=1e-30)
    cosine = torch.nn.functional.cosine_similarity(recorded, computed, dim=-1)
    bad = ~(error <= TOLERANCE)
    return StageAgreement(stage, float(cosine.mean()), float(error.max()), _first(pairs, bad), len(pairs))


def _first(pairs: list[tuple[int, Tensor, Tensor]], bad: Tensor) -> int | None:
    at = [position for (position, *_), wrong in zip(pairs, bad.tolist(), strict=True) if wrong]
    return min(at) if at else None
