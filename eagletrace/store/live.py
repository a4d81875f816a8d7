"""What a run says of itself while it is written: counts, their course over the last minutes, hooks, events, phases.

Read from the run folder alone and a little at a time, so that watching costs the server nothing.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagletrace.format.control import read_answer
from eagletrace.store.folder import read_info
from eagletrace.store.follow import TableFollower, first_rank, numbers
from eagletrace.store.summary import run_state

KEPT_S = 3_600  # how far back the course of the counts goes
PHASES_KEPT_S = 30
MAX_EVENTS = 500
MAX_REQUESTS = 20_000  # of which the end is remembered, so that none is counted twice
_NOT_PHASES = ("eagle.request", "eagle.launch")
Ints = npt.NDArray[np.int64]


@dataclass
class Counts:
    """Counted rounds of user requests, as the `totals` table has them."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: list[int] = field(default_factory=list[int])
    accepted_at: list[int] = field(default_factory=list[int])
    histogram: list[int] = field(default_factory=list[int])

    def add(self, other: Counts) -> None:
        """Add another's counts."""
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        for mine, theirs in (
            (self.reached, other.reached), (self.accepted_at, other.accepted_at), (self.histogram, other.histogram),
        ):  # fmt: skip
            mine.extend([0] * (len(theirs) - len(mine)))
            for index, value in enumerate(theirs):
                mine[index] += value

    @property
    def accept_length(self) -> float | None:
        """1 + accepted / rounds; None without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def tokens(self) -> int:
        """Correct drafts and a token of the target's own for each round: what was kept, but for cuts at an end."""
        return self.accepted + self.rounds

    def rate(self, depth: int) -> float | None:
        """Accepted of those that reached the depth (from 1); None if none did."""
        reached = self.reached[depth - 1] if depth <= len(self.reached) else 0
        return self.accepted_at[depth - 1] / reached if reached and depth <= len(self.accepted_at) else None


def total(parts: Iterable[Counts]) -> Counts:
    """The sum of counts."""
    out = Counts()
    for part in parts:
        out.add(part)
    return out


@dataclass(frozen=True)
class Phase:
    """Durations of one phase in the last seconds."""

    name: str
    count: int
    seconds: float
    median_ms: float
    p99_ms: float
    max_ms: float


