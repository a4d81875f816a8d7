"""Merges files of one writer and table into larger ones, a row group at a time, and says which to merge.

Arrow reads and writes outside the GIL. A merge holds about one row group in memory and can be left after each.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eagletrace.record.columns import from_numpy, view
from eagletrace.record.encoding import SORTED_BY_REQUEST, text_columns, write_options
from eagletrace.record.files import TraceFile, open_private, remove

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 6 << 20  # of a row group in memory; while it is written, about three times that
BATCH_ROWS = 1 << 15
LARGEST_BYTES = 64 << 20  # a file of a run without a bound is not merged beyond this
SMALLEST_BYTES = 16 << 10
FEWEST = 4  # files that are merged because together they are large
BUSY_FILE_BYTES = 64 << 10  # flushes of a table as large as this are many: more of them are merged at once


@dataclass(frozen=True)
class Policy:
    """Which files are merged: `fan_in` neighbours of a size class, `busy_fan_in` where each flush is large.

    Three classes (up to 1/32, 1/4 and the whole of `large` bytes) and a fan-in that falls with the number of
    processes bound the files of a run, however long it is; each row is rewritten once where flushes are large.
    """

    large: int
    fan_in: int
    busy_fan_in: int
    classes: tuple[int, ...] = (32, 4, 1)  # each up to `large` divided by one of these

    @staticmethod
    def of(max_bytes: int, processes: int) -> Policy:
        """The policy of one of `processes` processes that together keep `max_bytes`."""
        large = min(max(max_bytes // 256, SMALLEST_BYTES), LARGEST_BYTES)
        fan_in = 8 if processes <= 2 else 6 if processes <= 4 else 4
        return Policy(large, fan_in, max(fan_in, 64 // max(processes, 1)))

    def choose(self, files: Sequence[TraceFile]) -> list[TraceFile]:
        """Of files sorted by number, the first neighbours to merge; none if there are too few of a class."""
        for limit in (self.large // part for part in self.classes):
            group: deque[TraceFile] = deque()
            size = 0
            for file in files:
                if file.bytes >= limit:
                    if self._enough(len(group), size):
                        return list(group)
                    group.clear()
                    size = 0
                    continue
                group.append(file)
                size += file.bytes
                if size >= self.large:  # larger files than twice `large` would not stream soon
                    if len(group) >= min(FEWEST, self.fan_in):
                        return list(group)
                    size -= group.popleft().bytes
            if self._enough(len(group), size):
                return list(group)
        return []

    def _enough(self, count: int, size: int) -> bool:
        return count >= (self.busy_fan_in if size >= BUSY_FILE_BYTES * count else self.fan_in) and count > 1


EVERYTHING = Policy(LARGEST_BYTES, 2, 2, (1,))  # for a run that is over


def merge_into(temporary: Path, table: str, schema: pa.Schema, sources: Sequence[TraceFile]) -> Iterator[None]:
    """Write the rows of `sources` to a new file, in steps. What was written is removed when a step fails or is left.

    Raises FileNotFoundError if a source is gone, SourceError if one cannot be read or has other columns.
    """
    done = False
    writer: pq.ParquetWriter | None = None
    try:
        with open_private(temporary) as sink:
            try:
                for group in _row_groups(table, schema, sources):
                    if writer is None:
                        writer = pq.ParquetWriter(sink, group.schema, **write_options(table, group.nbytes))
                    writer.write_table(group, row_group_size=max(group.num_rows, 1))
                    del group
                    yield
            finally:
                if writer is not None:
                    writer.close()
        newest = max(source.written for source in sources)
        os.utime(temporary, (newest, newest))  # the age of a file is that of its last rows
        done = writer is not None
    finally:
        if not done:
            remove(temporary)


class SourceError(Exception):
    """A file that cannot be merged; it stays as it is."""

    def __init__(self, source: TraceFile, reason: str) -> None:
        super().__init__(f"{source.path}: {reason}")
        self.source = source


def _row_groups(table: str, schema: pa.Schema, sources: Sequence[TraceFile]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(table, schema, sources):
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield _row_group(table, waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _row_group(table, waiting)


def _row_group(table: str, batches: list[pa.RecordBatch]) -> pa.Table:
    group = pa.Table.from_batches(batches).unify_dictionaries()
    if table in SORTED_BY_REQUEST:
        group = group.combine_chunks()
        requests = view(group["request_seq"].chunk(0), np.int64)
        group = pc.take(group, from_numpy(np.argsort(requests, kind="stable"), pa.int64()))
    return group


def _batches(table: str, schema: pa.Schema, sources: Sequence[TraceFile]) -> Iterator[pa.RecordBatch]:
    for source in sources:
        with contextlib.ExitStack() as stack:
            handle = stack.enter_context(pa.OSFile(str(source.path), "rb"))
            try:
                file = pq.ParquetFile(handle, read_dictionary=text_columns(table), pre_buffer=False)
                check_columns(source, file.schema_arrow, schema)
                yield from file.iter_batches(BATCH_ROWS, use_threads=False)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
                if isinstance(error, FileNotFoundError):
                    raise
                raise SourceError(source, str(error).splitlines()[0]) from error


def check_columns(source: TraceFile, own: pa.Schema, schema: pa.Schema) -> None:
    """SourceError unless the file has the columns of this release, no more and no fewer."""
    if own.names != schema.names or any(_plain(a.type) != b.type for a, b in zip(own, schema, strict=True)):
        raise SourceError(source, "it has other columns than this release writes")


def _plain(type_: Any) -> Any:
    if pa.types.is_list(type_):
        return pa.list_(type_.value_type)
    return type_.value_type if pa.types.is_dictionary(type_) else type_
