"""What the hooks of one launch leave to each other.

Shapes: bs requests, D nodes of the verify tree, K branches, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from eagletrace.instrumentations.sglang.distributions import Topology
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

STEP_BYTES = 1 << 30  # logits of the draft steps kept until the verdict; the engine has planned its memory without us


@dataclass(slots=True)
class Launch:
    """A verify launch in progress."""

    packet: RoundPacket
    reqs: list[Any]
    first: torch.Tensor | None = None  # [bs, Vd], the logits that drafted depth 1
    positions: torch.Tensor | None = None  # [bs * D], of the verify tree
    topology: Topology | None = None
    step_logits: list[torch.Tensor] = field(default_factory=list[torch.Tensor])  # [bs * K, Vd] each
    rope_positions: list[torch.Tensor] = field(default_factory=list[torch.Tensor])  # [bs * K] each
    topk: int = 1
    wants_hidden: bool = False
    slot_width: int | None = None  # hidden size of the target
    borrowed: bool = False  # the logits are in a graph's memory, which the next replay uses again
    tensors: Any = None  # the LaunchTensors of a launch with requests whose hidden states are stored
    too_large: bool = False  # the steps' logits were more than STEP_BYTES: their facts stay NULL

    def add_step(self, logits: torch.Tensor) -> None:
        """Keep the logits of a draft step until the verdict, unless they are too many."""
        self.too_large = self.too_large or (len(self.step_logits) + 1) * logits.nbytes > STEP_BYTES
        if self.too_large:
            self.step_logits.clear()
        else:
            self.step_logits.append(logits)

    def release(self) -> None:
        """Let go of the device's tensors: results are processed an iteration later."""
        self.step_logits.clear()
        self.rope_positions.clear()
        self.positions = self.topology = self.first = None


@dataclass(slots=True)
class Prefill:
    """A prefill in progress."""

    start_ns: int
    reqs: list[Any]
    states: list[RequestState]
    tokens: int | None
