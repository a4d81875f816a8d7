"""Between the recorder and its writer: what happens while the disk takes no rows, and how that is told.

Facts, events, requests and totals wait for the disk in bounded memory; rows of detail are dropped and counted. There
is one warning, an event `recording_stopped`, and `recording_resumed` with what was lost once it can write again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from eagletrace.format import TABLES
from eagletrace.record.backlog import Backlog, Row
from eagletrace.record.outage import STALL_S, Outage
from eagletrace.record.writer import TraceWriter

Failed = Callable[[BaseException, str, int], None]  # error, table, rows lost
Count = Callable[[str, int], None]  # reason, rows


class Disk:
    """Writes what the recorder hands over. `failed` warns and counts, `count` counts, `pause` waits a moment between
    two files; none of them may raise."""

    def __init__(
        self, writer: TraceWriter, failed: Failed, count: Count, pause: Callable[[], None] = lambda: None
    ) -> None:
        self.writer, self._failed, self._count, self._pause = writer, failed, count, pause
        self.backlog, self.outage = Backlog(), Outage()

    def facts(self, table: str, rows: list[Row]) -> None:
        """Keep rows of a table that is never given up until they are written."""
        self.backlog.add(table, rows)

    def event(self, kind: str, **detail: Any) -> None:
        """Keep an event of the disk itself."""
        row = {"time_unix_nano": time.time_ns(), "kind": kind, "detail": json.dumps(detail, default=str)}
        self.backlog.add("events", [row])

    def rows(self, table: str, rows: list[Row]) -> None:
        """Hand over rows of detail; `flush` writes or drops them."""
        names = [c.name for c in TABLES[table].columns]
        self.columns(table, {name: [row.get(name) for row in rows] for name in names}, len(rows))

    def columns(self, table: str, columns: Mapping[str, Any], rows: int) -> None:
        """Hand over columns of detail; `flush` writes or drops them."""
        self.writer.add_columns(table, columns, rows)

    def flush(self, *, forced: bool = False) -> None:
        """Write what was handed over, unless the disk failed a moment ago; `forced` tries all the same."""
        began = time.monotonic()
        if forced or self.outage.may_try():
            stopped = self.outage.began is not None
            if self.write_facts() and stopped:
                self._resumed()
        for table, rows, error in self.writer.publish(self.takes_detail):
            self._pause()
            if error is not None or not self.takes_detail():
                self._lost(table, rows, error)
        for table in list(self.writer.lost):
            self._given_up(table, self.writer.lost.pop(table), "disk bound")
        for table in list(self.backlog.lost):
            self._given_up(table, self.backlog.lost.pop(table), "write failed")
        if self.writer.folder_was_deleted:
            self._folder_was_deleted()
        self._watch(time.monotonic() - began)

    def write_facts(self) -> bool:
        """Write the facts that wait; False if the disk does not take all of them."""
        taken = True
        for table in list(self.backlog.rows):
            try:
                self.writer.write(table, self.backlog.rows[table])
            except OSError as error:
                self._stopped(error, table)
                taken = False
                continue
            except Exception as error:  # noqa: BLE001 - rows that no file can hold
                self._failed(error, table, len(self.backlog.rows[table]))
            self.backlog.written(table)
        return taken

    def takes_detail(self) -> bool:
        """Whether rows of detail are written at present."""
        return self.outage.began is None

    def _lost(self, table: str, rows: int, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self._stopped(error, table)
        elif error is not None:
            self._failed(error, table, rows)
            return
        self.outage.lost[table] += rows
        self._count(f"write failed: {table}", rows)

    def _stopped(self, error: OSError, table: str) -> None:
        if self.outage.failed():
            self._failed(error, table, 0)
            self.event("recording_stopped", reason=str(error), table=table)

    def _resumed(self) -> None:
        lost = dict(self.outage.lost)
        self.event("recording_resumed", seconds=round(self.outage.over(), 3), rows_lost=lost)
        for table, rows in lost.items():
            self.event("rows_dropped", table=table, rows=rows, reason="write failed")

    def _given_up(self, table: str, rows: int, reason: str) -> None:
        self._count(f"{reason}: {table}", rows)
        self.event("rows_dropped", table=table, rows=rows, reason=reason)

    def _folder_was_deleted(self) -> None:
        self.writer.folder_was_deleted = False
        error = FileNotFoundError("the run folder was deleted while it was recorded into; it was created again")
        self._failed(error, "rows", 0)
        self.event("recording_stopped", reason=str(error), table=None)
        self.event("recording_resumed", seconds=0.0, rows_lost=None)
        self.backlog.again()

    def _watch(self, seconds: float) -> None:
        """A disk that hung gives no error: what did not fit meanwhile was dropped at the queue."""
        if seconds < STALL_S or self.outage.began is not None:
            return
        error = TimeoutError(f"the disk took {seconds:.0f} s for one write")
        self._failed(error, "rows", 0)
        self.event("recording_stopped", reason=str(error), table=None)
        self.event("recording_resumed", seconds=round(seconds, 3), rows_lost=None)
