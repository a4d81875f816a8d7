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


@dataclass
class Launch:
    """A verify launch in progress."""

    packet: RoundPacket
    reqs: list[Any]
    positions: torch.Tensor | None = None  # [bs * D], of the verify tree
    topology: Topology | None = None
    step_logits: list[torch.Tensor] = field(default_factory=list[torch.Tensor])  # [bs * K, Vd] each
    rope_positions: list[torch.Tensor] = field(default_factory=list[torch.Tensor])  # [bs * K] each
    topk: int = 1
    wants_hidden: bool = False
    slot_width: int | None = None  # hidden size of the target


@dataclass
class Prefill:
    """A prefill in progress."""

    start_ns: int
    reqs: list[Any]
    states: list[RequestState]
    tokens: int | None
