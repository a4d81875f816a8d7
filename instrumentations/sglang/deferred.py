"""What chains leave to be read, packed and reduced for several launches at once.

Each operation costs the engine's thread microseconds, however small: of several small launches together they cost about
what they cost of one. Only references are kept, of few launches, few bytes, and not for long. On a GPU the engine's
thread packs a group, which only starts kernels; on a CPU, where they would run there and then, the recorder's does.

The logits are the engine's own tensors of eager forwards, made anew by each. A verdict's tensors are trusted to be so
once `TRUST` launches in a row have had memory of their own, into which nothing was written afterwards; before that, and
ever after one of which this is not so, they are copied at once.

Shapes: G launches, bs requests, D nodes, S drafts seen of each, Vd draft vocabulary.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from eagletrace.instrumentations.sglang.distributions import of_chain
from eagletrace.record.device import pack
from eagletrace.record.rounds import Drafted, DraftedTogether, Ints, Part, RoundPacket, Values

LAUNCHES = 16
BYTES = 32 << 20  # of logits kept
HOST_BYTES = 512 << 10  # the same on a CPU, which reduces them in no more than some tenths of a millisecond
HELD_BYTES = 16 << 20  # of logits in groups that wait for the recorder's thread
PAUSE_S = 0.0005  # between two groups, in which the engine's thread may run
WAIT_NS = 250_000_000  # since the first was kept
TRUST = 16


@lru_cache(maxsize=256)
def of_a_chain(nodes: int, path: int, positions: bool, rope: int) -> tuple[Part, ...]:
    """What is packed of a chain, in its order: the same object for the same shapes."""
    parts = [Part("draft_tokens", nodes), Part("target_tokens", nodes), Part("accept_index", path)]
    if positions:
        parts.append(Part("positions", nodes))
    if rope:
        parts.append(Part("rope_positions", rope, by_step=True))
    return tuple(parts)


class Chain(NamedTuple):
    """A launch of chains, by reference: its verdict, and the logits that drafted each depth."""

    packet: RoundPacket
    candidates: torch.Tensor  # [bs, D]
    targets: torch.Tensor  # [bs, D], the target's choices
    accept_index: torch.Tensor  # [bs, S + 1]
    positions: torch.Tensor | None  # [bs * D] or longer
    rope: list[torch.Tensor]  # [bs] each, ours
    logits: list[torch.Tensor]  # [S], [bs, Vd] each
    versions: tuple[int, ...] = ()  # of the verdict's tensors, where only references are kept

    def tensors(self) -> list[torch.Tensor]:
        """The verdict's, which are the engine's."""
        found = [self.candidates, self.targets, self.accept_index]
        return found if self.positions is None else [*found, self.positions]

    def parts(self) -> tuple[Part, ...]:
        """What is packed."""
        return of_a_chain(
            self.candidates.shape[1], self.accept_index.shape[1], self.positions is not None, len(self.rope)
        )

    def packed(self) -> Values:
        """A copy of the verdict."""
        return pack(self.parts(), [*self.cut(), *self.rope])

    def cut(self) -> list[torch.Tensor]:
        """The verdict's tensors, without the positions of a padded batch."""
        found, size = self.tensors(), self.candidates.numel()
        if self.positions is not None and self.positions.numel() != size:
            found[-1] = self.positions[:size]
        return found

    def rows(self, part: slice) -> Chain:
        """Some requests' logits and targets."""
        logits = [step[part] for step in self.logits]
        return Chain(self.packet, self.candidates, self.targets[part], self.accept_index, None, [], logits)


@dataclass(slots=True)
class Group:
    """Launches of one shape whose values wait."""

    together: DraftedTogether
    waiting: tuple[Drafted]  # what says so in their packets
    shape: tuple[int, ...]
    ids: torch.Tensor
    stream: Any  # of the forwards, where there is a GPU
    start_ns: int  # of the first launch
    limit: int  # launches
    on_host: bool  # the logits are on a CPU
    chains: list[Chain] = field(default_factory=list[Chain])

    @property
    def bytes(self) -> int:
        """Bytes of the logits kept."""
        return self.shape[2] * self.shape[3] * len(self.chains)


