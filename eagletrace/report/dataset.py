"""Copies a run's closed files into a data set (`store/dataset/layout.py` says where), once or while it is recorded.

Each file is put in place as a whole; a run is listed once its first export has ended, because `run.json` comes last.
Rows are never put there twice: a file that merging made of files that are there is left out, one that holds more
replaces them, and of rows that were taken over from a dead process those that are there are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagletrace.errors import EagletraceError
from eagletrace.format import TABLES
from eagletrace.record.files import safe_host
from eagletrace.store.dataset.layout import (
    LAYOUT,
    MARKER,
    NAME,
    Group,
    Stored,
    covered,
    groups,
    host_folder,
    inside,
    part_name,
    partition,
    run_folder,
    table_folder,
)  # fmt: skip
from eagletrace.store.dataset.place import Place, RemoteError, sha256
from eagletrace.store.files import stable_listing
from eagletrace.store.folder import RunInfo
from eagletrace.store.places import open_file, open_folder
from eagletrace.store.summary import run_state

SETTLED_S = 90.0  # files older than a minute are merged: what is younger is exported when the run has ended
INTERVAL_S = 15.0
MAX_JSON_BYTES = 16 << 20
PASSES = 20


@dataclass
class Exported:
    """What an export did."""

    files: int = 0
    bytes: int = 0
    present: int = 0  # files whose rows were there
    removed: int = 0  # closed files of the run that were moved
    warnings: list[str] = field(default_factory=list[str])


class DatasetExport:
    """Exports one run folder into the data set at a URL; with `move` its closed files are removed when verified."""

    def __init__(self, info: RunInfo, url: str, *, move: bool = False) -> None:
        self._info, self._move = info, move
        self.place = Place(url)
        if self.place.is_local and _overlap(self.place.local_path(""), info.path):
            raise EagletraceError(f"{url} lies in the run's own folder: name another place for the data set")
        self.done = Exported()

    def mark(self) -> None:
        """Make the place a data set; EagletraceError where it is one of a later layout."""
        if self.place.exists(MARKER):
            found: Any = json.loads(self.place.read(MARKER, MAX_JSON_BYTES))
            if not isinstance(found, dict) or found.get("layout") != LAYOUT:
                raise EagletraceError(f"{self.place.shown} has a layout that this eagletrace does not write")
            return
        self.place.write(MARKER, (json.dumps({"layout": LAYOUT, "schema_version": 1}) + "\n").encode(), 64)

    def once(self, *, settled_s: float = 0.0) -> Exported:
        """Export what is closed and not there yet; of a file that vanished meanwhile what it was merged into."""
        self.mark()
        self.done.present, self.done.warnings = 0, []
        for table in TABLES:
            for _ in range(PASSES):
                if self._table(table, settled_s):
                    break
        self._facts()
        return self.done

    def follow(self, tell: Callable[[str], None], wait: Callable[[float], object] = time.sleep) -> Exported:
        """Export until the run has ended; while the place cannot be reached the run's files wait where they are."""
        failed = False
        while run_state(self._info) == "live":
            try:
                self.once(settled_s=SETTLED_S)
                failed = False
            except RemoteError as error:
                if not failed:
                    tell(f"{error}; trying again until the run has ended")
                failed = True
            wait(INTERVAL_S)
        return self.once()

    # -- one table ---------------------------------------------------------------------------------

    def _table(self, table: str, settled_s: float) -> bool:
        """Export the closed files of a table; False when one vanished meanwhile."""
        there = groups(self.place.find(table_folder(table, self._info.id)))
        try:
            with open_folder(self._info.path, table) as folder:
                for name in stable_listing(folder):
                    if not self._take(table, name, folder, settled_s, there):
                        return False
        except FileNotFoundError:
            pass
        return True

    def _take(self, table: str, name: str, folder: int, settled_s: float, there: list[Group]) -> bool:
        try:
            file = open_file(name, folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.done.warnings.append(f"skipped {table}/{name}: {error.strerror or error}")
            return True
        with os.fdopen(file, "rb") as handle:
            if os.fstat(file).st_mtime > time.time() - settled_s:
                return True
            try:
                writer, first, last = _numbers(name)
                if covered(writer, first, last, there) or any(name == f.name for g in there for f in g.files):
                    self.done.present += 1
                    verified = not self._move or self._same(handle, writer, first, last, there)
                else:
                    verified = self._put(table, name, handle, there)
            except (pa.ArrowException, ValueError) as error:
                self.done.warnings.append(f"skipped {table}/{name}: {str(error).splitlines()[0]}")
                return True
            if self._move and verified:
                os.unlink(name, dir_fd=folder)
                self.done.removed += 1
        return True

    def _put(self, table: str, name: str, handle: Any, there: list[Group]) -> bool:
        """Put one file into the data set, then remove those that it replaces; whether it was read back alike."""
        writer, first, last = _numbers(name)
        replaced = inside(writer, first, last, there)
        written = os.fstat(handle.fileno()).st_mtime
        parts = list(self._parts(handle, writer, [g for g in there if g not in replaced]))
        verified = True
        group = Group(writer, first, last, max(len(parts), 1))
        for number, (host, rank, data) in enumerate(parts, 1):
            folder = f"{table_folder(table, self._info.id)}/{partition(host, written, rank)}"
            path = f"{folder}/{part_name(name, number, len(parts))}"
            source = data if data is not None else f"/proc/self/fd/{handle.fileno()}"
            size = len(data) if data is not None else os.fstat(handle.fileno()).st_size
            self.place.write(path, source, size)
            verified &= not self._move or self.place.digest(path, size) == _digest(data, handle)
            group.files.append(Stored(path, name, size))
            self.done.files += 1
            self.done.bytes += size
        self.place.remove([file for g in replaced for file in g.files])
        there[:] = [g for g in there if g not in replaced] + ([group] if parts else [])
        return verified

    def _parts(self, handle: Any, writer: str, others: list[Group]) -> Iterator[tuple[str, int | None, bytes | None]]:
        """Host, rank and bytes of what a file holds; no bytes where it is taken as it is."""
        handle.seek(0)
        file = pq.ParquetFile(pa.PythonFile(handle, "r"))
        owners = _owners(file)
        own = {o for o in owners if f"{safe_host(o[0])}-{o[1]}" == writer}
        ranks = {(host, rank) for host, _, rank in owners}
        if set(owners) == own and len(ranks) <= 1:
            host, rank = next(iter(ranks), (writer.rpartition("-")[0], None))
            yield host, rank, None
            return
        rows = file.read(use_threads=False)
        for owner in sorted(owners, key=str):
            mine = rows.filter(_of(rows, owner))
            if owner not in own:
                mine = self._without(mine, owner, others)
            if mine.num_rows:
                sink = pa.BufferOutputStream()
                pq.write_table(mine, sink, compression="zstd")
                yield owner[0], owner[2], sink.getvalue().to_pybytes()

    def _without(self, rows: pa.Table, owner: tuple[str, int, int | None], others: list[Group]) -> pa.Table:
        """Rows that were taken over from a dead process, without those that are in the data set."""
        there: list[pa.Table] = []
        folder = f"/{host_folder(owner[0])}/"
        for stored in (f for g in others for f in g.files if folder in f.path):
            data = self.place.read(self._relative(stored.path), 1 << 31)
            found = pq.read_table(pa.BufferReader(data), use_threads=False)
            mine = found.filter(_of(found, owner))
            if mine.num_rows:
                there.append(mine)
        if not there:
            return rows
        import duckdb

        known = pa.concat_tables(there, promote_options="permissive").select(rows.column_names).cast(rows.schema)
        with duckdb.connect() as connection:
            connection.register("a", rows)
            connection.register("b", known)
            return connection.sql("SELECT * FROM a EXCEPT ALL SELECT * FROM b").to_arrow_table()

    def _same(self, handle: Any, writer: str, first: int, last: int, there: list[Group]) -> bool:
        """Whether the data set has as many rows as the file where it has its numbers."""
        handle.seek(0)
        rows = pq.ParquetFile(pa.PythonFile(handle, "r")).metadata.num_rows
        found = [g for g in there if g.complete and g.writer == writer and first <= g.first and g.last <= last]
        if not covered(writer, first, last, found):
            return False
        stored = sum(
            pq.ParquetFile(pa.BufferReader(self.place.read(self._relative(f.path), 1 << 31))).metadata.num_rows
            for g in found for f in g.files
        )  # fmt: skip
        return stored == rows

    def _relative(self, path: str) -> str:
        root = self.place.root
        return path[len(root) :].lstrip("/") if path.startswith(root) else path

    def _facts(self) -> None:
        """Copy the run's JSON files where they changed, `run.json` last."""
        names = sorted(
            (
                p.name
                for p in self._info.path.iterdir()
                if p.suffix in (".json", ".jsonl") and not p.name.startswith(".")
            ),
            key=lambda name: name == "run.json",
        )
        with open_folder(self._info.path) as folder:
            for name in names:
                try:
                    with os.fdopen(open_file(name, folder), "rb") as handle:
                        data = handle.read(MAX_JSON_BYTES)
                except OSError:  # gone meanwhile, or no regular file
                    continue
                path = f"{run_folder(self._info.id)}/{name}"
                if not self.place.exists(path) or self.place.read(path, MAX_JSON_BYTES) != data:
                    self.place.write(path, data, len(data))


def _numbers(name: str) -> tuple[str, int, int]:
    match = NAME.fullmatch(name)
    if match is None or match["part"]:
        return name, 0, 0
    return match["writer"], int(match["first"]), int(match["last"])


def _owners(file: pq.ParquetFile) -> list[tuple[str, int, int | None]]:
    """(host, pid, tensor-parallel rank) of the rows of a file; a rank that is known later counts for all."""
    there = set(file.schema_arrow.names)
    names = [n for n in ("host", "pid", "tp_rank") if n in there]
    table = file.read(columns=names, use_threads=False)
    for name in ("host", "pid", "tp_rank"):
        if name not in there:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.string() if name == "host" else pa.int32()))
    distinct = table.select(["host", "pid", "tp_rank"]).group_by(["host", "pid", "tp_rank"]).aggregate([])
    return [(str(r["host"] or ""), int(r["pid"] or 0), r["tp_rank"]) for r in distinct.to_pylist()]


def _of(rows: pa.Table, owner: tuple[str, int, int | None]) -> Any:
    """Which rows are the owner's."""

    def equal(name: str, value: Any) -> Any:
        if name not in rows.column_names:
            return pa.scalar(True)
        column = rows.column(name)
        return pc.is_null(column) if value in (None, "") else pc.fill_null(pc.equal(column, value), pa.scalar(False))

    found = [equal("host", owner[0]), equal("pid", owner[1]), equal("tp_rank", owner[2])]
    mask: Any = pa.array([True] * rows.num_rows)
    for one in found:
        mask = pc.and_(mask, one)
    return mask


def _digest(data: bytes | None, handle: Any) -> str:
    if data is not None:
        return hashlib.sha256(data).hexdigest()
    handle.seek(0)
    return sha256(handle)


def _overlap(root: Path, run: Path) -> bool:
    a, b = root.resolve(), run.resolve()
    return a == b or b in a.parents
