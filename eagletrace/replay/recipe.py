"""How a draft is run: everything that a hypothesis may change, in one value.

A recipe is the draft's tensors, its architecture, what it is fed and how its output is read. `edits` are changes of a
stage that no field describes, such as a cache that lost its prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from eagletrace.replay.architecture import Architecture
from eagletrace.replay.recorded import Sequence

Recurrent = Literal["residual", "normed", "repeated", "fused", "difference"]
"""What depth 2 and deeper are fed: the state before the final norm, the one after it, that of the extend at every
depth, the fused aux states, or what the layers added without the residual."""

CAPTURED: tuple[int, ...] = ()
"""The aux states as the engine captured them, instead of named layers."""


class Edit:
    """A change of a stage. Every method returns its input unless overridden; shapes as in `reference.py`."""

    # ruff: noqa: ARG002 - the default of each stage uses its value alone

    def inputs(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """Hidden states given to the draft's extend, [n, width]."""
        return hidden

    def fused(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """States that enter the first decoder layer in the extend, [n, H]."""
        return hidden

    def tokens(self, sequence: Sequence, tokens: Tensor) -> Tensor:
        """Token ids that the extend embeds, [n]."""
        return tokens

    def positions(self, sequence: Sequence, positions: Tensor) -> Tensor:
        """Rotary positions of the extend, [n]."""
        return positions

    def cache(self, sequence: Sequence, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The draft's KV of one layer, [n, heads, dim] each."""
        return keys, values

    def visible(self, sequence: Sequence, anchors: Tensor, mask: Tensor) -> Tensor:
        """Which cached rows each anchor sees, [anchors, n] bool."""
        return mask

    def first_states(self, sequence: Sequence, anchors: Tensor, states: Tensor) -> Tensor:
        """States that draft depth 1 and are handed to depth 2, [anchors, H], before the final norm."""
        return states

    def first_logits(self, sequence: Sequence, anchors: Tensor, logits: Tensor) -> Tensor:
        """Logits that draft depth 1, [anchors, Vd]."""
        return logits

    def step_logits(self, sequence: Sequence, anchors: Tensor, depth: int, logits: Tensor) -> Tensor:
        """Logits that draft depth 2 and deeper, [anchors, K, Vd]."""
        return logits


@dataclass(frozen=True)
class Recipe:
    """One way to run a draft.

    `tensors` by canonical names; `embedding` [V, H], `head` [Vd, H] and `token_of` [Vd] (draft id -> target id,
    None: the same) stand apart because they may be the target's. `layers` are the target layers whose inputs are
    fused (`CAPTURED`: what the engine captured). `step_shift` is added to the rotary position of depth 2 and deeper,
    `position_shift` to all. `label_shift` s reads each drafted token as meant for s positions later. `basis`
    [target H, target H] is applied to each aux state.
    """

    architecture: Architecture
    tensors: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor
    token_of: Tensor | None
    layers: tuple[int, ...] = CAPTURED
    apply_fc: bool = True
    recurrent: Recurrent = "residual"
    step_shift: int = 0
    position_shift: int = 0
    label_shift: int = 0
    basis: Tensor | None = None
    edits: tuple[Edit, ...] = ()

    def with_tensors(self, changed: Mapping[str, Tensor]) -> Recipe:
        """The same with some tensors exchanged; `embed_tokens.weight` and `lm_head.weight` too."""
        tensors = {**self.tensors, **changed}
        return replace(
            self, tensors=tensors, embedding=changed.get("embed_tokens.weight", self.embedding),
            head=changed.get("lm_head.weight", self.head),
        )  # fmt: skip

    def without(self, name: str) -> Recipe:
        """The same without a tensor: a norm that is not applied."""
        return replace(self, tensors={k: v for k, v in self.tensors.items() if k != name})

    def edited(self, *edits: Edit) -> Recipe:
        """The same with further edits, applied after those there are."""
        return replace(self, edits=(*self.edits, *edits))


def to_target(token_of: Tensor | None, ids: Tensor, vocabulary: int) -> Tensor:
    """Draft ids as target ids; an id that the map sends out of the vocabulary becomes -1, which equals no token."""
    nothing = torch.full_like(ids, -1)
    if token_of is None:
        return torch.where(ids < vocabulary, ids, nothing)
    mapped = torch.where(ids < len(token_of), token_of[ids.clamp(max=len(token_of) - 1)], nothing)
    return torch.where((mapped >= 0) & (mapped < vocabulary), mapped, nothing)