class Deferred:
    """The group that waits, and groups that the recorder's thread is to read.

    It also reads the one that waits where the engine's thread does not go on. A group is of the thread that took it out
    of its deque, so that the engine's thread needs no lock, which is slow where the caches are cold.
    """

    __slots__ = ("_filling", "_handed", "_held", "_lock", "_seen", "_trust", "hands_over", "trusted")

    def __init__(self) -> None:
        self.trusted = False
        self.hands_over = False
        """Somebody calls `compute` now and then: groups on a CPU are left to it."""
        self._filling: deque[Group] = deque()  # the group that waits, if no thread has it; seldom an older one before
        self._lock = threading.Lock()  # of the bytes held
        self._handed: deque[Group] = deque()
        self._held = 0  # bytes of logits in them
        self._trust = 0
        self._seen: deque[tuple[list[torch.Tensor], list[int]]] = deque(maxlen=TRUST)  # with their versions

    @property
    def waiting(self) -> int:
        """Launches of groups that are not full."""
        return sum(len(group.chains) for group in tuple(self._filling))

    def distrust(self) -> None:
        """Copy verdicts at once from now on: this engine is known to write into them, if only now and then."""
        self._trust, self.trusted = -1, False
        self._seen.clear()

    def trusts(self, tensors: list[torch.Tensor]) -> bool:
        """Whether a verdict's tensors may be kept: those of the launches before had memory of their own, and the engine
        left them as they were."""
        if self.trusted or self._trust < 0:
            return self.trusted
        if any(t.is_inference() for t in tensors):  # they do not say whether they were written to
            self.distrust()
            return False
        places = {t.data_ptr() for t in tensors}
        for kept, versions in self._seen:
            if any(t.data_ptr() in places or t._version != v for t, v in zip(kept, versions, strict=True)):
                self.distrust()
                return False
        self._seen.append((list(tensors), [t._version for t in tensors]))
        self._trust += 1
        if self._trust >= TRUST:
            self.trusted = True
            self._seen.clear()
        return False

    def versions(self, *tensors: torch.Tensor) -> tuple[int, ...]:
        """How often each of a verdict's tensors was written to; none where they do not say, and are to be copied."""
        try:
            return tuple(map(_version, tensors))
        except RuntimeError:  # inference tensors after all
            self.distrust()
            return ()

    def add(self, chain: Chain, shape: tuple[int, ...], ids: torch.Tensor, now: bool) -> None:
        """Keep a launch of a shape (bs, D, S, bytes of a step's logits); `ids` maps target to draft ids, [V].

        Its verdict is packed with the others' later if it has `versions`. `now` computes at once: the logits are in
        memory that is used again.
        """
        filling, packet = self._filling, chain.packet
        error: Exception | None = None
        try:
            group = filling.pop()
        except IndexError:
            group = _group(chain, shape, ids)
        if group.shape != shape:
            try:
                self._hand_over(group)
            except Exception as earlier:  # noqa: BLE001 - of other launches
                error = earlier
            group = _group(chain, shape, ids)
        chains = group.chains
        chains.append(chain)
        packet.drafted += group.waiting
        if now:
            self._complete(group)
        elif len(chains) >= group.limit or packet.start_ns - group.start_ns >= WAIT_NS:
            self._hand_over(group)
        else:
            filling.append(group)
        if error is not None:
            raise error

    def close(self) -> None:
        """Begin no longer group: no further launch may follow."""
        while (group := _next(self._filling)) is not None:
            self._hand_over(group)

    def compute(self) -> None:
        """Read what waits, on the stream of the forwards, where it comes after them. From any thread.

        The error of a group is raised after the others were read.
        """
        self.close()
        error: Exception | None = None
        while (group := _next(self._handed)) is not None:
            with self._lock:
                self._held -= group.bytes
            try:
                self._complete(group)
            except Exception as failed:  # noqa: BLE001 - of some launches
                error = error or failed
            time.sleep(PAUSE_S)
        if error is not None:
            raise error

    def _hand_over(self, group: Group) -> None:
        if not (self.hands_over and group.on_host) or self._held + group.bytes > HELD_BYTES:
            self._complete(group)
            return
        with self._lock:
            self._held += group.bytes
        self._handed.append(group)

    def _complete(self, group: Group) -> None:
        try:
            with torch.cuda.stream(group.stream) if group.stream is not None else nullcontext():
                self._read(group)
        finally:
            group.together.closed = True

    def _read(self, group: Group) -> None:
        together, chains = group.together, group.chains
        kept, lost = _intact([chain for chain in chains if chain.versions])
        layouts = [chain.parts() for chain in kept]
        parts = layouts[0] if layouts else _NO_PARTS
        if any(layout is not parts for layout in layouts):
            for chain in kept:
                chain.packet.values = chain.packed()
            kept = []
        targets = chains[0].targets if len(chains) == 1 else torch.cat([chain.targets for chain in chains])
        packed = _side_by_side(kept)
        try:
            logits = [chain.logits[step] for step in range(together.steps) for chain in chains]
            found, floats = of_chain(logits, targets[:, : together.steps], group.ids)
        except Exception:
            if packed is not None:
                _give(kept, parts, pack(_NO_PARTS, [packed]), 0)
            raise  # of these launches the draft's logits say nothing, the verdicts are whole
        values = pack(_NO_PARTS, found if packed is None else [*found, packed], _NO_PARTS, floats)
        drafted = together.steps * together.bs * len(chains)
        _give(kept, parts, values, drafted)
        together.launches = len(chains)
        together.ids, together.floats = _between(values.ints, 0, drafted), values.floats
        for index, chain in enumerate(chains):
            others = (part for part in chain.packet.drafted if part is not group.waiting[0])
            chain.packet.drafted = (*others, Drafted(together, index))
        if lost:
            self.distrust()
            raise RuntimeError("the engine wrote into a verdict's tensors afterwards: such a launch is lost")


