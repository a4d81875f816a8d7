"""The draft's distribution at each node of a verify tree, from the logits of its eager forwards.

Depth 1 of a round is drafted by the extend of the round before (or of the prefill), deeper ones by the draft
steps of the round. With top-k K > 1, SGLang numbers candidates K + (i - 1) K^2 + r K + c: step i, branch r, choice
c (spec_utils.py `select_top_k_tokens`, eagle_utils.py `organize_draft_results`, 0.5.9 and 0.5.23).
Shapes: bs requests, D nodes, S steps, Vd draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def drafted(
    first: torch.Tensor, steps: Sequence[torch.Tensor], topology: Topology, expected: torch.Tensor,
    draft_id_of: torch.Tensor,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Facts of each drafted node, [bs, D - 1] each: `draft_ids`, `ranks` (0 unknown, -1 not in the draft
    vocabulary), `in_vocab`, `draft_logprobs`, `draft_entropies` (nats).

    `first` is [bs, Vd], each of `steps` [bs * K, Vd], `expected` [bs, D - 1] the target's choice after each parent.
    """
    bs = first.shape[0]
    flat = torch.cat([first, *steps]) if steps else first
    if topology.topk == 1:
        logits = flat.view(len(steps) + 1, bs, -1).transpose(0, 1)[:, : expected.shape[1]]
        ids = logits.argmax(dim=-1)
    else:
        best = flat.topk(topology.topk, dim=-1).indices
        rows = topology.rows(bs).clamp(0, flat.shape[0] - 1)
        logits = flat[rows]
        ids = best[rows].gather(-1, topology.choices()[..., None])[..., 0]
    logits = logits.float()
    wanted = draft_id_of[expected.clamp(0, draft_id_of.shape[0] - 1)]
    inside = (wanted >= 0) & (wanted < logits.shape[-1]) & (expected >= 0) & (expected < draft_id_of.shape[0])
    value = logits.gather(-1, torch.where(inside, wanted, 0)[..., None])
    total = logits.logsumexp(-1)
    ranks = (logits > value).sum(-1) + 1
    ranks = torch.where(inside, ranks, -1)
    return {
        "draft_ids": ids,
        "ranks": torch.where(total.isnan(), 0, ranks),
        "in_vocab": inside.to(torch.int64),
        "draft_logprobs": logits.gather(-1, ids[..., None])[..., 0] - total,
        "draft_entropies": total - (logits.softmax(-1) * logits).sum(-1),
    }


def with_root(values: torch.Tensor, root: float) -> torch.Tensor:
    """Add the root's column: [bs, D - 1] to [bs, D]."""
    return torch.cat([torch.full_like(values[:, :1], root), values], dim=1)
