"""Rows that must not be lost while the disk takes none: facts, events, requests and totals, in bounded memory.

Totals are summed up when they become many. Of the others what does not fit is given up, and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import zip_longest
from typing import Any

Row = dict[str, Any]
MAX_BYTES = 6 << 20
ROW_BYTES = 800  # of a row of small values, as Python holds it
TOTALS_KEPT = 60  # rows of totals that wait before they are summed up
LOAD_TIME = ("contract", "params", "checkpoint_keys")  # kept to be written again when the folder was deleted
LOAD_TIME_BYTES = 4 << 20
_SUMS = ("rounds", "drafted", "accepted")
_SUMS_BY_DEPTH = ("reached_by_depth", "accepted_by_depth", "correct_drafts_histogram")


class Backlog:
    """Rows by table that wait to be written."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.lost: Counter[str] = Counter()  # rows that did not fit, by table, until somebody takes them
        self._bytes = 0
        self._load_time: list[tuple[str, Row]] = []
        self._load_time_bytes = 0

    def add(self, table: str, rows: list[Row]) -> None:
        """Keep rows; those that do not fit are counted in `lost`, totals always fit."""
        waiting = self.rows.setdefault(table, [])
        if table == "totals":
            waiting.extend(rows)
            if len(waiting) > TOTALS_KEPT:
                self.rows[table] = [summed(waiting)]
            return
        for row in rows:
            size = _size(row)
            if self._bytes + size > MAX_BYTES:
                self.lost[table] += 1
                continue
            waiting.append(row)
            self._bytes += size
            if table in LOAD_TIME and self._load_time_bytes + size <= LOAD_TIME_BYTES:
                self._load_time_bytes += size
                self._load_time.append((table, row))

    def written(self, table: str) -> None:
        """Forget the rows of a table."""
        rows = self.rows.pop(table, [])
        if table != "totals":
            self._bytes -= sum(_size(row) for row in rows)

    def again(self) -> None:
        """Queue the load-time facts once more: the folder that had them was deleted."""
        facts, self._load_time, self._load_time_bytes = self._load_time, [], 0
        for table, row in facts:
            if not any(row is waiting for waiting in self.rows.get(table, [])):
                self.add(table, [row])


def _size(row: Row) -> int:
    return ROW_BYTES + sum(len(value) for value in row.values() if isinstance(value, str | bytes))


def summed(rows: list[Row]) -> Row:
    """Several intervals of totals as one, at the time of the last."""
    dropped: Counter[str] = Counter()
    for row in rows:
        dropped.update(json.loads(row.get("dropped_rows_by_reason") or "{}"))
    return {
        "time_unix_nano": rows[-1]["time_unix_nano"],
        **{name: sum(row[name] for row in rows) for name in _SUMS},
        **{name: [sum(v) for v in zip_longest(*(row[name] for row in rows), fillvalue=0)] for name in _SUMS_BY_DEPTH},
        "dropped_rows_by_reason": json.dumps(dropped) if dropped else None,
    }
