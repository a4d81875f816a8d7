"""The draft's distribution at each node of a verify tree, from the logits of its eager forwards.

Depth 1 of a round is drafted by the extend of the round before (or of the prefill), deeper ones by the draft
steps of the round. With top-k K > 1, SGLang numbers candidates K + (i - 1) K^2 + r K + c: step i, branch r, choice
c (spec_utils.py `select_top_k_tokens`, eagle_utils.py `organize_draft_results`, 0.5.9 and 0.5.23).
Shapes: bs requests, D nodes, S steps, Vd draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass
class Topology:
    """Where each drafted node came from: candidate numbers [bs, D - 1] and the numbers of the parents."""

    parent_list: torch.Tensor
    selected: torch.Tensor
    topk: int

    def parents(self) -> torch.Tensor:
        """Parent node of each drafted node, [bs, D - 1]; 0 is the root (eagle_utils.py `build_tree`)."""
        group = self.selected // self.topk
        if self.topk == 1 or self.parent_list.shape[1] == 0:
            depth = torch.arange(self.selected.shape[1], device=self.selected.device)
            return depth.expand_as(self.selected) if self.topk == 1 else torch.zeros_like(self.selected)
        number = self.parent_list.gather(1, group.clamp(max=self.parent_list.shape[1] - 1))
        node = torch.searchsorted(self.selected.contiguous(), number.contiguous()) + 1
        node = node.clamp(max=self.selected.shape[1])  # an index out of range would end a CUDA process
        return torch.where(group == 0, torch.zeros_like(node), node)

    def rows(self, bs: int) -> torch.Tensor:
        """Row of `cat([depth 1, step 1, step 2, ...])` that drafted each node, [bs, D - 1]."""
        k, b = self.topk, torch.arange(bs, device=self.selected.device)[:, None]
        later = self.selected - k
        step, branch = later // (k * k), (later % (k * k)) // k
        return torch.where(self.selected < k, b.expand_as(later), bs + step * bs * k + b * k + branch)

    def choices(self) -> torch.Tensor:
        """Which of the row's K best each node is, [bs, D - 1]."""
        return torch.where(self.selected < self.topk, self.selected, (self.selected - self.topk) % self.topk)


Facts = tuple[list[torch.Tensor], list[torch.Tensor]]


@lru_cache(maxsize=64)
def _row_starts(rows: int, width: int, device: torch.device) -> torch.Tensor:
    return torch.arange(rows, device=device) * width


def of_chain(logits: Sequence[torch.Tensor], expected: torch.Tensor, draft_id_or_zero: torch.Tensor) -> Facts:
    """`draft_ids`; and, in the order of `DRAFT_FLOATS`, `better` (how many tokens the draft preferred to the target's),
    `draft_probs` (of its best token), `draft_logits` (the same token's) and `draft_means` (of the logits under the
    draft's own distribution): the entropy is logit - log(prob) - mean, in nats. [S * rows] each, a step's together.

    `logits` are one or more tensors [rows of them, Vd] for each step, a step's together; `expected` [rows, S] the
    target's choice after each parent, `draft_id_or_zero` [V]. These are the fewest and cheapest operations that will
    do; the arithmetic that is left is done later.
    """
    flat = torch.cat(list(logits)) if len(logits) > 1 else logits[0]
    if flat.dtype != torch.float32:
        flat = flat.float()
    probs = torch.softmax(flat, -1)
    wanted = draft_id_or_zero.take(expected.t().clamp(0, draft_id_or_zero.shape[0] - 1)).reshape(-1)
    places = _row_starts(flat.shape[0], flat.shape[1], flat.device) + wanted
    most = flat.amax(-1)
    return [_best(flat, most)], [
        _better(flat, flat.take(places)), probs.amax(-1), most, torch.linalg.vecdot(probs, flat),
    ]  # fmt: skip


def _best(flat: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Where the greatest of each row is, the first of equals; `most` are their values.

    On a CPU, where argmax is not vectorised, the same by operations that are: a quarter of the time.
    """
    if not flat.is_cpu or bool(most.isnan().any()):
        return flat.argmax(-1)
    width = flat.shape[1]
    from_the_end = torch.eq(flat, most.unsqueeze(-1), out=torch.empty_like(flat)).mul_(_countdown(width))
    return width - from_the_end.amax(-1).to(torch.int64)


@lru_cache(maxsize=4)
def _countdown(width: int) -> torch.Tensor:
    return torch.arange(width, 0, -1, dtype=torch.float32)


def _better(logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """How many logits of each row are greater than its value; a float, which holds integers to 16 million exactly."""
    return torch.gt(logits, value.unsqueeze(-1), out=torch.empty_like(logits)).sum(-1)


def of_tree(
    first: torch.Tensor, steps: Sequence[torch.Tensor], topology: Topology, expected: torch.Tensor,
    draft_id_or_zero: torch.Tensor,
) -> Facts:  # fmt: skip
    """As `of_chain`, [bs, D - 1] each, of the drafted tokens.

    `first` is [bs, Vd], each of `steps` [bs * K, Vd], `expected` [bs, D - 1].
    """
    bs = first.shape[0]
    flat = torch.cat([first, *steps]) if steps else first
    best = flat.topk(topology.topk, dim=-1).indices
    rows = topology.rows(bs).clamp(0, flat.shape[0] - 1)
    logits = flat[rows].float()
    ids = best[rows].gather(-1, topology.choices()[..., None])
    wanted = draft_id_or_zero.take(expected.clamp(0, draft_id_or_zero.shape[0] - 1))
    probs = torch.softmax(logits, -1)
    better = _better(logits, logits.gather(-1, wanted[..., None])[..., 0])
    return [ids[..., 0]], [
        better, probs.gather(-1, ids)[..., 0], logits.gather(-1, ids)[..., 0], torch.linalg.vecdot(probs, logits),
    ]  # fmt: skip