def _group(chain: Chain, shape: tuple[int, ...], ids: torch.Tensor) -> Group:
    bs, _, steps, size = shape
    first = chain.logits[0]
    stream = torch.cuda.current_stream(first.device) if first.is_cuda and torch.cuda.is_initialized() else None
    together = DraftedTogether(steps, bs)
    limit = max(1, min(LAUNCHES, (min(BYTES, HOST_BYTES) if first.is_cpu else BYTES) // max(1, steps * size)))
    waiting = (Drafted(together, 0),)
    return Group(together, waiting, shape, ids, stream, chain.packet.start_ns, limit, first.is_cpu)


def _intact(chains: list[Chain]) -> tuple[list[Chain], int]:
    """Launches whose verdict is as it was seen, and how many others there are: written to since, or by a later launch
    that has the same memory."""
    held = [chain.tensors() for chain in chains]
    everywhere = [t.data_ptr() for tensors in held for t in tensors]
    changed = [tuple(map(_version, tensors)) != chain.versions for chain, tensors in zip(chains, held, strict=True)]
    if not any(changed) and len(set(everywhere)) == len(everywhere):
        return chains, 0
    intact: list[Chain] = []
    later = set[int]()
    for chain, tensors, written in zip(reversed(chains), reversed(held), reversed(changed), strict=True):
        places = {t.data_ptr() for t in tensors}
        if not written and later.isdisjoint(places):
            intact.append(chain)
        later |= places
    return intact[::-1], len(chains) - len(intact)


def _side_by_side(chains: list[Chain]) -> torch.Tensor | None:
    """Verdicts one after the other, [all their values]; None without any. Few operations, whatever their number."""
    if not chains:
        return None
    columns = [torch.cat(column) for column in zip(*(chain.cut() for chain in chains), strict=True)]
    if chains[0].rope:
        columns.append(torch.cat([step for chain in chains for step in chain.rope]))
    rows = [(c if c.dtype is torch.int64 else c.to(torch.int64)).view(len(chains), -1) for c in columns]
    return torch.cat(rows, 1).view(-1)


def _give(chains: list[Chain], parts: tuple[Part, ...], values: Values, start: int) -> None:
    """Give each launch its part of the packed integers, from `start` on; all have the same parts."""
    width = sum(part.width for part in parts)
    for chain in chains:
        end = start + len(chain.packet.requests) * width
        chain.packet.values = Values(parts, _between(values.ints, start, end), ready=values.ready)
        start = end


def _next(groups: deque[Group]) -> Group | None:
    try:
        return groups.popleft()
    except IndexError:  # none, or another thread has it
        return None


_NO_PARTS: tuple[Part, ...] = ()
_version = attrgetter("_version")


def _between(read: Callable[[], Ints], start: int, end: int) -> Callable[[], Ints]:
    return lambda: np.asarray(read()[start:end])
