"""Edits of single stages: what a broken runtime does to rows, caches and tokens."""
# An edit overrides a stage's whole signature and uses a part of it:
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eagletrace.replay.recipe import Edit
from eagletrace.replay.recorded import Sequence


@dataclass(frozen=True)
class AsRecorded(Edit):
    """The states that entered the first layer are those recorded, whatever was computed."""

    def fused(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """Recorded rows where there are any."""
        if sequence.fused is None or sequence.fused.shape != hidden.shape:
            return hidden
        return torch.where(sequence.fused.isnan(), hidden, sequence.fused)


@dataclass(frozen=True)
class GivenTokens(Edit):
    """The extend embeds the token ids that it was given, where they are not the sequence's own."""

    def tokens(self, sequence: Sequence, tokens: Tensor) -> Tensor:
        """Recorded ids where there are any."""
        if sequence.given_tokens is None:
            return tokens
        return torch.where(sequence.given_tokens >= 0, sequence.given_tokens, tokens)


@dataclass(frozen=True)
class AnswerShifted(Edit):
    """Rows after the prompt run at other rotary positions than the prompt's."""

    shift: int

    def positions(self, sequence: Sequence, positions: Tensor) -> Tensor:
        """Shift the rows of the answer."""
        return positions + self.shift * (positions >= sequence.prompt)


@dataclass(frozen=True)
class LostCache(Edit):
    """The draft's KV of a part of the prompt is gone: zero, not seen at all, or its keys stand at another scale.

    `part` is `prefix` (what the prefix cache had) or `chunks` (all chunks of the prompt but the last); `how` is `zero`,
    `unseen` or `scaled`.
    """

    part: str
    how: str
    scale: float = 1.0

    def end(self, sequence: Sequence) -> int:
        """First position that is kept."""
        if self.part == "prefix":
            return sequence.cached
        return sequence.chunk_ends[-2] if len(sequence.chunk_ends) > 1 and not sequence.cached else 0

    def cache(self, sequence: Sequence, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Zero or rescale the part."""
        lost = (torch.arange(len(keys)) < self.end(sequence))[:, None, None]
        if self.how == "zero":
            return keys * ~lost, values * ~lost
        return (torch.where(lost, keys * self.scale, keys), values) if self.how == "scaled" else (keys, values)

    def visible(self, sequence: Sequence, anchors: Tensor, mask: Tensor) -> Tensor:
        """Hide the part from later rows."""
        if self.how != "unseen":
            return mask
        end = self.end(sequence)
        hidden = (torch.arange(mask.shape[1]) < end)[None, :] & (anchors >= end)[:, None]
        return mask & ~hidden


@dataclass(frozen=True)
class FirstRoundLost(Edit):
    """The first round after the prefill starts from a state of zeros."""

    def first_states(self, sequence: Sequence, anchors: Tensor, states: Tensor) -> Tensor:
        """Zero the state behind the prompt."""
        return states * (anchors != sequence.prompt - 1)[:, None]


@dataclass(frozen=True)
class ConstantPast(Edit):
    """From a position on, the draft's best token is a constant one (a draft-vocabulary id)."""

    limit: int
    draft_id: int

    def first_logits(self, sequence: Sequence, anchors: Tensor, logits: Tensor) -> Tensor:
        """Depth 1: the row of position `anchor`."""
        return self._forced(anchors >= self.limit, logits)

    def step_logits(self, sequence: Sequence, anchors: Tensor, depth: int, logits: Tensor) -> Tensor:
        """Depth d: the row of position `anchor + d - 1`."""
        return self._forced(anchors + depth - 1 >= self.limit, logits)

    def _forced(self, past: Tensor, logits: Tensor) -> Tensor:
        forced = logits.clone()
        forced[past, ..., self.draft_id] = logits.max() + 1
        return forced


@dataclass(frozen=True)
class RowOfAnother(Edit):
    """Rounds that start from the state of another request of their batch: `states` by (request, anchor)."""

    states: Mapping[tuple[int, int], Tensor]

    def first_states(self, sequence: Sequence, anchors: Tensor, states: Tensor) -> Tensor:
        """Exchange the rows that have another's."""
        exchanged = states.clone()
        for row, anchor in enumerate(anchors.tolist()):
            other = self.states.get((sequence.seq, anchor))
            if other is not None:
                exchanged[row] = other
        return exchanged


@dataclass(frozen=True)
class Scrambled(Edit):
    """The draft gets the hidden states of other positions: what it still drafts, it drafts from tokens alone."""

    def inputs(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """Rows in a random order, the same every time."""
        order = torch.randperm(len(hidden), generator=torch.Generator().manual_seed(sequence.seq))
        return hidden[order]


@dataclass(frozen=True)
class OneSlot(Edit):
    """One of the aux states enters the draft's layer, without `fc`."""

    slot: int
    slots: int

    def inputs(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """The elements of that slot."""
        return hidden.chunk(self.slots, -1)[self.slot]


@dataclass(frozen=True)
class FinalNorm(Edit):
    """The states given to the draft pass the target's final norm (RMS, `weight` [H]) first."""

    weight: Tensor
    eps: float

    def inputs(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """Norm each row."""
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps) * self.weight
