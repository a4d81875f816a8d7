"""The Parquet files of one table, read while a live server writes, merges and unlinks them.

Small files are copied into memory; large ones are mapped, so that what was opened stays readable after the
server has merged it away. Files that cannot be read are skipped, with a warning that names them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.format.schema import PROCESS_COLUMNS

LARGE_FILE_BYTES = 16 << 20  # from this size a file is read in place
LARGE_TENSOR_FILE_BYTES = 1 << 20  # the same for tables with raw values
MAX_LARGE_FILES = 256  # stay well below the usual limit of 1,024 open files
ATTEMPTS = 20  # a live server changes a folder about once a second; reading it takes milliseconds

_NAME = re.compile(r"(?P<writer>.+-\d+)-(?P<first>\d+)-(?P<last>\d+)\.parquet")


@dataclass
class TableFiles:
    """What was read of one table: rows in memory, files mapped to be read in place, files that were skipped."""

    rows: pa.Table
    large: list[Any] = field(default_factory=list[Any])  # pyarrow.NativeFile, which its stubs do not take for a file
    large_schema: pa.Schema | None = None
    warnings: list[str] = field(default_factory=list[str])

    def dataset(self) -> ds.Dataset | None:
        """The large files as one data set that keeps them open; None without any."""
        if self.large_schema is None:
            return None
        form = ds.ParquetFileFormat()
        return ds.FileSystemDataset([form.make_fragment(f) for f in self.large], self.large_schema, form)

    def close(self) -> None:
        """Unmap the large files."""
        for file in self.large:
            file.close()


def without_merged(names: list[str]) -> list[str]:
    """Leave out files whose range of sequence numbers another file of the same writer covers."""
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    kept: list[str] = []
    for name in names:
        if match := _NAME.fullmatch(name):
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


def read_table(run_dir: Path, table: str) -> TableFiles:
    """Read all rows of one table; an absent table gives no rows with the right columns."""
    folder = run_dir / table
    for attempt in range(ATTEMPTS):
        result = TableFiles(arrow_schema(TABLES[table]).empty_table())
        try:
            names = _stable_listing(folder)
        except OSError as error:
            result.warnings.append(f"skipped {folder}: cannot be listed ({error.strerror or error})")
            return result
        if _read_names(folder, table, names, result, last=attempt == ATTEMPTS - 1):
            return result
        result.close()
    raise AssertionError("the last attempt always succeeds")


def _stable_listing(folder: Path) -> list[str]:
    """Names of the closed files: listed until two listings agree, because a listing is not atomic."""
    before: list[str] | None = None
    for _ in range(ATTEMPTS):
        try:
            names = sorted(p.name for p in folder.iterdir() if p.suffix == ".parquet" and not p.name.startswith("."))
        except FileNotFoundError:
            return []
        if names == before:
            break
        before = names
    return without_merged(before or [])


def _read_names(folder: Path, table: str, names: list[str], result: TableFiles, *, last: bool) -> bool:
    """Read files into `result`; False when one vanished (merged or dropped), so that the folder is listed again."""
    parts = [result.rows]
    schema = result.rows.schema
    for name in names:
        path = folder / name
        try:
            part = _read_file(path, table, schema, result)
        except FileNotFoundError:
            if not last:
                return False
            continue
        except (OSError, pa.ArrowException, ValueError) as error:
            result.warnings.append(f"skipped {path}: {_reason(error)}")
            continue
        if part is not None:
            parts.append(part)
            schema = pa.unify_schemas([schema, part.schema], promote_options="permissive")
    result.rows = pa.concat_tables(parts, promote_options="permissive")
    return True


def _read_file(path: Path, table: str, schema: pa.Schema, result: TableFiles) -> pa.Table | None:
    """Rows of a small file, or None for a large one, which `result` keeps."""
    has_values = any(pa.types.is_binary(f.type) for f in schema)
    limit = LARGE_TENSOR_FILE_BYTES if has_values else LARGE_FILE_BYTES
    keep = path.stat().st_size >= limit and len(result.large) < MAX_LARGE_FILES
    handle = pa.memory_map(str(path)) if keep else pa.OSFile(str(path), "rb")
    try:
        file = pq.ParquetFile(handle)
        own = file.schema_arrow.remove_metadata()
        _check_ours(own, table)
        unified = pa.unify_schemas([result.large_schema or schema, own], promote_options="permissive")
        if not keep:
            return file.read().replace_schema_metadata(None)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            handle.close()
    result.large.append(handle)
    result.large_schema = unified
    return None


def _check_ours(schema: pa.Schema, table: str) -> None:
    process = {c.name for c in PROCESS_COLUMNS}
    if not ({c.name for c in TABLES[table].columns} - process) & set(schema.names):
        raise ValueError(f"none of its columns ({', '.join(schema.names[:5])}) belongs to the table {table!r}")


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"not a complete Parquet file of this table ({text})"
