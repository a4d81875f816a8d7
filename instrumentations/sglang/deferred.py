"""What chains leave to be read, packed and reduced for several launches at once.

Each operation costs the engine's thread microseconds, however small: of eight small launches together they cost about
what they cost of one. Only references are kept, of few launches, few bytes, and not for long.

The logits are the engine's own tensors of eager forwards, made anew by each. A verdict's tensors are trusted to be so
once `TRUST` launches in a row have had memory of their own, into which nothing was written afterwards; before that, and
ever after one of which this is not so, they are copied at once.

Shapes: G launches, bs requests, D nodes, S drafts seen of each, Vd draft vocabulary.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from eagletrace.instrumentations.sglang.distributions import of_chain
from eagletrace.record.device import pack
from eagletrace.record.rounds import Drafted, DraftedTogether, Ints, Part, RoundPacket, Values

LAUNCHES = 8
BYTES = 32 << 20  # of logits kept
WAIT_NS = 250_000_000  # since the first was kept
TRUST = 16
Verdict = tuple[tuple[Part, ...], list[torch.Tensor]]  # parts, and their tensors


@dataclass(slots=True)
class Group:
    """Launches of one shape whose values wait."""

    together: DraftedTogether
    shape: tuple[Any, ...]
    ids: torch.Tensor
    stream: Any  # of the forwards, where there is a GPU
    since_ns: int
    logits: list[list[torch.Tensor]]  # [S][G], [bs, Vd] each
    targets: list[torch.Tensor] = field(default_factory=list[torch.Tensor])  # [G], [bs, D] each
    verdicts: list[tuple[RoundPacket, Verdict, list[int]]] = field(
        default_factory=list[tuple[RoundPacket, Verdict, list[int]]]
    )
    places: set[int] = field(default_factory=set[int])  # where the verdicts' tensors lie
    bytes: int = 0


class Deferred:
    """The group that waits. The recorder's thread completes it where the engine's does not go on."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self._lock = threading.Lock()
        self._trust = 0
        self._seen: deque[tuple[list[torch.Tensor], list[int]]] = deque(maxlen=TRUST)  # with their versions

    def distrust(self) -> None:
        """Copy verdicts at once from now on: this engine is known to write into them, if only now and then."""
        self._trust = -1

    def trusts(self, tensors: list[torch.Tensor]) -> bool:
        """Whether a verdict's tensors may be kept: those of the launches before had memory of their own, and the engine
        left them as they were."""
        if self._trust >= TRUST:
            return True
        if self._trust < 0:
            return False
        if any(t.is_inference() for t in tensors):  # they do not say whether they were written to
            self._trust = -1
            return False
        places = {t.data_ptr() for t in tensors}
        for kept, versions in self._seen:
            if any(t.data_ptr() in places or t._version != v for t, v in zip(kept, versions, strict=True)):
                self._trust = -1
                self._seen.clear()
                return False
        self._seen.append((list(tensors), [t._version for t in tensors]))
        self._trust += 1
        if self._trust >= TRUST:
            self._seen.clear()
        return False

    def add(
        self, packet: RoundPacket, logits: Sequence[torch.Tensor], targets: torch.Tensor, ids: torch.Tensor, *,
        verdict: Verdict | None = None, now: bool = False,
    ) -> None:  # fmt: skip
        """Keep a launch: S logits [bs, Vd], the target's choices [bs, D], and the map from target to draft ids, [V].

        `verdict`, if given, is packed with the others' later. `now` computes at once: the logits are in memory that is
        used again.
        """
        first = logits[0]
        shape = (first.shape, targets.shape, len(logits))
        places = [t.data_ptr() for t in verdict[1]] if verdict is not None else []
        with self._lock:
            group = self.group
            if group is not None and (shape != group.shape or not group.places.isdisjoint(places)):
                if shape == group.shape:
                    self._trust = -1  # memory that is used again
                self._compute()
                group = None
            if group is None:
                on_gpu = first.is_cuda and torch.cuda.is_initialized()
                stream = torch.cuda.current_stream(first.device) if on_gpu else None
                together = DraftedTogether(len(logits), first.shape[0])
                group = self.group = Group(together, shape, ids, stream, time.monotonic_ns(), [[] for _ in logits])
            for step, kept in zip(logits, group.logits, strict=True):
                kept.append(step)
            group.targets.append(targets)
            group.bytes += first.nbytes * len(logits)
            if verdict is not None:
                group.verdicts.append((packet, verdict, [_version(t) for t in verdict[1]]))
                group.places.update(places)
            packet.drafted = (*packet.drafted, Drafted(group.together, len(group.targets) - 1))
            full = len(group.targets) >= LAUNCHES or group.bytes >= BYTES
            if now or full or time.monotonic_ns() - group.since_ns > WAIT_NS:
                self._compute()

    def compute(self, older_than_ns: int = 0) -> None:
        """Compute what waits, on the stream of the forwards, where it comes after them. From any thread."""
        with self._lock:
            if self.group is not None and time.monotonic_ns() - self.group.since_ns >= older_than_ns:
                self._compute()

    def _compute(self) -> None:
        group, self.group = self.group, None
        if group is None:
            return
        try:
            with torch.cuda.stream(group.stream) if group.stream is not None else nullcontext():
                self._read(group)
        finally:
            group.together.closed = True

    def _read(self, group: Group) -> None:
        together, targets = group.together, group.targets
        verdicts = [(p, v) for p, v, then in group.verdicts if [_version(t) for t in v[1]] == then]
        expected = targets[0] if len(targets) == 1 else torch.cat(targets)
        tensors = [t for _, (_, own) in verdicts for t in own]
        try:
            logits = [t for step in group.logits for t in step]
            found, floats = of_chain(logits, expected[:, : together.steps], group.ids)
        except Exception:
            if tensors:
                self._pack_verdicts(verdicts, pack(_NO_PARTS, tensors), together.bs)
            raise  # of these launches the draft's logits say nothing, the verdicts are whole
        values = pack(_NO_PARTS, [*found, *tensors], _NO_PARTS, floats)
        drafted = together.steps * together.bs * len(targets)
        self._pack_verdicts(verdicts, values, together.bs, drafted)
        together.launches = len(targets)
        together.ids, together.floats = _between(values.ints, 0, drafted), values.floats
        if len(verdicts) < len(group.verdicts):
            self._trust = -1
            raise RuntimeError("the engine changed a verdict's tensors afterwards: such a launch is lost")


    @staticmethod
    def _pack_verdicts(
        verdicts: Sequence[tuple[RoundPacket, Verdict]], values: Values, bs: int, start: int = 0
    ) -> None:
        """Give each launch its part of the packed integers, from `start` on."""
        for packet, (parts, _) in verdicts:
            end = start + bs * sum(part.width for part in parts)
            packet.values = Values(parts, _between(values.ints, start, end), ready=values.ready)
            start = end


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; -1 where that is not counted."""
    return -1 if tensor.is_inference() else tensor._version


_NO_PARTS: tuple[Part, ...] = ()


def _between(read: Callable[[], Ints], start: int, end: int) -> Callable[[], Ints]:
    return lambda: np.asarray(read()[start:end])
