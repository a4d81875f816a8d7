"""What parameters are made of, and the sizes that a configuration gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagletrace.checkpoint.config import flag, integer
from eagletrace.checkpoint.errors import CheckpointError

Kind = Literal["weight", "norm", "bias", "embedding", "head"]


@dataclass(frozen=True)
class Part:
    """One tensor's share of a parameter: its name in the checkpoint's words, and its shape."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter: `parts` are the tensors that fill it, one for a plain parameter."""

    name: str
    kind: Kind
    parts: tuple[Part, ...]
    unused: bool = False
    """The class has it, and its forward never reads it."""
    experts: int = 0
    """How many experts' tensors it stacks, [experts, rows, width]; 0 where it is no parameter of experts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole, rows of its parts together."""
        first = self.parts[0].shape
        if not first:
            return first
        rows = sum(p.shape[0] for p in self.parts)
        return (self.experts, rows // self.experts, *first[1:]) if self.experts else (rows, *first[1:])


class Unbuildable(CheckpointError):  # noqa: N818 -- a configuration that no class can be built from
    """A setting is missing or makes no sense; the message names it."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a draft's configuration."""

    settings: Mapping[str, Any]

    def need(self, name: str) -> int:
        """A positive size; Unbuildable if it is missing."""
        value = integer(self.settings, name)
        if value is None or value < 1:
            raise Unbuildable(f"config.json has no usable {name} ({self.settings.get(name)!r})")
        return value

    def get(self, name: str, default: int) -> int:
        """A size, or the default where it is missing or null."""
        value = integer(self.settings, name)
        return default if value is None else value

    def on(self, name: str) -> bool:
        """A switch."""
        return bool(flag(self.settings, name))


def mla(s: Sizes, prefix: str, hidden: int, wide: int, *, compressed: bool = True) -> Iterator[Parameter]:
    """Multi-head latent attention over inputs `wide` wide; `compressed`: the query goes through a low rank too."""
    heads, kv_rank = s.need("num_attention_heads"), s.need("kv_lora_rank")
    nope, rope, value = s.need("qk_nope_head_dim"), s.need("qk_rope_head_dim"), s.need("v_head_dim")
    yield plain(f"{prefix}.kv_a_layernorm.weight", (kv_rank,), "norm")
    yield plain(f"{prefix}.kv_b_proj.weight", (heads * (nope + value), kv_rank))
    yield plain(f"{prefix}.o_proj.weight", (hidden, heads * value))
    if not compressed:
        yield plain(f"{prefix}.q_proj.weight", (heads * (nope + rope), wide))
        yield plain(f"{prefix}.kv_a_proj_with_mqa.weight", (kv_rank + rope, wide))
        return
    q_rank = s.need("q_lora_rank")
    yield Parameter(
        f"{prefix}.fused_qkv_a_proj_with_mqa.weight", "weight",
        (Part("q_a_proj", (q_rank, wide)), Part("kv_a_proj_with_mqa", (kv_rank + rope, wide))),
    )  # fmt: skip
    yield plain(f"{prefix}.q_a_layernorm.weight", (q_rank,), "norm")
    yield plain(f"{prefix}.q_b_proj.weight", (heads * (nope + rope), q_rank))


def gate_up(prefix: str, hidden: int, inner: int) -> Iterator[Parameter]:
    """A feed-forward block, gate and up in one parameter."""
    yield Parameter(
        f"{prefix}.gate_up_proj.weight", "weight",
        (Part("gate_proj", (inner, hidden)), Part("up_proj", (inner, hidden))),
    )  # fmt: skip
    yield plain(f"{prefix}.down_proj.weight", (hidden, inner))


def plain(name: str, shape: tuple[int, ...], kind: Kind = "weight") -> Parameter:
    """A parameter that one tensor fills."""
    return Parameter(name, kind, (Part("", shape),))
