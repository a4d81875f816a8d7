"""Writes rows as closed Parquet files: under a temporary name, closed, then renamed.

File names are `<host>-<pid>-<first>-<last>.parquet`, where first and last are sequence numbers of one writer's
flushes of one table. A merged file covers the range of its sources, so a reader that sees both leaves the
contained ones out.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.format.schema import PROCESS_COLUMNS

MERGE_AFTER_S = 60.0
MERGE_MIN_FILES = 8
MERGE_MAX_BYTES = 64 << 20  # a file this large is not merged again
Columns = Mapping[str, Any]
_File = tuple[int, int, Path, float, int]  # first, last, path, when its last rows were written, bytes


def safe_host(host: str) -> str:
    """Host name as it may stand in a file name."""
    return re.sub(r"[^A-Za-z0-9.]", "_", host) or "host"


class TraceWriter:
    """The only writer of one process. Not thread-safe: used by the recorder's background thread alone.

    `process` gives host, pid, tp_rank, dp_rank and pp_rank; ranks may be set later.
    """

    def __init__(self, run_dir: Path, process: Mapping[str, Any]) -> None:
        self.run_dir = run_dir
        self.process: dict[str, Any] = {c.name: process.get(c.name) for c in PROCESS_COLUMNS}
        self.bytes_written = 0
        self._stem = f"{safe_host(str(self.process['host']))}-{self.process['pid']}"
        self._next: dict[str, int] = {}
        self._files: dict[str, list[_File]] = {}
        self._schemas = {name: arrow_schema(table) for name, table in TABLES.items()}

    def write(self, table: str, rows: Sequence[Mapping[str, Any]]) -> Path | None:
        """Write rows (dicts; missing columns are NULL) as one file; returns its path, None for no rows."""
        if not rows:
            return None
        names = [c.name for c in TABLES[table].columns]
        return self.write_columns(table, {n: [row.get(n) for row in rows] for n in names}, len(rows))

    def write_columns(self, table: str, columns: Columns, rows: int) -> Path | None:
        """Write columns (lists or NumPy arrays of equal length, `rows` long) as one closed file."""
        if not rows:
            return None
        schema = self._schemas[table]
        arrays: list[Any] = []
        for field in schema:
            if field.name in columns:
                arrays.append(_array(columns[field.name], field.type))
            else:
                arrays.append(pa.repeat(pa.scalar(self.process.get(field.name), field.type), rows))
        return self._write_table(table, pa.Table.from_arrays(arrays, schema=schema))

    def _write_table(self, table: str, data: pa.Table) -> Path:
        number = self._next.setdefault(table, self._first_free(table))
        self._next[table] = number + 1
        return self._publish(table, data, number, number)

    def _first_free(self, table: str) -> int:
        """The first number that no file of an earlier process of the same host and pid has (containers restart)."""
        names = (path.stem for path in (self.run_dir / table).glob(f"{self._stem}-*.parquet"))
        return max((int(name.rpartition("-")[2]) + 1 for name in names), default=0)

    def _publish(self, table: str, data: pa.Table, first: int, last: int) -> Path:
        folder = self.run_dir / table
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._stem}-{first:08d}-{last:08d}.parquet"
        temporary = path.with_suffix(".tmp")
        try:
            pq.write_table(data, temporary, compression="zstd", row_group_size=1 << 20)
            temporary.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        size = path.stat().st_size
        self.bytes_written += size
        self._files.setdefault(table, []).append((first, last, path, time.monotonic(), size))
        return path

    def enforce(self, max_bytes: int) -> dict[str, int]:
        """Delete the oldest detail files until the writer's bytes fit `max_bytes`; returns rows lost by table."""
        lost: dict[str, int] = {}
        while self.bytes_written > max_bytes:
            oldest = min(
                ((entries[0], name) for name, entries in self._files.items() if entries and TABLES[name].detail),
                key=lambda pair: pair[0][3],
                default=None,
            )
            if oldest is None:
                break
            (_, _, path, _, size), name = oldest
            self._files[name].remove(oldest[0])
            self.bytes_written -= size
            with contextlib.suppress(OSError):
                lost[name] = lost.get(name, 0) + pq.read_metadata(path).num_rows
                path.unlink()
        return lost

    def merge(self, older_than_s: float = MERGE_AFTER_S) -> int:
        """Merge this writer's files older than `older_than_s` into larger ones; returns how many went away."""
        return sum(self._merge_table(table, older_than_s) for table in list(self._files))

    def _merge_table(self, table: str, older_than_s: float) -> int:
        run = self._mergeable(sorted(self._files[table]), time.monotonic() - older_than_s)
        if not run:
            return 0
        data = pa.concat_tables([pq.read_table(e[2], schema=self._schemas[table]) for e in run])
        path = self._publish(table, data, run[0][0], run[-1][1])
        *others, (first, last, _, _, size) = self._files[table]
        # In the order of their ages, which `enforce` goes by.
        self._files[table] = sorted([*(e for e in others if e not in run), (first, last, path, run[-1][3], size)])
        for entry in run:
            with contextlib.suppress(OSError):
                entry[2].unlink()
        self.bytes_written -= sum(e[4] for e in run)
        return len(run) - 1

    @staticmethod
    def _mergeable(files: Sequence[_File], written_before: float) -> list[_File]:
        """The first files that follow each other without a gap, are small and old, and are many enough."""
        run: list[_File] = []
        for entry in files:
            small = entry[4] < MERGE_MAX_BYTES
            if entry[3] > written_before:
                break
            if run and (not small or entry[0] != run[-1][1] + 1):
                if len(run) >= MERGE_MIN_FILES:
                    break
                run = []
            if small:
                run.append(entry)
        return run if len(run) >= MERGE_MIN_FILES else []


def _array(values: Any, type_: pa.DataType) -> Any:
    if isinstance(values, pa.Array):
        return values
    array: Any = pa.array(values, from_pandas=False)
    return array if array.type == type_ else pa.array(values, type=type_, from_pandas=False)
