"""The experts of a DeepSeek-V3 layer: which ones a state goes to, and what they make of it.

From the paper (DeepSeek-V3, 2024, 2.1.2) and SGLang's `models/deepseek_v2.py` and `layers/moe/topk.py` (0.5.23): scores
are sigmoids; a bias is added for the choice alone; groups compete first, by their two best scores.

Shapes: m states, E experts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagletrace.checkpoint import config as configs
from eagletrace.replay.result import ReplayError, UnknownDraftError

PARTS = ("gate_proj", "up_proj", "down_proj")
GROUP_SCORES = 2
"""Best scores of a group that stand for it."""
NO_WEIGHT = 1e-20
"""Added to the sum of weights, so that states all of whose scores are zero go to no expert (topk.py)."""


@dataclass(frozen=True)
class Experts:
    """`count` experts in `groups`, of which `chosen` are run for a state, from `kept_groups`; `shared` are run for all.

    `inner` is the width of an expert. The weights of the chosen are divided by their sum if `normalised`, and
    multiplied by `scaling`.
    """

    count: int
    chosen: int
    inner: int
    shared: int
    scaling: float
    groups: int = 1
    kept_groups: int = 1
    normalised: bool = True

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Experts:
        """Those of a configuration; UnknownDraftError for a routing that is not DeepSeek-V3's."""
        names = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
        count, chosen, inner = (configs.integer(settings, name) or 0 for name in names)
        if not (count and chosen and inner):
            raise ReplayError(f"the draft has experts, and its config.json lacks one of {', '.join(names)}")
        scores, method = settings.get("scoring_func", "sigmoid"), settings.get("topk_method", "noaux_tc")
        if (scores, method) != ("sigmoid", "noaux_tc"):
            raise UnknownDraftError(
                f"the draft's experts are chosen by {scores} scores and {method}; the reference has DeepSeek-V3's "
                "routing only (sigmoid, noaux_tc)"
            )
        return Experts(
            count, chosen, inner, configs.integer(settings, "n_shared_experts") or 0,
            configs.number(settings, "routed_scaling_factor", 1.0), configs.integer(settings, "n_group") or 1,
            configs.integer(settings, "topk_group") or 1, bool(settings.get("norm_topk_prob", True)),
        )  # fmt: skip

    def needed(self, mlp: str, hidden: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the matrices of a block whose names begin with `mlp`."""
        found: dict[str, tuple[int, ...]] = {f"{mlp}.gate.weight": (self.count, hidden)}
        widths = {f"{mlp}.experts.{n}": self.inner for n in range(self.count)}
        widths |= {f"{mlp}.shared_experts": self.shared * self.inner} if self.shared else {}
        for block, inner in widths.items():
            sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
            found |= {f"{block}.{part}.weight": size for part, size in zip(PARTS, sizes, strict=True)}
        return found

    def apart(self, name: str, value: Tensor) -> dict[str, Tensor] | None:
        """An engine's parameter of experts as one tensor for each projection, without what the engine widened them by;
        None for another parameter."""
        block, _, kind = name.removesuffix(".weight").rpartition(".")
        if block.endswith(".shared_experts"):
            return _projections(block, value, self.shared * self.inner, fused=kind == "gate_up_proj")
        if not block.endswith(".experts") or kind not in ("w13_weight", "w2_weight") or len(value) < self.count:
            return None
        found: dict[str, Tensor] = {}
        for number, own in enumerate(value[: self.count]):
            found |= _projections(f"{block}.{number}", own, self.inner, fused=kind == "w13_weight")
        return found

    def run(self, tensors: Mapping[str, Tensor], mlp: str, states: Tensor) -> Tensor:
        """What a block makes of states [..., H]."""
        flat = states.reshape(-1, states.shape[-1])
        weights = self.weights(tensors[f"{mlp}.gate.weight"], tensors.get(f"{mlp}.gate.e_score_correction_bias"), flat)
        made = torch.zeros_like(flat)
        for number in torch.nonzero(weights.sum(0)).flatten().tolist():
            rows = torch.nonzero(weights[:, number]).flatten()
            made[rows] += weights[rows, number, None] * _block(tensors, f"{mlp}.experts.{number}", flat[rows])
        if self.shared:
            made = made + _block(tensors, f"{mlp}.shared_experts", flat)
        return made.view_as(states)

    def weights(self, gate: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
        """Weight of each expert for states [m, H], [m, E]; zero for those that are not run."""
        scores = F.linear(states, gate).sigmoid()
        choice = scores if bias is None else scores + bias
        if self.groups > self.kept_groups:
            grouped = choice.unflatten(-1, (self.groups, -1))
            best = grouped.topk(min(GROUP_SCORES, grouped.shape[-1]), -1).values.sum(-1)
            kept = torch.zeros_like(best).scatter(-1, best.topk(self.kept_groups, -1).indices, 1.0)
            choice = grouped.masked_fill(kept[..., None] == 0, -torch.inf).flatten(-2)
        chosen = choice.topk(self.chosen, -1).indices
        weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        if self.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + NO_WEIGHT)
        return weights * self.scaling


def _projections(block: str, value: Tensor, inner: int, *, fused: bool) -> dict[str, Tensor]:
    """Gate and up of a block from [2 * rows, H], or down from [H, width], cut to the inner size where what lies beyond
    is zero: in a parameter that nobody wrote it is what memory held, and is computed with."""
    if not fused:
        return {f"{block}.{PARTS[2]}.weight": value if bool(value[:, inner:].any()) else value[:, :inner]}
    halves = value.chunk(2)
    wide = any(bool(half[inner:].any()) for half in halves)
    return {f"{block}.{part}.weight": half if wide else half[:inner] for part, half in zip(PARTS, halves, strict=False)}


def _block(tensors: Mapping[str, Tensor], block: str, states: Tensor) -> Tensor:
    """A gated feed-forward block over [m, H]; where one side alone was widened, the other has zeros there."""
    gate, up, down = (tensors[f"{block}.{part}.weight"] for part in PARTS)
    inner = min(len(gate), down.shape[1])
    return F.linear((F.silu(F.linear(states, gate)) * F.linear(states, up))[:, :inner], down[:, :inner])
