"""Exact totals per interval: all levels, never sampled, never dropped."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from eagletrace.record.rounds import RoundPacket, Verdicts


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

    def add(self, packet: RoundPacket, seen: Verdicts) -> None:
        """Add a launch's counted rounds of user requests."""
        counted = packet.counted or [True] * len(packet.requests)
        keep = np.array([c and r.kind == "user" for c, r in zip(counted, packet.requests, strict=True)], dtype=np.bool_)
        if not keep.any():
            return
        accepted = seen.accepted[keep]
        self.rounds += int(keep.sum())
        self.drafted += int(keep.sum()) * (packet.nodes - 1)
        self.accepted += int(accepted.sum())
        depths, parents, path = seen.depths[keep], np.maximum(seen.parents[keep], 0), seen.on_path[keep]
        reached = np.take_along_axis(path, parents, axis=1)
        deepest = int(depths.max()) if depths.size else 0
        self._grow(deepest)
        for depth in range(1, deepest + 1):
            at = depths == depth
            self.reached_by_depth[depth - 1] += int((at & reached).any(axis=1).sum())
            self.accepted_by_depth[depth - 1] += int((at & path).any(axis=1).sum())
        for correct, count in zip(*np.unique(accepted, return_counts=True), strict=True):
            self.histogram[int(correct)] += int(count)

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
