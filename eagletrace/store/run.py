"""Opens a run for reading: DuckDB in memory, views over what was recorded, nothing else within reach."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import pyarrow as pa

from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.format import TABLES
from eagletrace.store import frames
from eagletrace.store.dataset.layout import is_dataset
from eagletrace.store.files import TableFiles, large_files, read_table
from eagletrace.store.folder import RunInfo, find_run, user_path
from eagletrace.store.slots import Slots
from eagletrace.store.views import ALL_RANKS, create_table, create_view, names_in, needed, view_files

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from eagletrace.store.dataset.source import Source

MEMORY = "1GB"  # what DuckDB may use; larger sorts and joins spill
SPILL = "32GB"
MAX_RESULT_BYTES = 1 << 30  # rows of a query's result, in Arrow's format
BATCH_ROWS = 1 << 16

Params = Mapping[str, Any] | Sequence[Any] | None
T = TypeVar("T")
_USER_ERRORS = (
    duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.SyntaxException,
    duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InterruptException, duckdb.PermissionException,
    duckdb.OutOfMemoryException,
)  # fmt: skip
"""Errors that no damaged file causes."""


class QueryError(EagletraceError):
    """SQL that the user gave does not run, or is not allowed."""


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query, as an Arrow table."""

    table: pa.Table

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return self.table.column_names

    def parts(self) -> Iterator[QueryResult]:
        """The rows in parts of at most `BATCH_ROWS`."""
        for start in range(0, self.table.num_rows, BATCH_ROWS):
            yield QueryResult(self.table.slice(start, BATCH_ROWS))

    def df(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame of Arrow-backed columns, in which NULL stays NA; MissingPackageError without
        pandas."""
        return frames.to_pandas(self.table)

    def pl(self) -> pl.DataFrame:
        """The rows as a polars DataFrame; MissingPackageError without polars."""
        return frames.to_polars(self.table)

    def rows(self) -> list[dict[str, Any]]:
        """Rows as dicts; times to the microsecond (Python has no finer ones)."""
        table = self.table
        for index, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
                column = table.column(index).cast(pa.timestamp("us", field.type.tz), safe=False)
                table = table.set_column(index, field.name, column)
        try:
            return table.to_pylist()
        except (OverflowError, ValueError) as error:  # DuckDB's years reach from 290308 BC to 294247, and to infinity
            raise QueryError(f"a date or time has no Python value ({error}); cast it to VARCHAR in the query") from None


class Run:
    """One recorded run. Tables are opened when a query first names them.

    Use as a context manager, or `close()` it. `relation`, `arrow`, `df` and `pl` give a view by name; `query` runs a
    SELECT, whose result has `table` (Arrow), `df()`, `pl()` and `rows()`.
    """

    def __init__(
        self, info: RunInfo, warnings: Sequence[str], memory: str = MEMORY, source: Source | None = None
    ) -> None:
        self._source = source
        self.info = info
        self.path = info.path
        self._warnings = list(warnings)
        self._tables: dict[str, TableFiles] = {}
        self._views: set[str] = set()
        self._checked: set[int] = set()
        self._slots = Slots(large_files(info.path) if source is None else source.large_files())
        # Readable by nobody else: large sorts spill token ids.
        self._spill = tempfile.TemporaryDirectory(prefix="eagletrace-", ignore_cleanup_errors=True)
        config: dict[str, str | bool | int | float | list[str]] = {
            "python_enable_replacements": False, "memory_limit": memory, "max_temp_directory_size": SPILL,
            "temp_directory": self._spill.name,
        }  # fmt: skip
        self._connection = duckdb.connect(config=config)
        _lock(self._connection, self._slots)

    @property
    def warnings(self) -> list[str]:
        """Files of the run that were skipped; opens all tables for it."""
        self.open(TABLES)
        return self.warnings_so_far

    @property
    def warnings_so_far(self) -> list[str]:
        """Files that were skipped in the tables opened until now."""
        return [*self._warnings, *(w for table in self._tables.values() for w in table.warnings)]

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The DuckDB connection, with all tables and the views of `queries/views`."""
        self.open([*TABLES, *view_files()])
        return self._connection

    def open(self, names: Iterable[str]) -> None:
        """Open tables and views by name, with what they need; what is open stays as it is."""
        tables, views = needed(names)
        new = [name for name in tables if name not in self._tables]
        for name in new:
            if self._source is not None:
                self._source.fetch(name)
            self._tables[name] = read_table(self.path, name, self._slots)
            create_table(self._connection, self._tables[name])
        for name in views:
            if name not in self._views:
                create_view(self._connection, name)
                self._views.add(name)

    def execute(self, sql: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Run SQL of eagletrace itself; rows as tuples."""
        return self._retried(sql, lambda: self._connection.execute(sql, params).fetchall())

    def rows(self, sql: str, params: Params = None) -> list[dict[str, Any]]:
        """Run SQL of eagletrace itself; rows as dicts."""

        def read() -> list[dict[str, Any]]:
            result = self._connection.execute(sql, params)
            names = [d[0] for d in result.description or []]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

        return self._retried(sql, read)

    def query(
        self, sql: str, params: Params = None, *, timeout_s: float | None = None, max_bytes: int = MAX_RESULT_BYTES
    ) -> QueryResult:
        """Run one SELECT that a user gave; QueryError if it fails, or is anything but one SELECT.

        It is stopped after `timeout_s`, and when its result outgrows `max_bytes`.
        """
        check_select(sql)
        try:
            return self._retried(sql, lambda: self._select(sql, params, timeout_s, max_bytes))
        except duckdb.InterruptException:
            limit = f" after {timeout_s:g} s" if timeout_s is not None else ""
            raise QueryError(f"the query was stopped{limit}: ask for less, or give it more time") from None
        except duckdb.OutOfMemoryException as error:
            what = str(error).splitlines()[0]
            raise QueryError(f"the query needs more memory than it may use ({what})") from None
        except (duckdb.Error, pa.ArrowException, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise QueryError(f"the query failed: {error or type(error).__name__}") from None

    def _select(self, sql: str, params: Params, timeout_s: float | None, max_bytes: int) -> QueryResult:
        alarm = threading.Timer(timeout_s, self._connection.interrupt) if timeout_s is not None else None
        self._connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            if alarm is not None:
                alarm.daemon = True
                alarm.start()
            with self._connection.sql(sql, params=params).to_arrow_reader(BATCH_ROWS) as reader:
                table = pa.Table.from_batches(_bounded(reader, max_bytes), reader.schema)
            return QueryResult(table.rename_columns(_distinct(table.column_names)))
        finally:
            if alarm is not None:
                alarm.cancel()
            self._connection.execute("ROLLBACK")

    def names(self) -> list[str]:
        """Names that `relation`, `arrow`, `df` and `pl` take: views, tables, and `all_ranks.<table>`."""
        views = [name for name, file in view_files().items() if file.meta.get("kind") != "macro"]
        return sorted({*views, *TABLES, *(f"{ALL_RANKS}.{table}" for table in TABLES)})

    def relation(self, name: str) -> duckdb.DuckDBPyRelation:
        """A view or table as a DuckDB relation: lazy, and read-only as all of the run. UnknownNameError without it.

        It is valid until the run is closed.
        """
        if name not in (known := self.names()):
            raise UnknownNameError("view or table", name, known)
        self.open([name])
        return self._connection.sql(f"FROM {name}")

    def arrow(self, name: str) -> pa.Table:
        """All rows of a view or table as an Arrow table; `query` with a LIMIT or `batches` for less at once."""
        self.relation(name)
        sql = f"FROM {name}"
        return self._retried(sql, lambda: self._connection.sql(sql).to_arrow_table())

    def df(self, name: str) -> pd.DataFrame:
        """All rows of a view or table as a pandas DataFrame of Arrow-backed columns, in which NULL stays NA."""
        frames.require("pandas")
        return frames.to_pandas(self.arrow(name))

    def pl(self, name: str) -> pl.DataFrame:
        """All rows of a view or table as a polars DataFrame."""
        frames.require("polars")
        return frames.to_polars(self.arrow(name))

    def batches(self, sql: str, params: Params = None, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Rows of SQL of eagletrace itself, at most so many at once; one such stream at a time."""
        self.open(names_in(sql))
        with self._connection.sql(sql, params=params).to_arrow_reader(rows) as reader:
            yield from reader

    def interrupt(self) -> None:
        """Stop what runs on the connection now, from another thread."""
        self._connection.interrupt()

    def _retried(self, sql: str, work: Callable[[], T]) -> T:
        """Do `work` with the tables that `sql` names; again with all tables, and without damaged files."""
        self.open(names_in(sql))
        while True:
            try:
                return work()
            except duckdb.CatalogException:  # noqa: PERF203
                if len(self._tables) == len(TABLES) and self._views.issuperset(view_files()):
                    raise
                self.open([*TABLES, *view_files()])
            except _USER_ERRORS:
                raise
            except duckdb.Error:
                if not self._leave_out_damaged():
                    raise

    def _leave_out_damaged(self) -> bool:
        """Read each file that is held, once; whether one was found that cannot be read, and is left out from now on."""
        found = False
        for table in self._tables.values():
            damaged: list[int] = []
            for file in table.large:
                if file.slot not in self._checked:
                    self._checked.add(file.slot)
                    try:
                        self._connection.execute(f"SELECT sum(hash(COLUMNS(*))) FROM read_parquet('{file.path}')")
                    except duckdb.Error as error:
                        table.skip(file.name, error)
                        damaged.append(file.slot)
            if damaged:
                table.large = [file for file in table.large if file.slot not in damaged]
                create_table(self._connection, table)
                found = True
        return found

    def close(self) -> None:
        """Close the connection and the files."""
        self._connection.close()
        self._slots.close()
        self._spill.cleanup()
        if self._source is not None:
            self._source.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_run(path: str | os.PathLike[str], *, memory: str = MEMORY) -> Run:
    """Open a run folder, the newest run of a trace folder, or a run of a data set, by path or URL.

    Of a data set (`eagletrace export --to dataset`) it is the newest run, or the one whose id ends the path.

    Raises NotARunError or NewerSchemaError with a message that says what to do. Files that cannot be read are
    skipped and named in `Run.warnings`. A live run may be opened at any time. `memory` bounds what DuckDB uses.
    """
    name = os.fspath(path)
    if is_dataset(name):
        from eagletrace.store.dataset.source import open_source

        source = open_source(name)
        try:
            return Run(source.info, (), memory, source)
        except BaseException:
            source.close()
            raise
    info, warnings = find_run(user_path(path))
    return Run(info, warnings, memory)


def _bounded(reader: pa.RecordBatchReader, max_bytes: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in reader:
        size += batch.nbytes
        if size > max_bytes:
            raise QueryError(
                f"the result is larger than {max_bytes >> 20} MiB: add LIMIT, aggregate, or name fewer columns"
            )
        yield batch


def check_select(sql: str) -> None:
    """QueryError unless the SQL is one SELECT in DuckDB's dialect."""
    try:
        sql.encode()  # DuckDB takes no text that is not valid Unicode
        statements = duckdb.extract_statements(sql)
    except (duckdb.Error, UnicodeError) as error:
        raise QueryError(f"this is not SQL that DuckDB reads: {error}") from None
    if len(statements) != 1:
        raise QueryError(f"give one statement, not {len(statements)}")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError(f"only SELECT is allowed on a run, not {statements[0].type.name}")


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of which none occurs twice, so that rows as objects keep every column: `a, a` becomes `a, a_1`."""
    taken, result = set(names), list[str]()
    for name in names:
        new, number = name, 0
        while new in result or (number and new in taken):
            number += 1
            new = f"{name}_{number}"
        result.append(new)
    return result


def _lock(connection: duckdb.DuckDBPyConnection, slots: Slots) -> None:
    """No file but those of the slots can be read through DuckDB from here on, and no setting can be changed back."""
    paths = ", ".join("'" + path.replace("'", "''") + "'" for path in slots.allowed_paths())
    connection.execute(f"SET allowed_paths = [{paths}]")
    for setting in ("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions",
                    "enable_external_access"):  # fmt: skip
        connection.execute(f"SET {setting} = false")
    connection.execute("SET lock_configuration = true")
