"""Rounds of a steady state: chains of the second worker, of the requests of the round before.

The engine's thread notes what passes, by reference; what it amounts to is understood on the recorder's thread. Between
two rounds the model's work empties the caches, and whatever runs then costs several times what it costs in a loop.
"""

from __future__ import annotations

from contextlib import nullcontext
from time import time_ns
from typing import Any

import torch

from eagletrace.instrumentations.sglang.deferred import BYTES, HELD_BYTES, LAUNCHES, Chain, Deferred
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import Batch, Extend, Session
from eagletrace.record.rounds import RoundPacket

MOST = 1024  # launches that wait to be understood
STEP_BYTES = 2 << 20  # of a depth's logits: with MAX_NODES of them they are within all bounds
MAX_NODES = 8


class Noted:
    """A launch of a batch that is `ready`. The hooks of other launches see one of which nothing more is wanted."""

    __slots__ = (
        "batch", "committed", "counted", "end_ns", "engine_accepted", "extend_ns", "extended", "fused", "given",
        "graph", "last", "later", "number", "positions", "start_ns", "steps", "verdict", "verify_ns", "width",
    )  # fmt: skip
    topk = 1
    wants_hidden = False
    tensors = None

    def __init__(self, number: int, batch: Batch, last: Extend) -> None:
        self.start_ns = time_ns()
        self.number, self.batch, self.later = number, batch, batch.launches
        self.last = last  # which drafted depth 1
        self.steps: list[tuple[torch.Tensor | None, torch.Tensor]] = []  # deeper ones: positions [bs], logits [bs, Vd]
        # candidates [bs, D], targets [bs, D], path [bs, S + 1], and how often these and `positions` were written to
        self.verdict: tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, ...]] | None = None
        self.positions: Any = None  # [bs * D] or longer
        self.verify_ns = self.extend_ns = 0  # when these phases began
        self.extended: Any = None  # what the draft's forward gave in the extend, with the width `given` and `fused`

    def decided(self, candidates: torch.Tensor, targets: torch.Tensor, path: torch.Tensor) -> None:
        """The verdict: its tensors, and how often they were written to so far."""
        positions = self.positions
        if positions is None:
            versions = candidates._version, targets._version, path._version
        else:
            versions = candidates._version, targets._version, path._version, positions._version
        self.verdict = candidates, targets, path, versions

    def forwarded(self, width: int | None, graph: bool | None) -> None:
        """The launch has run: the width of the target's hidden state, and whether a graph did it."""
        self.end_ns, self.width, self.graph = time_ns(), width, graph

    def processed(
        self, committed: list[int] | None, counted: list[bool] | None, engine_accepted: list[int] | None
    ) -> None:
        """Its result was: tokens kept by each request, whose the result was, and the engine's own counts. Nothing is
        known of a launch that died."""
        self.committed, self.counted, self.engine_accepted = committed, counted, engine_accepted

    @property
    def reqs(self) -> list[Any]:
        """The engine's requests."""
        return self.batch.reqs

    def packet(self, deferred: Deferred, ids: torch.Tensor | None, *, softmax: bool) -> RoundPacket:
        """The launch as other launches come to be; what the logits say is left to `deferred`."""
        batch, verdict, end = self.batch, self.verdict, self.end_ns
        bs, nodes = (len(batch.states), 0) if verdict is None else verdict[0].shape
        widths, fusions = batch.extended(self.last.facts)
        begun, extended = self.verify_ns or end, self.extend_ns or end
        phases = [("draft", self.start_ns, begun), ("verify", begun, extended), ("extend_decode", extended, end)]
        packet = RoundPacket(
            self.number, self.start_ns, batch.states, batch.rounds, nodes, None, (), softmax, self.graph, self.width,
            widths, fusions, self.committed, self.counted, self.engine_accepted, batch.cached_tokens, (), phases,
            self.later,
        )  # fmt: skip
        if verdict is None:
            return packet
        candidates, targets, path, versions = verdict
        first = self.last.logits
        logits = [] if first is None else [first, *(step for _, step in self.steps)]
        rope = [positions for positions, _ in self.steps if positions is not None]
        chain = Chain(packet, candidates, targets, path, self.positions, rope, logits, versions)
        if first is None or ids is None or len(logits) not in (1, nodes - 1):
            packet.values = chain.packed()
        else:
            deferred.add(chain, (bs, nodes, len(logits), first.nbytes), ids, False)
        return packet


def ready(session: Session, batch: Batch, launch: Launch) -> None:
    """After a launch of a batch: let its next ones be noted, if there is nothing to be looked at in them."""
    first, seen, nodes = launch.first, 1 + len(launch.step_logits), launch.packet.nodes
    if first is None or launch.borrowed or first.nbytes > STEP_BYTES or not 1 < nodes <= MAX_NODES:
        return
    if session.samples is not False or not session.deferred.trusted or session.draft_id_or_zero is None:
        return
    if seen not in (1, nodes - 1):  # depth 1 alone under a captured graph
        return
    size = seen * first.nbytes
    if first.is_cpu:
        batch.most = max(1, min(MOST, HELD_BYTES // size))
    else:
        batch.most = max(1, min(LAUNCHES, BYTES // size))
        batch.stream = torch.cuda.current_stream(first.device) if torch.cuda.is_initialized() else None


def understand(session: Session) -> None:
    """Make launches of what was noted, and queue them. From any thread."""
    while True:
        try:
            noted: Noted = session.noted.popleft()
        except IndexError:  # none, or another thread has it
            return
        stream = noted.batch.stream
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            packet = noted.packet(session.deferred, session.draft_id_or_zero, softmax=session.softmax_chains)
        session.recorder.launch(packet)
