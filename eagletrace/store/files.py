"""The Parquet files of one table, read while a live server writes, merges and unlinks them.

Small files are copied into memory. Large ones are held open, each on a descriptor that was reserved for one (`Slots`),
so that what was opened stays readable after the server has merged it away. Files that cannot be read are skipped, with
a warning that names them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.format.schema import PROCESS_COLUMNS
from eagletrace.store.places import open_file, open_folder
from eagletrace.store.slots import Slots

LARGE_FILE_BYTES = 16 << 10  # from this size a file is read in place
MAX_COPIED_BYTES = 256 << 20  # a larger one is not copied into memory when it cannot be read in place
MAX_FOOTER_BYTES = 64 << 20  # footers of our files have a few kilobytes
CHUNK_BYTES = 64 << 20  # rows of small files are handed over in parts of about this size
ATTEMPTS = 20  # a live server changes a folder about once a second; reading it takes milliseconds

NAME = re.compile(r"(?P<writer>.+-\d+)-(?P<first>\d+)-(?P<last>\d+)\.parquet")


@dataclass(frozen=True)
class HeldFile:
    """A large file, read in place through DuckDB under `path`, whatever its name has become."""

    name: str
    slot: int
    schema: pa.Schema

    @property
    def path(self) -> str:
        """The path of the descriptor."""
        return Slots.path(self.slot)


@dataclass
class TableFiles:
    """The files of one table: contents of small ones, large ones held open, warnings of those that were skipped."""

    table: str
    folder: Path
    small: dict[str, bytes] = field(default_factory=dict[str, bytes])
    large: list[HeldFile] = field(default_factory=list[HeldFile])
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    warnings: list[str] = field(default_factory=list[str])

    def batches(self) -> Iterator[pa.Table]:
        """Rows of the small files, in parts of about `CHUNK_BYTES`; what turns out to be damaged is skipped."""
        parts: list[pa.Table] = []
        size = 0
        for name, data in self.small.items():
            try:
                part = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).replace_schema_metadata(None)
                part.validate(full=True)
            except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
                self.skip(name, error)
                continue
            parts.append(part)
            size += part.nbytes
            if size >= CHUNK_BYTES:
                yield pa.concat_tables(parts, promote_options="permissive")
                parts, size = [], 0
        if parts:
            yield pa.concat_tables(parts, promote_options="permissive")

    @property
    def rows(self) -> pa.Table:
        """All rows of the small files, with every column of the table."""
        return pa.concat_tables([empty(self.schema), *self.batches()], promote_options="permissive")

    def skip(self, name: str, error: Exception) -> None:
        """Warn of a file that is left out."""
        self.warnings.append(f"skipped {self.folder / name}: {_reason(error)}")


def empty(schema: pa.Schema) -> pa.Table:
    """No rows. (`Schema.empty_table` imports pandas where it is installed, which takes a fifth of a second.)"""
    return pa.Table.from_batches([], schema)


def without_merged(names: list[str]) -> list[str]:
    """Leave out files whose range of sequence numbers another file of the same writer covers."""
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    kept: list[str] = []
    for name in names:
        if match := NAME.fullmatch(name):
            ranges.setdefault(match["writer"], []).append((int(match["first"]), -int(match["last"]), name))
        else:
            kept.append(name)
    for files in ranges.values():
        end = -1
        for _, negative_last, name in sorted(files):
            if -negative_last > end:
                end = -negative_last
                kept.append(name)
    return sorted(kept)


def read_table(run_dir: Path, table: str, slots: Slots | None = None) -> TableFiles:
    """Open all files of one table; an absent table gives no rows with the right columns.

    Without `slots`, or when all are taken, large files are copied into memory like small ones.
    """
    for attempt in range(ATTEMPTS):
        result = TableFiles(table, run_dir / table, schema=arrow_schema(TABLES[table]).remove_metadata())
        if _read_folder(run_dir, result, slots, last=attempt == ATTEMPTS - 1):
            return result
        for file in result.large:
            if slots is not None:
                slots.give_back(file.slot)
    raise AssertionError("the last attempt always succeeds")


def read_names(run_dir: Path, table: str) -> list[str]:
    """Names of the closed files of a table; none where it is absent or cannot be listed."""
    try:
        with open_folder(run_dir, table) as folder:
            return stable_listing(folder)
    except OSError:
        return []


def large_files(run_dir: Path) -> list[str]:
    """Real paths of the files of all tables that are large now, the largest first."""
    found: list[tuple[int, str]] = []
    for table in TABLES:
        try:
            with open_folder(run_dir, table) as folder, os.scandir(folder) as entries:
                place = Path(f"/proc/self/fd/{folder}").readlink()
                found.extend(
                    (entry.stat(follow_symlinks=False).st_size, f"{place}/{entry.name}")
                    for entry in entries
                    if entry.name.endswith(".parquet") and entry.is_file(follow_symlinks=False)
                )
        except OSError:  # noqa: PERF203 -- reading the table says what is wrong with it
            continue
    return [path for size, path in sorted(found, reverse=True) if size >= LARGE_FILE_BYTES and _is_text(path)]


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # a name that is no UTF-8, which DuckDB cannot be told
        return False
    return True


def _read_folder(run_dir: Path, result: TableFiles, slots: Slots | None, *, last: bool) -> bool:
    """Read files into `result`; False when one vanished (merged or dropped), so that the folder is listed again."""
    try:
        with open_folder(run_dir, result.table) as folder:
            for name in stable_listing(folder):
                try:
                    _read_file(name, folder, result, slots)
                except FileNotFoundError:  # noqa: PERF203
                    if not last:
                        return False
                except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
                    result.skip(name, error)
    except FileNotFoundError:
        pass
    except OSError as error:
        result.warnings.append(f"skipped {result.folder}: cannot be listed ({error.strerror or error})")
    return True


def stable_listing(folder: int) -> list[str]:
    """Names of the closed files: listed until two listings agree, because a listing is not atomic."""
    before: list[str] | None = None
    for _ in range(ATTEMPTS):
        names = sorted(n for n in os.listdir(folder) if n.endswith(".parquet") and not n.startswith("."))
        if names == before:
            break
        before = names
    return without_merged(before or [])


def _read_file(name: str, folder: int, result: TableFiles, slots: Slots | None) -> None:
    """Add one file to `result`: its bytes, or itself on a slot; an error where it is no file of this table."""
    file = open_file(name, folder)
    data = b""
    try:
        size = os.fstat(file).st_size
        _check_footer(file, size)
        slot = slots.take(file) if slots is not None and size >= LARGE_FILE_BYTES else None
        try:
            if slot is None:
                if size > MAX_COPIED_BYTES:
                    raise ValueError(f"{size >> 20} MiB, and the process may open no more files: see `ulimit -n`")
                data = _read_all(file, size)
                own = pq.read_schema(pa.BufferReader(data))
            else:
                with pa.OSFile(Slots.path(slot), "rb") as handle:
                    own = pq.read_schema(handle)
            own = own.remove_metadata()
            _check_ours(own, result.table)
            result.schema = pa.unify_schemas([result.schema, own], promote_options="permissive")
        except BaseException:
            if slots is not None and slot is not None:
                slots.give_back(slot)
            raise
    finally:
        os.close(file)
    if slot is None:
        result.small[name] = data
    else:
        result.large.append(HeldFile(name, slot, own))


def _read_all(file: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.read(file, min(size, 1 << 30))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_footer(file: int, size: int) -> None:
    """Refuse early what only has the size of a Parquet file: nothing larger than a real footer is read for it."""
    if size < 12:
        raise ValueError(f"it has {size} bytes")
    tail = os.pread(file, 8, size - 8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1":
        raise ValueError("it does not end as one")
    if length > min(size - 12, MAX_FOOTER_BYTES):
        raise ValueError(f"its footer would have {length} bytes")


def _check_ours(schema: pa.Schema, table: str) -> None:
    process = {c.name for c in PROCESS_COLUMNS}
    if not ({c.name for c in TABLES[table].columns} - process) & set(schema.names):
        raise ValueError(f"none of its columns ({', '.join(schema.names[:5])}) belongs to the table {table!r}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or str(error)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"not a complete Parquet file of this table ({text})"
