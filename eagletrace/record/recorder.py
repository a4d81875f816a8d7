"""The recorder of one process: a bounded queue that the engine's thread appends to, and one thread that writes.

Appending never blocks, formats or raises. What does not fit is dropped and counted by reason.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record import live_otlp
from eagletrace.record.disk import Disk
from eagletrace.record.launch_rows import Columns, add_hidden_rows, add_node_rows, add_round_rows, of_requests
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import Ints, RoundPacket
from eagletrace.record.spans import SpanBuilder
from eagletrace.record.tensor_rows import Stored, size
from eagletrace.record.tensor_rows import slices as tensor_slices
from eagletrace.record.totals import Totals
from eagletrace.record.trees import Trees, alike, read
from eagletrace.record.writer import TraceWriter
from eagletrace.settings import Settings

logger = logging.getLogger("eagletrace")

QUEUE_LIMIT = 20_000  # rows that wait
QUEUE_BYTES = 24 << 20  # about what waiting launches may hold, in pinned memory where there is a GPU
TENSOR_BYTES = 32 << 20  # of tensors in one file
COUNTS_LIMIT = 20_000  # launches of which only counts are kept
# Launches are turned into rows so many nodes at a time, with a pause between: the engine's thread waits for the GIL
# for as long as one such step takes.
SLICE_NODES = 2048
SAMPLED = attrgetter("sampled")
PAUSE_S = 50e-6
HOLD_NS = 10_000_000_000  # a launch waits no longer for values that are computed with those of later ones
WARN_AGAIN_S = 600.0  # another outage is worth another warning; a disk that comes and goes is not worth many
EXIT_S = 1.2  # what stopping may delay an exit by; with the flush of a crash it stays below two seconds
UPKEEP_AGAIN_S = 60.0  # after merging failed
LARGE = ("param_values",)  # facts too large to wait for a disk that fails
LAUNCH_TABLES = ("rounds", "drafts", "verifies", "hidden")


class Recorder:
    """Collects rows and writes them at least every `settings.flush_s` seconds."""

    def __init__(
        self, folder: Path, settings: Settings, process: Mapping[str, Any], resource: Mapping[str, Any]
    ) -> None:
        self.folder, self.settings = folder, settings
        self.writer = TraceWriter(folder, process, settings.max_bytes)
        self._disk = Disk(self.writer, self._failed, self._count, pause=_pause)
        self._upkeep_steps: Iterator[None] | None = None
        self._upkeep_from = 0.0
        self._queue: deque[tuple[str, Any]] = deque()
        self._dropped: dict[str, int] = {}
        self._launches: deque[RoundPacket] = deque()
        self._bytes_queued, self._queue_lock = 0, threading.Lock()
        self._bytes_taken = 0  # of them
        self._counts: deque[tuple[list[RequestState], list[int], list[bool], int]] = deque()
        self._tensors: deque[Stored] = deque()
        self.tensor_bytes = self._tensor_bytes_taken = 0  # handed over so far, and taken to be written
        self.tensors_lost: set[int] = set()  # requests (by number) some of whose tensors no file took
        self._totals = Totals()
        self._folded, self._fold_lock = Totals(), threading.Lock()
        self.draft_id_of: Ints | None = None  # [V], the served vocabulary map: -1 where the draft has no such token
        self._spans = SpanBuilder(resource)
        self._wake, self._idle = threading.Event(), threading.Condition()
        self._asked = self._done = 0
        self._stop = False
        self._warned: dict[bool, float] = {}  # when, of the disk (True) and of anything else
        self._key = _redaction_key(settings)
        self._hashes: dict[int, int] = {}
        self._types = {name: {f.name: f.type for f in arrow_schema(table)} for name, table in TABLES.items()}
        self._thread: threading.Thread | None = None
        self._otlp: live_otlp.LiveOtlp | None = None
        self.on_flush: Callable[[], None] | None = None

    # -- called by the engine's thread ------------------------------------------------------------

    def row(self, table: str, /, **values: Any) -> None:
        """Queue one row of a table."""
        self._put(table, values)

    def event(self, kind: str, /, **detail: Any) -> None:
        """Queue one event."""
        self._put("events", {"time_unix_nano": time.time_ns(), "kind": kind, "detail": detail})

    def fact(self, key: str, actual: Any, expected: Any = None, source: str | None = None) -> None:
        """Queue one load-time fact of the `contract` table."""
        self._put(
            "contract",
            {"key": key, "actual": actual, "expected": expected, "source": source, "time_unix_nano": time.time_ns()},
        )

    def launch(self, packet: RoundPacket) -> None:
        """Queue one finished launch. Of what does not fit, the oldest, the counts are kept and the rows dropped."""
        self._launches.append(packet)
        with self._queue_lock:
            self._bytes_queued += packet.bytes
        while self._bytes_queued - self._bytes_taken > QUEUE_BYTES and self._fold():
            pass

    def tensors(self, rows: Sequence[Stored]) -> None:
        """Queue rows of `tensors`. The caller bounds them, by `tensor_bytes` and `tensor_bytes_waiting`."""
        self._tensors.extend(rows)
        self.tensor_bytes += size(rows)

    def not_recorded(self, table: str, reason: str) -> None:
        """Count something that a bound keeps out of a table."""
        with self._fold_lock:
            self._folded.dropped[f"{reason}: {table}"] += 1

    @property
    def tensor_bytes_waiting(self) -> int:
        """Bytes of tensors that are not written yet."""
        return self.tensor_bytes - self._tensor_bytes_taken

    def counts(self, requests: list[RequestState], correct: list[int], counted: list[bool], steps: int) -> None:
        """Count a launch of chains of `steps` drafts, of which only the numbers of correct drafts are wanted."""
        self._counts.append((requests, correct, counted, steps))
        if len(self._counts) > COUNTS_LIMIT:
            with self._fold_lock:
                self._add_counts(self._folded, self._counts.popleft())

    def chains(self, histogram: Sequence[int], steps: int) -> None:
        """Count rounds of chains of `steps` drafts of user requests: in `histogram[n]` of them n drafts were correct.

        Called by the background thread, when it asks what there is to write, or by any other.
        """
        with self._fold_lock:
            self._folded.add_chains(histogram, steps)

    def _fold(self) -> bool:
        """Keep only the counts of the oldest launch that waits; False if there is none, or its values are not here."""
        try:
            packet = self._launches.popleft()
        except IndexError:
            return False
        waits = any(not part.together.closed for part in packet.drafted)
        if waits or (packet.values is not None and not packet.values.ready()):
            self._launches.appendleft(packet)
            return False
        with self._queue_lock:
            self._bytes_queued -= packet.bytes
        with self._fold_lock:
            trees = read([packet])
            if trees is not None:
                self._folded.add([packet], trees)
            kept = sum(r.sampled for r in packet.requests) if self.settings.level != "contract" else 0
            rows = {"rounds": kept, "drafts": kept * (packet.nodes - 1), "verifies": kept * packet.nodes}
            for table, count in rows.items():
                if trees is not None and count:
                    self._folded.dropped[f"queue full: {table}"] += count
        return True

    @staticmethod
    def _add_counts(totals: Totals, waiting: tuple[list[RequestState], list[int], list[bool], int]) -> None:
        requests, correct, counted, steps = waiting
        if len(correct) != len(requests):
            return
        user = [n for r, n, c in zip(requests, correct, counted, strict=False) if c and r.kind == "user"]
        if user:
            totals.add_chains(np.bincount(user).tolist(), steps)

    def request(self, state: RequestState) -> None:
        """Queue the present state of a request."""
        self._put("#request", (state, state.end_ns is not None))

    def prefilled(self, round_: int, state: RequestState, position: int, token: int) -> None:
        """Queue a token that a prefill gave and no verify launch will have as its root."""
        self._put("#prefilled", (round_, state, position, token, time.time_ns()))

    def phase(
        self, name: str, start_ns: int, end_ns: int, requests: list[RequestState], attributes: dict[str, Any]
    ) -> None:
        """Queue the span of a batch phase outside a verify launch, such as a prefill."""
        self._put("#phase", (name, start_ns, end_ns, requests, attributes))

    def _put(self, what: str, value: Any) -> bool:
        if len(self._queue) >= QUEUE_LIMIT:
            self._dropped[what] = self._dropped.get(what, 0) + 1
            return False
        self._queue.append((what, value))
        return True

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Write what is queued now; waits at most `timeout_s`. For load time and for a dying engine only."""
        if self._thread is None or not self._thread.is_alive():
            return False
        with self._idle:
            self._asked += 1
            ticket = self._asked
            self._wake.set()
            return self._idle.wait_for(lambda: self._done >= ticket, timeout_s)

    # -- the background thread --------------------------------------------------------------------

    def start(self) -> None:
        """Start the background thread; what is queued is written when the interpreter exits."""
        atexit.register(self.stop)
        _forget_in_children(self)
        self._thread = threading.Thread(target=self._run, name="eagletrace", daemon=True)
        self._thread.start()
        self._otlp = live_otlp.start(self.event)

    def stop(self, timeout_s: float = EXIT_S) -> None:
        """Write what is queued and end the thread; a disk that hangs delays an exit by no more than `timeout_s`."""
        atexit.unregister(self.stop)
        until = time.monotonic() + timeout_s
        self._stop = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        if self._otlp is not None:
            self._otlp.stop(min(live_otlp.STOP_S, max(0.0, until - time.monotonic())))

    @property
    def stopping(self) -> bool:
        """Whether what is queued now is written for the last time."""
        return self._stop

    def forget(self) -> None:
        """In a fork: only the parent has the thread that writes. Nothing is kept here, and nothing is written."""
        atexit.unregister(self.stop)
        self._thread = self._otlp = None
        self._queue, self._launches, self._counts = deque(maxlen=0), deque(maxlen=0), deque(maxlen=0)
        self._tensors = deque(maxlen=0)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # never preempts the engine's threads when it wakes
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        due = time.monotonic() + self.settings.flush_s * 0.8
        while True:
            self._wake.wait(max(due - time.monotonic(), 0.0))
            self._wake.clear()
            due = time.monotonic() + self.settings.flush_s * 0.8
            with self._idle:
                forced = self._asked > self._done
                ticket = self._asked
            last = self._stop
            try:
                self._write_queued(forced=forced or last)
            except Exception as error:  # noqa: BLE001 - telemetry must not die, nor take the server along
                self._failed(error, "upkeep", 1)
            with self._idle:
                self._done = ticket
                self._idle.notify_all()
            if last and not self._queue and not self._launches and not self._tensors:
                return
            self._upkeep(due)

    def _upkeep(self, until: float) -> None:
        """Merge and clear up in short steps, with pauses as long as they, until the next flush is due."""
        while not self._wake.is_set() and self._disk.takes_detail():
            began = time.monotonic()
            if max(self._upkeep_from, began) >= until:
                return
            try:
                self._upkeep_steps = self._upkeep_steps or self.writer.upkeep()
                next(self._upkeep_steps)
            except StopIteration:
                self._upkeep_steps = None
                return
            except Exception as error:  # noqa: BLE001 - the files stay as they are
                self._upkeep_steps = None
                self._upkeep_from = time.monotonic() + UPKEEP_AGAIN_S
                self._failed(error, "merged rows", 0)
            self._wake.wait(min(time.monotonic() - began, max(until - time.monotonic(), 0.0)))

    def _failed(self, error: BaseException, what: str, rows: int) -> None:
        of_disk, now = isinstance(error, OSError), time.monotonic()
        if now - self._warned.get(of_disk, float("-inf")) > WARN_AGAIN_S:
            self._warned[of_disk] = now
            text = "eagletrace: cannot write %s to %s: %s; serving goes on, rows are lost"
            logger.warning(text, what, self.folder, error)
        if rows:
            self._count(f"write failed: {what}", rows)

    def _count(self, reason: str, rows: int) -> None:
        self._totals.dropped[reason] += rows

    def _count_dropped(self, rows: Mapping[str, int], reason: str) -> None:
        for table, count in rows.items():
            self._count(f"{reason}: {table}", count)
            self.event("rows_dropped", table=table, rows=count, reason=reason)

    def _write_queued(self, *, forced: bool = False) -> None:
        self._report()
        launches, tables, requests = self._take_queued()
        for table, rows in tables.items():
            self._write(table, rows)
        self._write_launches(launches)
        tensors_of = self._write_tensors()
        now = time.time_ns()
        self._write("requests", [state.row(now, self._key) for state in requests.values()])
        spans, count = self._spans.take()
        self._write_columns("spans", spans, count)
        if self._otlp is not None:
            self._otlp.offer(spans, count)
        self._disk.flush(forced=forced)
        if not self._disk.takes_detail():
            self.tensors_lost |= tensors_of
        total = self._totals.take(now)
        if total is not None:
            self._disk.facts("totals", [total])
        if self._disk.takes_detail():
            self._disk.write_facts()

    def _report(self) -> None:
        try:
            if self.on_flush is not None:
                self.on_flush()
        except Exception as error:  # noqa: BLE001 - rows of others are still to be written
            self._failed(error, "hooks", 1)

    def _take_queued(self) -> tuple[list[RoundPacket], dict[str, list[dict[str, Any]]], dict[int, RequestState]]:
        """What is queued now: launches, rows by table, and requests in their latest state."""
        launches: list[RoundPacket] = []
        young = time.time_ns() - HOLD_NS
        for _ in range(len(self._launches)):
            try:
                packet = self._launches.popleft()
            except IndexError:  # the engine's thread folded it
                break
            if packet.start_ns > young and not self._stop and any(not d.together.closed for d in packet.drafted):
                self._launches.appendleft(packet)  # its facts are about to be computed
                break
            self._bytes_taken += packet.bytes
            launches.append(packet)
        for _ in range(len(self._counts)):
            with contextlib.suppress(IndexError):
                self._add_counts(self._totals, self._counts.popleft())
        with self._fold_lock:
            folded, self._folded = self._folded, Totals()
        self._totals.merge(folded)
        tables: dict[str, list[dict[str, Any]]] = {}
        requests: dict[int, RequestState] = {}
        for _ in range(len(self._queue)):
            what, value = self._queue.popleft()
            if what == "#request":
                state, finished = value
                requests[state.seq] = state
                if finished and state.sampled:  # not by its present end: it may have finished since it was queued
                    self._spans.request(state)
            elif what == "#phase":
                self._spans.phase(*value)
            elif what == "#prefilled":
                self._add_prefilled(tables, *value)
            else:
                tables.setdefault(what, []).append(value)
        self._count_dropped({what.lstrip("#"): self._dropped.pop(what) for what in list(self._dropped)}, "queue full")
        return launches, tables, requests

    def _write(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Hand rows of one table to the disk; a failure costs these rows alone."""
        try:
            rows = [_json_columns(table, row) for row in rows] if table in _WITH_JSON else rows
            if TABLES[table].detail or table in LARGE:
                self._disk.rows(table, rows)
            elif rows:
                self._disk.facts(table, rows)
        except Exception as error:  # noqa: BLE001 - the other tables may still be written
            self._failed(error, table, len(rows))

    def _write_columns(self, table: str, columns: Mapping[str, Any], rows: int) -> None:
        try:
            self._disk.columns(table, columns, rows)
        except Exception as error:  # noqa: BLE001 - as in _write
            self._failed(error, table, rows)

    def _add_prefilled(
        self,
        tables: dict[str, list[dict[str, Any]]],
        round_: int,
        state: RequestState,
        position: int,
        token: int,
        now: int,
    ) -> None:
        """A round that is not one: its root alone, not counted, `request_round` 0."""
        if not state.sampled or self.settings.level == "contract":
            return
        shown = int(self._tokens(np.array([token], dtype=np.int64))[0])
        tables.setdefault("rounds", []).append({
            "round": round_, "request_round": 0, "request_seq": state.seq, "request_id": state.rid,
            "position": position, "cached_tokens": state.cached_tokens, "drafted": 0, "accepted": 0, "committed": 0,
            "counted": False, "time_unix_nano": now,
        })  # fmt: skip
        tables.setdefault("verifies", []).append({
            "round": round_, "request_seq": state.seq, "node": 0, "depth": 0, "position": position,
            "draft_token": shown, "reached": True,
        })  # fmt: skip

    def _write_launches(self, launches: list[RoundPacket]) -> None:
        out = {name: Columns() for name in LAUNCH_TABLES}
        for group in alike(launches):
            for part in slices(group):
                self._add_part(out, part)
                _pause()
        for table, columns in out.items():
            if columns.rows:
                types = self._types[table]
                self._write_columns(table, columns.arrow(types.__getitem__), columns.rows)
                _pause()

    def _write_tensors(self) -> set[int]:
        """Hand queued tensors to the disk, at most `TENSOR_BYTES` of them; returns the numbers of their requests."""
        rows, held = list[Stored](), 0
        while self._tensors and (held < TENSOR_BYTES or self._stop):
            rows.append(self._tensors.popleft())
            held += rows[-1].bytes
        for part in tensor_slices(rows):
            self._write("tensors", [row.row() for row in part])
            _pause()
        self._tensor_bytes_taken += held
        if self._tensors:
            self._wake.set()  # the rest at once
        return {row.request_seq for row in rows}

    def _add_part(self, out: Mapping[str, Columns], part: list[RoundPacket]) -> None:
        try:
            trees = read(part)
        except Exception as error:  # noqa: BLE001 - one of them cannot be read: it alone is lost
            if len(part) == 1:
                self._failed(error, "launch", 1)
                return
            for packet in part:
                self._add_part(out, [packet])
            return
        _pause()
        try:
            self._add_launches(out, part, trees)
        except Exception as error:  # noqa: BLE001 - the others may be turned into rows
            self._failed(error, "launch", len(part))

    def _add_launches(self, out: Mapping[str, Columns], packets: list[RoundPacket], trees: Trees | None) -> None:
        """Rows of launches that were read together."""
        if trees is not None:
            self._totals.add(packets, trees)
        elif packets[0].nodes:  # a verdict was seen, and could not be read
            self._count("not read: verdicts", len(packets))
        keep = of_requests(packets, SAMPLED, np.bool_)
        if self.settings.level == "contract" or not keep.any():
            return
        add_round_rows(out["rounds"], packets, trees, keep)
        _pause()
        if trees is not None:
            add_node_rows(
                out["drafts"], out["verifies"], packets, trees, keep, self._tokens, self.draft_id_of,
                self._key is not None,
            )  # fmt: skip
            _pause()
        bs = len(packets[0].requests)
        for number, packet in enumerate(packets):
            if packet.hidden:
                add_hidden_rows(out["hidden"], packet, keep[number * bs : (number + 1) * bs])
            self._spans.launch(packet)

    def _tokens(self, ids: Ints) -> Ints:
        """Token ids, or their keyed 64-bit hashes in a redacted trace."""
        if self._key is None:
            return ids
        return np.array([self._hashed(int(i)) for i in ids], dtype=np.int64)

    def _hashed(self, token: int) -> int:
        value = self._hashes.get(token)
        if value is None:
            digest = hashlib.blake2b(token.to_bytes(8, "big", signed=True), digest_size=8, key=self._key or b"")
            value = self._hashes[token] = int.from_bytes(digest.digest(), "big", signed=True)
        return value


def _pause() -> None:
    """Let the engine's thread have the GIL: it takes it where it is free for as long as waking up takes."""
    time.sleep(PAUSE_S)


def _forget_in_children(recorder: Recorder) -> None:
    here = weakref.ref(recorder)

    def forget() -> None:
        if (alive := here()) is not None:
            alive.forget()

    os.register_at_fork(after_in_child=forget)


def slices(launches: list[RoundPacket]) -> Iterator[list[RoundPacket]]:
    """Runs of launches of one shape, of at most `SLICE_NODES` nodes unless one alone has more."""
    step = max(1, SLICE_NODES // max(1, len(launches[0].requests) * launches[0].nodes))
    for start in range(0, len(launches), step):
        yield launches[start : start + step]


def _redaction_key(settings: Settings) -> bytes | None:
    if not settings.redact:
        return None
    return hashlib.blake2b((settings.redact_key or os.urandom(32).hex()).encode(), digest_size=32).digest()


_JSON = {name: {c.name for c in table.columns if c.type == "json"} for name, table in TABLES.items()}


_WITH_JSON = ("contract", "events", "checkpoint_keys")  # rows of these come with values instead of JSON text


def _json_columns(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Encode the JSON columns of a row; NULL stays NULL."""
    return {
        name: json.dumps(value, default=str) if name in _JSON[table] and value is not None else value
        for name, value in row.items()
    }
