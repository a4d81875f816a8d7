"""What the draft's logits say of chains, reduced for several launches at once.

Each operation costs the engine's thread microseconds, however small: of eight small launches together they cost about
what they cost of one. The logits are the engine's own tensors of eager forwards, made anew by each; only references are
kept, of few launches, few bytes, and not for long.

Shapes: G launches, bs requests, S drafts seen of each, Vd draft vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from eagletrace.instrumentations.sglang.distributions import of_chain
from eagletrace.record.device import pack
from eagletrace.record.rounds import Drafted, DraftedTogether, Part

LAUNCHES = 8
BYTES = 32 << 20  # of logits kept
WAIT_NS = 250_000_000  # since the first was kept


@dataclass(slots=True)
class Deferred:
    """Launches whose facts are still to be computed; all of one shape."""

    together: DraftedTogether | None = None
    shape: tuple[int, ...] = ()
    bytes: int = 0
    since_ns: int = 0
    logits: list[list[torch.Tensor]] = field(default_factory=list[list[torch.Tensor]])  # [S][G], [bs, Vd] each
    targets: list[torch.Tensor] = field(default_factory=list[torch.Tensor])  # [G], [bs, D] each
    ids: torch.Tensor | None = None
    stream: Any = None  # of the forwards, where there is a GPU

    def add(
        self, logits: Sequence[torch.Tensor], targets: torch.Tensor, ids: torch.Tensor, *, now: bool
    ) -> Drafted:
        """Keep a launch: S logits [bs, Vd], the target's choices [bs, D], and the map from target to draft ids, [V].

        `now` computes at once: the logits are in memory that is used again.
        """
        first = logits[0]
        shape = (*first.shape, len(logits), *targets.shape)
        if self.together is not None and shape != self.shape:
            self.compute()
        if self.together is None:
            self.together = DraftedTogether(len(logits), first.shape[0])
            self.shape, self.ids, self.since_ns = shape, ids, time.monotonic_ns()
            self.logits = [[] for _ in logits]
            on_gpu = first.is_cuda and torch.cuda.is_initialized()
            self.stream = torch.cuda.current_stream(first.device) if on_gpu else None
        for step, kept in zip(logits, self.logits, strict=True):
            kept.append(step)
        self.targets.append(targets)
        self.bytes += first.nbytes * len(logits)
        drafted = Drafted(self.together, len(self.targets) - 1)
        full = len(self.targets) >= LAUNCHES or self.bytes >= BYTES
        if now or full or time.monotonic_ns() - self.since_ns > WAIT_NS:
            self.compute()
        return drafted

    def compute(self) -> None:
        """Compute what waits, on the stream of the forwards, where it comes after them."""
        together, ids, stream = self.together, self.ids, self.stream
        logits, targets = [t for step in self.logits for t in step], self.targets
        self.together, self.bytes, self.logits, self.targets = None, 0, [], []
        if together is None or ids is None:
            return
        try:
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                expected = targets[0] if len(targets) == 1 else torch.cat(targets)
                found, floats = of_chain(logits, expected[:, : together.steps], ids)
                together.give(len(targets), pack(_NO_PARTS, found, _NO_PARTS, floats))
        finally:
            together.closed = True


_NO_PARTS: tuple[Part, ...] = ()