class LiveRun:
    """A run that is followed. `poll` reads what is new; everything else says what was read so far."""

    def __init__(self, path: Path, *, with_phases: bool = True) -> None:
        self.path, self.info = path, read_info(path)
        self.counts = Counts()
        self.course: deque[tuple[int, Counts]] = deque()  # (end of an interval, its counts), oldest first
        self.dropped: Counter[str] = Counter()
        self.last_drop = 0  # unix ns
        self.hooks: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self.running = set[tuple[Any, ...]]()
        self.finished: Counter[str] = Counter()  # user requests by reason
        self.latest = 0  # unix ns of the newest row
        self.state = "ended"
        self.control: list[dict[str, Any]] = []
        self._ended: deque[tuple[Any, ...]] = deque()
        self._ended_set = set[tuple[Any, ...]]()
        self._spans: deque[tuple[int, str, Ints]] = deque()  # (latest end, phase, durations in ns)
        counts = ("rounds", "drafted", "accepted", "reached_by_depth", "accepted_by_depth", "correct_drafts_histogram",
                  "dropped_rows_by_reason")  # fmt: skip
        self._totals = TableFollower(path, "totals", counts)
        self._hooks = TableFollower(path, "hooks", ("target", "status", "calls", "errors", "detail", "required"))
        self._events = TableFollower(path, "events", ("kind", "detail"))
        self._requests = TableFollower(
            path, "requests", ("request_seq", "request_kind", "finish_reason", "end_time_unix_nano", "output_tokens")
        )
        self._phases = (
            TableFollower(path, "spans", ("name", "duration_time_unix_nano"), "start_time_unix_nano")
            if with_phases
            else None
        )

    def poll(self) -> None:
        """Read what was written since the last call."""
        for rows in self._totals.poll():
            self._add_totals(first_rank(rows))
        for rows in self._hooks.poll():
            for row in rows.to_pylist():
                self._add_hook(row)
        for rows in self._events.poll():
            self.events.extend(rows.to_pylist())
        for rows in self._requests.poll():
            for row in first_rank(rows).to_pylist():
                self._add_request(row)
        if self._phases is not None:
            for rows in self._phases.poll(self.latest - PHASES_KEPT_S * 10**9):
                self._add_phases(first_rank(rows))
        while self.course and self.course[0][0] < self.latest - KEPT_S * 10**9:
            self.course.popleft()
        while self._spans and self._spans[0][0] < self.latest - PHASES_KEPT_S * 10**9:
            self._spans.popleft()
        self.state = run_state(self.info)
        self.control = [read_answer(file) for file in sorted(self.path.glob("control-*.json"))]

    def last(self, seconds: float, end_ns: int) -> Counts:
        """Counts of the intervals that ended in the last seconds before a moment."""
        start = end_ns - int(seconds * 1e9)
        return total(counts for time, counts in reversed(self.course) if start < time <= end_ns)

    def phases(self, seconds: float, end_ns: int) -> list[Phase]:
        """Phases of the last seconds, the one that took most time first."""
        start = end_ns - int(seconds * 1e9)
        found: dict[str, list[Ints]] = {}
        for time, name, durations in self._spans:
            if start < time <= end_ns:
                found.setdefault(name, []).append(durations)
        made = [_phase(name, np.concatenate(parts)) for name, parts in found.items()]
        return sorted(made, key=lambda phase: -phase.seconds)

    @property
    def paused(self) -> bool:
        """Whether `eagletrace ctl --pause` holds."""
        return any(answer.get("paused") for answer in self.control)

    @property
    def level(self) -> str | None:
        """The level now: as the server was started, or what `eagletrace ctl` made of it."""
        changed = [str(answer["level"]) for answer in self.control if answer.get("level")]
        return changed[-1] if changed else self.info.level

    # -- rows -------------------------------------------------------------------------------------

    def _saw(self, time: Any) -> int:
        moment = time if isinstance(time, int) else 0
        self.latest = max(self.latest, moment)
        return moment

    def _add_totals(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            time = self._saw(row["time_unix_nano"])
            counts = Counts(
                row["rounds"] or 0, row["drafted"] or 0, row["accepted"] or 0, _numbers(row["reached_by_depth"]),
                _numbers(row["accepted_by_depth"]), _numbers(row["correct_drafts_histogram"]),
            )  # fmt: skip
            self.counts.add(counts)
            if counts.rounds:
                self.course.append((time, counts))
            if row["dropped_rows_by_reason"]:
                self.dropped.update(_reasons(row["dropped_rows_by_reason"]))
                self.last_drop = max(self.last_drop, time)

    def _add_hook(self, row: dict[str, Any]) -> None:
        key = (row["host"], row["pid"], row["target"])
        known = self.hooks.get(key)
        if known is None or (row["time_unix_nano"] or 0) >= (known["time_unix_nano"] or 0):
            self.hooks[key] = row

    def _add_request(self, row: dict[str, Any]) -> None:
        self._saw(row["time_unix_nano"])
        key = (row["host"], row["pid"], row["request_seq"])
        if row["request_kind"] not in (None, "user") or key in self._ended_set:
            return
        if row["end_time_unix_nano"] is None:
            self.running.add(key)
            return
        self.running.discard(key)
        self.finished[row["finish_reason"] or "unknown"] += 1
        self._ended.append(key)
        self._ended_set.add(key)
        if len(self._ended) > MAX_REQUESTS:
            self._ended_set.discard(self._ended.popleft())

    def _add_phases(self, rows: pa.Table) -> None:
        names = np.asarray(rows.column("name").to_pylist(), dtype=object)
        starts, durations = numbers(rows, "start_time_unix_nano"), numbers(rows, "duration_time_unix_nano")
        for name in sorted({str(n) for n in names}):
            if name in _NOT_PHASES:
                continue
            mine = names == name
            end = self._saw(int((starts[mine] + durations[mine]).max()))
            self._spans.append((end, name.removeprefix("eagle."), durations[mine]))


def _phase(name: str, durations: Ints) -> Phase:
    median, p99, longest = (float(v) / 1e6 for v in np.percentile(durations, (50, 99, 100)))
    return Phase(name, len(durations), float(durations.sum()) / 1e9, median, p99, longest)


def _numbers(values: Any) -> list[int]:
    return [int(value or 0) for value in values or ()]


def _reasons(text: str) -> Mapping[str, int]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(reason): count for reason, count in found.items() if isinstance(count, int)}
