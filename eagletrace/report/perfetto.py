"""A run as a trace for the Perfetto UI (https://ui.perfetto.dev), in Perfetto's own format.

For each process of the run: its launches, their phases, the requests with their rounds (one track for each that ran at
the same time), events, and counters (accept length of each launch and of the last second, batch size, tokens a second).
Rows are streamed from the run, ordered by DuckDB, so that a long run needs no more memory than a short one.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from eagletrace.report.trackevent import Arg, Ints, TrackEvents, timestamps
from eagletrace.store import Run
from eagletrace.store.sqlfile import load_folder

ROWS = 1 << 14  # rows that are encoded at once
MAX_ARGUMENT = 4_000  # characters
OWN = "eagle."  # what names of our own spans and attributes begin with
_OTHER_HOST_PIDS = 10_000_000  # Perfetto knows processes by pid alone; those of further hosts get this added
Process = tuple[str, int]
Progress = Callable[[int], None]


@dataclass
class _Lanes:
    """Tracks for slices that may overlap: each goes to the first track that is free when it begins."""

    free: list[int] = field(default_factory=list[int])
    busy: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (finish, lane)
    made: int = 0

    def take(self, begin: int, finish: int) -> tuple[int, bool]:
        """The lane of a slice, and whether it is used for the first time; slices come in the order of their begins."""
        while self.busy and self.busy[0][0] <= begin:
            heapq.heappush(self.free, heapq.heappop(self.busy)[1])
        new = not self.free
        lane = self.made if new else heapq.heappop(self.free)
        self.made += new
        heapq.heappush(self.busy, (finish, lane))
        return lane, new


class PerfettoTrace:
    """The packets of one run's trace. `counts` says what was written, once all packets were taken."""

    def __init__(self, run: Run, progress: Progress | None = None) -> None:
        self._run, self._progress = run, progress
        self._sql = load_folder("perfetto")
        self._events = TrackEvents()
        self._tracks = 0
        self._of_process: dict[Process, int] = {}
        self._named: dict[tuple[Process, str], int] = {}
        self._lanes: dict[tuple[Process, str], _Lanes] = {}
        self._lane_tracks: dict[tuple[Process, str, int], int] = {}
        self._heads: dict[tuple[int, str], bytes] = {}
        self._round_heads: dict[tuple[int, int | None, int | None], bytes] = {}
        self._request_tracks: dict[tuple[str, int, int], int] = {}
        self.counts: Counter[str] = Counter()

    def size(self) -> int:
        """About how many rows will be written."""
        return int(self._run.execute(self._sql["size"].sql)[0][0])

    def packets(self) -> Iterator[bytes]:
        """The file, piece by piece."""
        yield self._events.clock(max(0, self._run.info.start_time_unix_nano))
        yield from self._processes()
        for name, encode in (
            ("launches", self._launches), ("phases", self._phases), ("requests", self._requests),
            ("rounds", self._rounds), ("counters", self._counters), ("totals", self._totals),
            ("events", self._instants),
        ):  # fmt: skip
            for batch in self._run.batches(self._sql[name].sql, rows=ROWS):
                yield b"".join(encode(batch))
                if self._progress is not None:
                    self._progress(batch.num_rows)

    def _processes(self) -> Iterator[bytes]:
        pids: dict[int, int] = {}
        for rank, (host, pid, tp_rank, dp_rank) in enumerate(self._run.execute(self._sql["processes"].sql)):
            ranks = [f"{name}{rank}" for name, rank in (("TP", tp_rank), ("DP", dp_rank)) if rank is not None]
            shown = (pid or 0) + _OTHER_HOST_PIDS * pids.get(pid or 0, 0)
            pids[pid or 0] = pids.get(pid or 0, 0) + 1
            track = self._of_process[host, pid] = self._new_track()
            name = " ".join([f"{self._run.info.raw.get('engine') or 'engine'} on {host}", *ranks])
            yield self._events.process(track, shown % (1 << 31), name, rank)
            self.counts["processes"] += 1

    def _new_track(self) -> int:
        self._tracks += 1
        return self._tracks

    def _track(self, process: Process, name: str, rank: int, unit: str | None = None) -> tuple[int, bytes]:
        """A track of a process, and what declares it the first time."""
        known = self._named.get((process, name))
        if known is not None:
            return known, b""
        track = self._named[process, name] = self._new_track()
        parent = self._of_process.get(process, 0)
        if unit is None:
            return track, self._events.track(track, parent, name, rank)
        return track, self._events.counter(track, parent, name, rank, unit)

    def _lane(self, process: Process, name: str, rank: int, begin: int, finish: int) -> tuple[int, bytes]:
        """The track of a slice that may overlap others of its kind."""
        lanes = self._lanes.get((process, name))
        if lanes is None:
            lanes = self._lanes[process, name] = _Lanes()
        lane, new = lanes.take(begin, finish)
        if not new:
            return self._lane_tracks[process, name, lane], b""
        track = self._lane_tracks[process, name, lane] = self._new_track()
        title = name if lane == 0 and name != "requests" else f"{name} {lane + 1}"
        return track, self._events.track(track, self._of_process.get(process, 0), title, rank + lane)

    def _head(self, track: int, name: str, category: str) -> bytes:
        head = self._heads.get((track, name))
        if head is None:
            head = self._heads[track, name] = self._events.slice_head(track, name, category)
        return head

    # -- one kind of row each ---------------------------------------------------------------------

    def _launches(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        names = ("round", "batch_size", "draft_nodes", "graph", "drafted", "accepted", "committed")
        for (host, pid, *values), begin, finish, start, end in _rows(batch, "host", "pid", *names):
            track, declared = self._lane((host, pid), "launches", 10, begin, finish)
            size, accepted = values[1], values[5]
            name = "launch" if not size or accepted is None else f"{accepted} accepted, batch of {size}"
            head = self._head(track, name, "launch")
            yield declared + self._events.slice(head, track, start, end, self._events.arguments(names, values))
        self.counts["launches"] += batch.num_rows

    def _phases(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        columns = ("host", "pid", "name", "attributes")
        for (host, pid, name, attributes), begin, finish, start, end in _rows(batch, *columns):
            track, declared = self._lane((host, pid), "phases", 30, begin, finish)
            head = self._head(track, (name or "span").removeprefix(OWN), "phase")
            found = _attributes(attributes)
            arguments = self._events.arguments(list(found), list(found.values())) if found else b""
            yield declared + self._events.slice(head, track, start, end, arguments)
        self.counts["phases"] += batch.num_rows

    def _requests(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        names = ("request_id", "prompt_tokens", "cached_tokens", "output_tokens", "temperature", "finish_reason")
        columns = ("host", "pid", "request_seq", "kind", *names)
        for (host, pid, seq, kind, *values), begin, finish, start, end in _rows(batch, *columns):
            track, declared = self._lane((host, pid), "requests", 1_000, begin, finish)
            self._request_tracks[host, pid, seq] = track
            title = f"request {seq}" + (f" ({kind})" if kind != "user" else "")
            head = self._events.slice_head(track, title, str(kind), once=True)
            yield declared + self._events.slice(head, track, start, end, self._events.arguments(names, values))
        self.counts["requests"] += batch.num_rows

    def _rounds(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        names = ("round", "request_round", "row", "committed")
        columns = ("host", "pid", "request_seq", "drafted", "accepted", *names)
        events = self._events
        for (host, pid, seq, drafted, accepted, *values), _, _, start, end in _rows(batch, *columns):
            track = self._request_tracks.get((host, pid, seq))
            if track is None:
                continue
            head = self._round_heads.get((track, accepted, drafted))
            if head is None:
                name = f"{_known(accepted)} of {_known(drafted)} accepted" if drafted else "nothing drafted"
                head = self._round_heads[track, accepted, drafted] = events.slice_head(track, name, "round")
            yield events.slice(head, track, start, end, events.arguments(names, values))
            self.counts["rounds"] += 1

    def _counters(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        shown = (
            ("accept length, last second", "tokens per round"), ("accept length", "tokens per round"),
            ("tokens per second", "tokens/s"), ("user requests in the launch", "requests"),
        )  # fmt: skip
        columns = ("host", "pid", "accept_length_1s", "accept_length", "tokens", "rounds")
        for (host, pid, *values), _, _, time, _ in _rows(batch, *columns):
            for rank, ((name, unit), value) in enumerate(zip(shown, values, strict=True)):
                if value is not None:
                    yield self._value((host, pid), name, rank, unit, time, value)

    def _totals(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for (host, pid, rounds, accepted), _, _, time, _ in _rows(batch, "host", "pid", "rounds", "accepted"):
            value = 1 + (accepted or 0) / rounds
            yield self._value((host, pid), "accept length, from the totals", 5, "tokens per round", time, value)

    def _value(self, process: Process, name: str, rank: int, unit: str, time: bytes, value: float) -> bytes:
        track, declared = self._track(process, name, rank, unit)
        self.counts["counter values"] += 1
        return declared + self._events.value(track, time, float(value))

    def _instants(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for (host, pid, kind, detail), _, _, time, _ in _rows(batch, "host", "pid", "kind", "detail"):
            track, declared = self._track((host, pid), "events", 50)
            arguments = self._events.arguments(("detail",), (detail[:MAX_ARGUMENT] if detail else None,))
            yield declared + self._events.instant(track, time, kind or "event", "event", arguments)
        self.counts["events"] += batch.num_rows


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _rows(batch: pa.RecordBatch, *names: str) -> Iterator[tuple[tuple[Any, ...], int, int, bytes, bytes]]:
    """Values of these columns, begin and finish of each row, and both of them encoded; finish is begin without one."""
    begins = _integers(batch.column("begin"))
    finishes = np.maximum(begins, _integers(batch.column("finish"))) if "finish" in batch.schema.names else begins
    values = zip(*(_list(batch.column(name)) for name in names), strict=True)
    return zip(
        values, begins.tolist(), finishes.tolist(), timestamps(begins), timestamps(finishes), strict=True
    )  # fmt: skip


def _integers(column: Any) -> Ints:
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _list(column: Any) -> list[Any]:
    """Values of a column; `to_pylist` makes an object of each value on its own, which takes ten times as long."""
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        return [None if index is None else texts[index] for index in _list(encoded.indices)]
    if column.null_count or not pa.types.is_integer(column.type):
        return column.to_pylist()
    return column.to_numpy().tolist()


def _attributes(text: str | None) -> Mapping[str, Arg]:
    """Attributes of a span as arguments, without the `eagle.` of our own."""
    if not text or text == "{}":
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"attributes": text[:MAX_ARGUMENT]}
    if not isinstance(found, dict):
        return {}
    return {
        str(k).removeprefix(OWN): v if isinstance(v, int | float | bool) else str(v)[:MAX_ARGUMENT]
        for k, v in found.items()
        if v is not None
    }
