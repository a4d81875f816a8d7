"""Rotary position embedding as the drafts in use have it: frequencies of each scaling, and two layouts.

Sources: transformers `modeling_rope_utils.py` (5.19) and SGLang `layers/rotary_embedding` (0.5.23) for the scalings;
Su et al., RoFormer (2021) for the interleaved layout, GPT-NeoX for the half-split one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from eagletrace.checkpoint import config as configs


@dataclass(frozen=True)
class Rope:
    """One rotary embedding over the first `dim` elements of a head (`dim` is even).

    `kind` is `default`, `linear`, `dynamic`, `llama3`, `yarn` or `longrope`; `scaling` has the configuration's numbers.
    """

    dim: int
    theta: float = 10_000.0
    kind: str = "default"
    scaling: tuple[tuple[str, Any], ...] = ()
    interleaved: bool = False
    max_positions: int = 2048

    @staticmethod
    def of(settings: Mapping[str, Any], head_dim: int, *, interleaved: bool = False) -> Rope:
        """The rotary embedding that a draft's settings ask for; MLA rotates neighbours, whatever they say."""
        found = configs.rope(settings)
        share = configs.number(settings, "partial_rotary_factor", float(found.scaling.get("partial_rotary_factor", 1)))
        numbers = tuple(sorted((k, v) for k, v in found.scaling.items() if isinstance(v, int | float | list)))
        return Rope(
            int(head_dim * share), found.theta, found.type,
            tuple((k, tuple(cast("list[float]", v)) if isinstance(v, list) else v) for k, v in numbers),
            interleaved=interleaved or not settings.get("rope_is_neox_style", True),
            max_positions=configs.integer(settings, "max_position_embeddings") or 2048,
        )  # fmt: skip

    def rotate(self, states: Tensor, positions: Tensor) -> Tensor:
        """Rotate `states` [..., heads, head dim] to `positions` [...]; elements past `dim` pass."""
        angles = positions.to(torch.float32)[..., None] * self.frequencies()
        factor = self._attention_factor()
        cosine, sine = (angles.cos() * factor)[..., None, :], (angles.sin() * factor)[..., None, :]
        turned, rest = states[..., : self.dim], states[..., self.dim :]
        if self.interleaved:
            first, second = turned[..., ::2], turned[..., 1::2]
            pairs = torch.stack([first * cosine - second * sine, second * cosine + first * sine], -1)
            return torch.cat([pairs.flatten(-2), rest], -1)
        first, second = turned.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)

    def frequencies(self) -> Tensor:
        """Radians per position, [dim / 2] float32."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        numbers = dict(self.scaling)
        factor = float(numbers.get("factor") or 1.0)
        plain = 1.0 / self.theta**exponents
        if self.kind == "linear":
            return plain / factor
        if self.kind == "llama3":
            return _llama3(plain, factor, numbers)
        if self.kind in ("yarn", "deepseek_yarn"):
            return self._yarn(plain, factor, numbers)
        if self.kind in ("longrope", "su") and "short_factor" in numbers:
            return plain / torch.tensor(numbers["short_factor"], dtype=torch.float32)
        return plain

    def score_factor(self) -> float:
        """What MLA multiplies its attention scores by under YaRN (DeepSeek-V2's `mscale_all_dim`, squared)."""
        numbers = dict(self.scaling)
        if self.kind not in ("yarn", "deepseek_yarn") or not numbers.get("mscale_all_dim"):
            return 1.0
        return _mscale(float(numbers.get("factor") or 1.0), float(numbers["mscale_all_dim"])) ** 2

    def _attention_factor(self) -> float:
        """What cosine and sine are multiplied by: 1 but for YaRN (Peng et al. 2023, eq. 22)."""
        numbers = dict(self.scaling)
        factor = float(numbers.get("factor") or 1.0)
        if self.kind not in ("yarn", "deepseek_yarn"):
            return 1.0
        if numbers.get("attention_factor"):
            return float(numbers["attention_factor"])
        if numbers.get("mscale") and numbers.get("mscale_all_dim"):
            return _mscale(factor, float(numbers["mscale"])) / _mscale(factor, float(numbers["mscale_all_dim"]))
        return _mscale(factor, 1.0)

    def _yarn(self, plain: Tensor, factor: float, numbers: Mapping[str, Any]) -> Tensor:
        original = float(numbers.get("original_max_position_embeddings") or self.max_positions)

        def dimension(rotations: float) -> float:
            return self.dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        low = max(math.floor(dimension(float(numbers.get("beta_fast") or 32))), 0)
        high = min(math.ceil(dimension(float(numbers.get("beta_slow") or 1))), self.dim - 1)
        ramp = ((torch.arange(self.dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain * (1 - ramp) + plain / factor * ramp


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 and mscale else 1.0


def _llama3(plain: Tensor, factor: float, numbers: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: low frequencies divided by `factor`, high ones kept, a smooth passage between."""
    original = float(numbers.get("original_max_position_embeddings") or 8192)
    low, high = float(numbers.get("low_freq_factor") or 1), float(numbers.get("high_freq_factor") or 4)
    turns = original * plain / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - smooth) + plain * smooth
