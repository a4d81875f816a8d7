"""What the hooks of one launch leave to each other.

Shapes: bs requests, D nodes of the verify tree, K branches, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from eagletrace.instrumentations.sglang.distributions import Topology
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

NONE: list[torch.Tensor] = []  # of a launch that was let go
NO_FLAGS: list[bool] = []  # of one whose result is not processed yet
NO_LENGTHS: list[int] = []
STEP_BYTES = 1 << 30  # logits of the draft steps kept until the verdict; the engine has planned its memory without us


class Launch:
    """A verify launch in progress."""

    # Made in every round: by hand, a dataclass with as many defaults takes three times as long.
    __slots__ = (
        "batch", "borrowed", "extend_ns", "first", "goes_on", "lean", "lengths", "packet", "positions", "reqs",
        "rope_positions", "slot_width", "step_logits", "tensors", "too_large", "topk", "topology", "verify_ns",
        "wants_hidden",
    )  # fmt: skip

    def __init__(
        self, packet: RoundPacket, reqs: list[Any], first: torch.Tensor | None = None,
        positions: torch.Tensor | None = None, topk: int = 1,
    ) -> None:  # fmt: skip
        self.packet, self.reqs = packet, reqs
        self.batch: Any = None  # the session's Batch of these requests
        self.first = first  # [bs, Vd], the logits that drafted depth 1
        self.positions = positions  # [bs * D], of the verify tree
        self.topk = topk
        self.topology: Topology | None = None
        self.step_logits: list[torch.Tensor] = []  # [bs * K, Vd] each
        self.rope_positions: list[torch.Tensor] = []  # [bs * K] each
        self.wants_hidden = False
        self.slot_width: int | None = None  # hidden size of the target
        self.borrowed = False  # the logits are in a graph's memory, which the next replay uses again
        self.tensors: Any = None  # the LaunchTensors of a launch with requests whose hidden states are stored
        self.too_large = False  # the steps' logits were more than STEP_BYTES: their facts stay NULL
        self.lean = False  # its phases have no hooks
        self.verify_ns = self.extend_ns = 0  # when they began then
        self.goes_on: list[bool] = NO_FLAGS  # of requests, where the result is processed
        self.lengths: list[int] = NO_LENGTHS  # of their outputs, before

    def add_step(self, logits: torch.Tensor) -> None:
        """Keep the logits of a draft step until the verdict, unless they are too many."""
        self.too_large = self.too_large or (len(self.step_logits) + 1) * logits.nbytes > STEP_BYTES
        if self.too_large:
            self.step_logits.clear()
        else:
            self.step_logits.append(logits)

    def release(self) -> None:
        """Let go of the device's tensors: results are processed an iteration later."""
        self.step_logits = self.rope_positions = NONE
        self.positions = self.topology = self.first = None


@dataclass(slots=True)
class Prefill:
    """A prefill in progress."""

    start_ns: int
    reqs: list[Any]
    states: list[RequestState]
    tokens: int | None
