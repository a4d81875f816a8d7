"""Exact totals per interval: all levels, never sampled, never dropped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from eagletrace.record.launch_rows import flat, of_requests
from eagletrace.record.rounds import RoundPacket
from eagletrace.record.trees import Trees


class Totals:
    """Counts of user requests and counted rounds since the last `take`."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._clear()

    def _clear(self) -> None:
        self.rounds = self.drafted = self.accepted = 0
        self.reached_by_depth: list[int] = []
        self.accepted_by_depth: list[int] = []
        self.histogram: list[int] = []

    def add(self, packets: Sequence[RoundPacket], trees: Trees) -> None:
        """Add the counted rounds of user requests of launches that were read together."""
        keep = of_requests(packets, lambda request: request.kind == "user", np.bool_)
        keep &= flat([packet.counted or [True] * len(packet.requests) for packet in packets], np.bool_)
        rounds = int(keep.sum())
        if not rounds:
            return
        accepted, depths = trees.accepted[keep], trees.depths[keep]
        self.rounds += rounds
        self.drafted += rounds * (packets[0].nodes - 1)
        self.accepted += int(accepted.sum())
        path, reached = trees.on_path[keep], trees.reached[keep]
        deepest = int(depths.max()) if depths.size else 0
        self._grow(deepest)
        for depth in range(1, deepest + 1):
            at = depths == depth
            self.reached_by_depth[depth - 1] += int((at & reached).any(axis=1).sum())
            self.accepted_by_depth[depth - 1] += int((at & path).any(axis=1).sum())
        for correct, count in enumerate(np.bincount(accepted)):
            self.histogram[correct] += int(count)

    def add_chains(self, histogram: Sequence[int], steps: int) -> None:
        """Add rounds of chains of `steps` drafts: in `histogram[n]` of them n drafts were correct.

        In a chain depth k is reached where k - 1 drafts were correct.
        """
        self._grow(max(steps, len(histogram) - 1))
        for correct, rounds in enumerate(histogram):
            self.rounds += rounds
            self.drafted += rounds * steps
            self.accepted += rounds * correct
            self.histogram[correct] += rounds
            for depth in range(min(correct + 1, steps)):
                self.reached_by_depth[depth] += rounds
            for depth in range(correct):
                self.accepted_by_depth[depth] += rounds

    def merge(self, other: Totals) -> None:
        """Add another's counts."""
        self.dropped.update(other.dropped)
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self._grow(len(other.reached_by_depth))
        for mine, theirs in (
            (self.reached_by_depth, other.reached_by_depth),
            (self.accepted_by_depth, other.accepted_by_depth),
            (self.histogram, other.histogram),
        ):
            for index, count in enumerate(theirs):
                mine[index] += count

    def _grow(self, depth: int) -> None:
        for values, size in (
            (self.reached_by_depth, depth),
            (self.accepted_by_depth, depth),
            (self.histogram, depth + 1),
        ):
            values.extend([0] * (size - len(values)))

    def take(self, now_ns: int) -> dict[str, Any] | None:
        """The interval's row, None if nothing happened; starts a new interval."""
        if not self.rounds and not self.dropped:
            return None
        row = {
            "time_unix_nano": now_ns, "rounds": self.rounds, "drafted": self.drafted, "accepted": self.accepted,
            "reached_by_depth": self.reached_by_depth, "accepted_by_depth": self.accepted_by_depth,
            "correct_drafts_histogram": self.histogram,
            "dropped_rows_by_reason": json.dumps(self.dropped) if self.dropped else None,
        }  # fmt: skip
        self.dropped.clear()
        self._clear()
        return row
