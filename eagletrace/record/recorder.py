"""The recorder of one process: a bounded queue that the engine's thread appends to, and one thread that writes.

Appending never blocks, formats or raises. What does not fit is dropped and counted by reason.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import (
    Columns,
    Ints,
    RoundPacket,
    add_hidden_rows,
    add_node_rows,
    add_round_rows,
    verdicts,
)
from eagletrace.record.spans import SpanBuilder
from eagletrace.record.totals import Totals
from eagletrace.record.writer import MERGE_AFTER_S, TraceWriter
from eagletrace.settings import Settings

logger = logging.getLogger("eagletrace")

QUEUE_LIMIT = 20_000  # rows and launches; a launch holds a few hundred bytes a request
QUEUE_NODES = 4_000_000  # nodes of queued launches: about 100 bytes each, in pinned memory where there is a GPU
SLICE_NODES = 65_536  # and nodes, of the trees of a large batch
SLICE = 256  # launches turned into rows at once: longer conversions would hold the GIL for milliseconds


class Recorder:
    """Collects rows and writes them at least every `settings.flush_s` seconds."""

    def __init__(
        self, folder: Path, settings: Settings, process: Mapping[str, Any], resource: Mapping[str, Any]
    ) -> None:
        self.folder, self.settings = folder, settings
        self.writer = TraceWriter(folder, process)
        self._queue: deque[tuple[str, Any]] = deque()
        self._dropped: dict[str, int] = {}
        self._nodes_queued = self._nodes_taken = 0  # each counted by one thread alone
        self._totals = Totals()
        self._unwritten_totals: list[dict[str, Any]] = []
        self._spans = SpanBuilder(resource)
        self._wake, self._idle = threading.Event(), threading.Condition()
        self._asked = self._done = 0
        self._stop = False
        self._warned = False
        self._key = _redaction_key(settings)
        self._hashes: dict[int, int] = {}
        self._types = {name: {f.name: f.type for f in arrow_schema(table)} for name, table in TABLES.items()}
        self._thread: threading.Thread | None = None
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
        """Queue one finished launch."""
        if self._nodes_queued - self._nodes_taken >= QUEUE_NODES:
            self._dropped["#launch"] = self._dropped.get("#launch", 0) + 1
            return
        if self._put("#launch", packet):
            self._nodes_queued += size(packet)

    def request(self, state: RequestState) -> None:
        """Queue the present state of a request."""
        self._put("#request", state)

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
        self._thread = threading.Thread(target=self._run, name="eagletrace", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what is queued and end the thread."""
        atexit.unregister(self.stop)
        self._stop = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        merged = time.monotonic()
        while True:
            self._wake.wait(self.settings.flush_s * 0.8)
            self._wake.clear()
            with self._idle:
                ticket = self._asked
            last = self._stop
            try:
                self._write_queued()
                if time.monotonic() - merged > MERGE_AFTER_S:
                    self.writer.merge()
                    merged = time.monotonic()
                self._count_dropped(self.writer.enforce(self.settings.max_bytes), "disk bound")
            except Exception as error:  # noqa: BLE001 - telemetry must not die, nor take the server along
                self._failed(error, "upkeep", 1)
            with self._idle:
                self._done = ticket
                self._idle.notify_all()
            if last and not self._queue:
                return

    def _failed(self, error: Exception, what: str, rows: int) -> None:
        if not self._warned:
            self._warned = True
            text = "eagletrace: cannot write %s to %s: %s; serving goes on, rows are lost"
            logger.warning(text, what, self.folder, error)
        if rows:
            self._totals.dropped[f"write failed: {what}"] += rows

    def _count_dropped(self, rows: Mapping[str, int], reason: str) -> None:
        for table, count in rows.items():
            self._totals.dropped[f"{reason}: {table}"] += count
            self.event("rows_dropped", table=table, rows=count, reason=reason)

    def _write_queued(self) -> None:
        self._report()
        launches, tables, requests = self._take_queued()
        for table, rows in tables.items():
            self._write(table, rows)
        for part in slices(launches):
            self._write_launches(part)
            time.sleep(0)
        now = time.time_ns()
        self._write("requests", [state.row(now, self._key) for state in requests.values()])
        for state in requests.values():
            if state.end_ns is not None and state.sampled:
                self._spans.request(state)
        self._write("spans", self._spans.take())
        total = self._totals.take(now)
        if total is not None:
            self._unwritten_totals.append(total)
        if self._write("totals", self._unwritten_totals):
            self._unwritten_totals.clear()

    def _report(self) -> None:
        try:
            if self.on_flush is not None:
                self.on_flush()
        except Exception as error:  # noqa: BLE001 - rows of others are still to be written
            self._failed(error, "hooks", 1)

    def _take_queued(self) -> tuple[list[RoundPacket], dict[str, list[dict[str, Any]]], dict[int, RequestState]]:
        """What is queued now: launches, rows by table, and requests in their latest state."""
        launches: list[RoundPacket] = []
        tables: dict[str, list[dict[str, Any]]] = {}
        requests: dict[int, RequestState] = {}
        for _ in range(len(self._queue)):
            what, value = self._queue.popleft()
            if what == "#launch":
                launches.append(value)
                self._nodes_taken += size(value)
            elif what == "#request":
                requests[value.seq] = value
            elif what == "#phase":
                self._spans.phase(*value)
            elif what == "#prefilled":
                self._add_prefilled(tables, *value)
            else:
                tables.setdefault(what, []).append(value)
        self._count_dropped({what.lstrip("#"): self._dropped.pop(what) for what in list(self._dropped)}, "queue full")
        return launches, tables, requests

    def _write(self, table: str, rows: list[dict[str, Any]]) -> bool:
        """Write rows of one table; a failure costs these rows alone (totals are written later)."""
        try:
            self.writer.write(table, [_json_columns(table, row) for row in rows] if table in _WITH_JSON else rows)
        except Exception as error:  # noqa: BLE001 - the other tables may still be written
            self._failed(error, table, 0 if table == "totals" else len(rows))
            return False
        return True

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
        out = {name: Columns() for name in ("rounds", "drafts", "verifies", "hidden")}
        detail = self.settings.level != "contract"
        for packet in launches:
            try:
                self._add_launch(out, packet, detail=detail)
            except Exception as error:  # noqa: BLE001, PERF203 - the others may be read
                self._failed(error, "launch", 1)
        for table, columns in out.items():
            if columns.rows:
                types = self._types[table]
                try:
                    self.writer.write_columns(table, columns.arrow(types.__getitem__), columns.rows)
                except Exception as error:  # noqa: BLE001 - as in _write
                    self._failed(error, table, columns.rows)

    def _add_launch(self, out: Mapping[str, Columns], packet: RoundPacket, *, detail: bool) -> None:
        seen = verdicts(packet)
        if seen is not None:
            self._totals.add(packet, seen)
        keep = np.array([r.sampled for r in packet.requests], dtype=np.bool_)
        if not detail or not keep.any():
            return
        add_round_rows(out["rounds"], packet, seen, keep)
        if seen is not None:
            add_node_rows(out["drafts"], out["verifies"], packet, seen, keep, self._tokens, self._key is not None)
        add_hidden_rows(out["hidden"], packet, keep)
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


def size(packet: RoundPacket) -> int:
    """Nodes of a launch."""
    return len(packet.requests) * packet.nodes


def slices(launches: list[RoundPacket]) -> Iterator[list[RoundPacket]]:
    """Runs of at most `SLICE` launches and, unless one alone has more, `SLICE_NODES` nodes."""
    part: list[RoundPacket] = []
    nodes = 0
    for packet in launches:
        if part and (len(part) >= SLICE or nodes + size(packet) > SLICE_NODES):
            yield part
            part, nodes = [], 0
        part.append(packet)
        nodes += size(packet)
    if part:
        yield part


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
