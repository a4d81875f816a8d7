"""Writes rows as closed Parquet files: under a temporary name, closed, then renamed. `files.py` has the names.

Upkeep (taking over what dead processes left, merging, the disk bound) is done in short steps between two flushes.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.format.schema import PROCESS_COLUMNS
from eagletrace.record import adopt, bound
from eagletrace.record.columns import from_any
from eagletrace.record.encoding import constant, shortened, write_options
from eagletrace.record.files import (
    NAME,
    TraceFile,
    file_at,
    names_by_writer,
    private_folder,
    remove,
    safe_host,
    write_private,
)
from eagletrace.record.liveness import hold, process_file
from eagletrace.record.merge import Policy, SourceError, merge_into
from eagletrace.record.run_folder import restore

UPKEEP_S = 60.0  # how often what other processes left is looked at
UNBOUNDED = 1 << 62
ENFORCE_S = 20.0  # and how often the size of the run, unless much was written
SLACK = 16  # a run may grow by a sixteenth of its bound between two looks
Columns = Mapping[str, Any]


class TraceWriter:
    """The only writer of one process. Not thread-safe: used by the recorder's background thread alone.

    `process` gives host, pid, tp_rank, dp_rank and pp_rank; ranks may be set later. `max_bytes` is what all
    processes of the run together may keep.
    """

    def __init__(self, run_dir: Path, process: Mapping[str, Any], max_bytes: int = UNBOUNDED) -> None:
        self.run_dir, self.max_bytes = run_dir, max_bytes
        self.process: dict[str, Any] = {c.name: process.get(c.name) for c in PROCESS_COLUMNS}
        self.stem = f"{safe_host(str(self.process['host']))}-{self.process['pid']}"
        self._next: dict[str, int] = {}
        self._files: dict[str, list[TraceFile]] = {}
        self._fixed: set[Path] = set()  # files that cannot be merged
        self._waiting: dict[str, list[pa.Table]] = {}
        self._processes = 1
        self.lost: Counter[str] = Counter()  # rows given up for space, by table, until somebody takes them
        self.folder_was_deleted = False
        self._schemas = {name: arrow_schema(table).remove_metadata() for name, table in TABLES.items()}
        self._adopted = self._looked = float("-inf")
        self._since_look = 0

    @property
    def bytes_written(self) -> int:
        """Bytes of this writer's closed files, as far as it knows."""
        return sum(file.bytes for files in self._files.values() for file in files)

    # -- writing ----------------------------------------------------------------------------------

    def write(self, table: str, rows: Sequence[Mapping[str, Any]]) -> Path | None:
        """Write rows (dicts; missing columns are NULL) as one file; returns its path, None for no rows."""
        if not rows:
            return None
        names = [c.name for c in TABLES[table].columns]
        return self.write_columns(table, {n: [row.get(n) for row in rows] for n in names}, len(rows))

    def write_columns(self, table: str, columns: Columns, rows: int) -> Path | None:
        """Write columns (lists or arrays of equal length, `rows` long) as one closed file."""
        return self._publish(table, self._arrow(table, columns, rows)) if rows else None

    def add_columns(self, table: str, columns: Columns, rows: int) -> None:
        """Keep columns until `publish`, which writes all that were added to a table as one file."""
        if rows:
            self._waiting.setdefault(table, []).append(self._arrow(table, columns, rows))

    def publish(self, write: Callable[[], bool] = lambda: True) -> Iterator[tuple[str, int, Exception | None]]:
        """Write what was added, or let go of it where `write` says no: (table, rows, why they were not written)."""
        waiting, self._waiting = self._waiting, {}
        for table, parts in waiting.items():
            error: Exception | None = None
            try:
                if write():
                    self._publish(table, pa.concat_tables(parts, promote_options="permissive"))
            except Exception as caught:  # noqa: BLE001 - the caller says so; the other tables may still be written
                error = caught
            yield table, sum(part.num_rows for part in parts), error

    def _arrow(self, table: str, columns: Columns, rows: int) -> pa.Table:
        arrays: dict[str, Any] = {}
        for field in self._schemas[table]:
            if field.name in columns:
                arrays[field.name] = shortened(field.name, from_any(columns[field.name], field.type))
            else:
                arrays[field.name] = constant(self.process.get(field.name), field.type, rows)
        return pa.table(arrays)

    def _publish(self, table: str, data: pa.Table) -> Path:
        self.claim(table)
        number = self._next[table]
        self._next[table] = number + 1  # never given out again, whatever becomes of this file
        sink = pa.BufferOutputStream()
        pq.write_table(data, sink, row_group_size=max(data.num_rows, 1), **write_options(table, data.nbytes))
        path = self._path(table, number, number)
        temporary = path.with_suffix(".tmp")
        content = sink.getvalue()
        self._make_room(content.size)
        try:
            write_private(temporary, content)
        except FileNotFoundError:  # the table's first file, or somebody deleted the folder
            self._create_folders(path.parent)
            write_private(temporary, content)
        self._rename(temporary, path)
        self._since_look += content.size
        self._files[table].append(TraceFile(number, number, path, time.time(), content.size))
        return path

    def _create_folders(self, folder: Path) -> None:
        if not self.run_dir.exists():
            self.folder_was_deleted = restore(self.run_dir)
            self._forget_vanished()
        private_folder(folder)

    def _path(self, table: str, first: int, last: int) -> Path:
        return self.run_dir / table / f"{self.stem}-{first:08d}-{last:08d}.parquet"

    @staticmethod
    def _rename(temporary: Path, path: Path) -> None:
        try:
            temporary.rename(path)
        except BaseException:
            remove(temporary)
            raise

    def claim(self, table: str) -> None:
        """Begin after the files of an earlier process of the same host and pid (containers restart), and keep them."""
        if table in self._next:
            return
        folder = self.run_dir / table
        kept: list[TraceFile] = []
        if self.holds_files():
            kept = adopt.clean(folder, names_by_writer(folder).get(self.stem, []))[0]
        matches = [NAME.fullmatch(name) for name in names_by_writer(folder).get(self.stem, [])]
        self._next[table] = max((int(match["last"]) for match in matches if match), default=-1) + 1
        self._files[table] = kept

    def holds_files(self) -> bool:
        """Whether this process may rename and unlink its files; not while another one takes it for dead."""
        return hold(process_file(self.run_dir, self.stem))

    # -- upkeep -----------------------------------------------------------------------------------

    def upkeep(self) -> Iterator[None]:
        """Whatever is due, in steps of a few ten milliseconds at most; may be left after any of them."""
        if time.monotonic() - self._adopted > UPKEEP_S:
            self._adopted = time.monotonic()
            yield from self.adopt()
        yield from self.merge_steps()

    def adopt(self) -> Iterator[None]:
        """Take over what dead processes left."""
        if not self.run_dir.is_dir():
            return
        with bound.alone(self.run_dir) as mine:
            if mine:
                self._processes = yield from adopt.adopt(self.run_dir, self.stem, self._take_in)

    def _take_in(self, table: str, file: TraceFile) -> None:
        self.claim(table)
        first = self._next[table]
        last = first + file.last - file.first
        path = self._path(table, first, last)
        self._next[table] = last + 1
        file.path.rename(path)
        self._files[table].append(TraceFile(first, last, path, file.written, file.bytes))

    def merge(self, policy: Policy | None = None) -> int:
        """Merge all that the policy says; returns by how many files the run became smaller."""
        before = sum(map(len, self._files.values()))
        for _ in self.merge_steps(policy):
            pass
        return before - sum(map(len, self._files.values()))

    def merge_steps(self, policy: Policy | None = None) -> Generator[None]:
        """Merge what the policy says (that of a live writer, if none is given), in steps."""
        if not self.holds_files():
            return
        for table in list(self._files):
            while group := (policy or Policy.of(self.max_bytes, self._processes)).choose(self._mergeable(table)):
                yield from self._merge(table, group)

    def _mergeable(self, table: str) -> list[TraceFile]:
        """Files by number; one that cannot be merged keeps its place as if it were a large one."""
        files = [replace(f, bytes=UNBOUNDED) if f.path in self._fixed else f for f in self._files[table]]
        return sorted(files, key=lambda f: f.first)

    def _merge(self, table: str, group: list[TraceFile]) -> Iterator[None]:
        path = self._path(table, group[0].first, group[-1].last)
        temporary = path.with_suffix(".tmp")
        try:
            yield from merge_into(temporary, table, self._schemas[table], group)
        except FileNotFoundError:
            self._forget_vanished()
            return
        except SourceError as error:
            self._fixed.add(error.source.path)
            return
        present = set(self._files[table])
        if not present.issuperset(group):  # one was given up for space meanwhile
            remove(temporary)
            return
        self._rename(temporary, path)
        merged = file_at(path)
        if merged is None:  # deleted at once, by hand
            return
        self._since_look += merged.bytes
        self._files[table] = sorted([*(present - set(group)), merged], key=lambda f: f.first)
        for source in group:
            remove(source.path)

    def _forget_vanished(self) -> None:
        for table, files in self._files.items():
            self._files[table] = [file for file in files if file_at(file.path) is not None]

    def enforce(self, max_bytes: int) -> dict[str, int]:
        """Delete the run's oldest detail until all of it fits `max_bytes`; returns rows lost by table."""
        self._looked, self._since_look = time.monotonic(), 0
        lost, gone = bound.enforce(self.run_dir, max_bytes)
        if gone:
            for table, files in self._files.items():
                self._files[table] = [file for file in files if file.path not in gone]
        return lost

    def _make_room(self, size: int) -> None:
        """Look at the size of the run when much was written since, or some time has passed."""
        slack = self.max_bytes // SLACK
        much = self._since_look + size > slack // (2 * self._processes)
        if self.max_bytes < UNBOUNDED and (much or time.monotonic() - self._looked > ENFORCE_S):
            with contextlib.suppress(OSError):  # what is to be written now will tell
                self.lost.update(self.enforce(self.max_bytes - slack - size))
