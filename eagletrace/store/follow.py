"""Reads the new rows of one table, time after time, while a server writes and merges its files.

Only files that were not read before are opened. A file that merging made of files already read is passed over; of one
that holds both, and of one that was taken over from a dead process, only rows later than those already read count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.store.files import ATTEMPTS, NAME, stable_listing
from eagletrace.store.places import open_file, open_folder

PROCESS = ("host", "pid", "tp_rank")


class TableFollower:
    """Follows the columns of one table. `time` is the column that orders the rows of a process."""

    def __init__(self, run_dir: Path, table: str, columns: tuple[str, ...], time: str = "time_unix_nano") -> None:
        self._run_dir, self._table, self._time = run_dir, table, time
        self._fields = [field for field in arrow_schema(TABLES[table]) if field.name in {*PROCESS, *columns, time}]
        self._seen = set[str]()
        self._read_up_to: dict[str, int] = {}  # by writer, the number of the last file that was read
        self._latest: dict[tuple[Any, Any], int] = {}  # by host and pid, the time of the latest row that was read
        self.skipped = 0  # files that cannot be read

    def poll(self, since: int = 0) -> list[pa.Table]:
        """Rows that were written since the last call, a table for each file; rows before the time `since` may lack.

        What cannot be read is left out; what vanishes while it is read comes in the file that it was merged into.
        """
        tables: list[pa.Table] = []
        try:
            with open_folder(self._run_dir, self._table) as folder:
                names = list[str]()
                for _ in range(ATTEMPTS):
                    names = stable_listing(folder)
                    # In the order of their numbers, and none after one that vanished: its rows are in a new file.
                    if all(name in self._seen or self._take(folder, name, since, tables) for name in names):
                        break
                self._seen &= set(names)
        except OSError:  # no such table yet
            pass
        return tables

    def _take(self, folder: int, name: str, since: int, tables: list[pa.Table]) -> bool:
        """Read one file; False when it has vanished."""
        match = NAME.fullmatch(name)
        writer, first, last = (match["writer"], int(match["first"]), int(match["last"])) if match else (name, 0, 0)
        done = self._read_up_to.get(writer, -1)
        try:
            rows = self._read(folder, name, since) if last > done else None
        except FileNotFoundError:
            return False
        except (OSError, pa.ArrowException, ValueError, MemoryError):
            rows = None
            self.skipped += 1
        self._seen.add(name)
        self._read_up_to[writer] = max(done, last)
        if rows is not None and rows.num_rows:
            rows = self._fresh(rows, writer, partly_read=first <= done)
            if rows.num_rows:
                tables.append(rows)
        return True

    def _read(self, folder: int, name: str, since: int) -> pa.Table:
        with os.fdopen(open_file(name, folder), "rb") as handle:
            file = pq.ParquetFile(pa.PythonFile(handle, "r"))
            there = set(file.schema_arrow.names)
            groups = [n for n in range(file.num_row_groups) if self._latest_in(file, n) >= since]
            names = [field.name for field in self._fields if field.name in there]
            found = file.read_row_groups(groups, columns=names, use_threads=False)
        arrays = [
            found.column(f.name).cast(f.type) if f.name in there else pa.nulls(found.num_rows, f.type)
            for f in self._fields
        ]
        return pa.table(arrays, names=[f.name for f in self._fields])

    def _latest_in(self, file: pq.ParquetFile, group: int) -> int:
        """The latest time in a row group, as its statistics say; far in the future where they say nothing."""
        metadata = file.metadata.row_group(group)
        for index in range(metadata.num_columns):
            column = metadata.column(index)
            if column.path_in_schema == self._time and column.statistics and column.statistics.has_min_max:
                return int(column.statistics.max or 0)
        return 1 << 62

    def _fresh(self, rows: pa.Table, writer: str, *, partly_read: bool) -> pa.Table:
        """Rows that were not read before, and note how far each process has been read."""
        times = numbers(rows, self._time)
        pairs = list(zip(rows.column("host").to_pylist(), rows.column("pid").to_pylist(), strict=True))
        keep = np.ones(len(times), dtype=np.bool_)
        latest: dict[tuple[Any, Any], int] = {}
        for pair in set(pairs):
            mine = np.array([p == pair for p in pairs]) if len(set(pairs)) > 1 else keep
            known = self._latest.get(pair)
            if known is not None and (partly_read or not writer.endswith(f"-{pair[1]}")):
                keep = keep & ~(mine & (times <= known))
            latest[pair] = max(int(times[mine].max()), known or 0)
        self._latest.update(latest)
        return rows if keep.all() else rows.filter(pa.array(keep))


def numbers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Values of an integer column; 0 for NULL."""
    column: Any = rows.column(name)
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def first_rank(rows: pa.Table) -> pa.Table:
    """Rows of tensor-parallel rank 0, or of a rank that was not known: all ranks run every round."""
    ranks = numbers(rows, "tp_rank")
    return rows.filter(pa.array(ranks == 0)) if ranks.any() else rows
