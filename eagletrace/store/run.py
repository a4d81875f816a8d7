"""Opens a run for reading: DuckDB in memory, views over what was recorded, nothing else within reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

from eagletrace.errors import EagletraceError
from eagletrace.format import TABLES
from eagletrace.store.files import TableFiles, read_table
from eagletrace.store.folder import RunInfo, find_run, user_path
from eagletrace.store.views import create_tables, create_views

Params = Mapping[str, Any] | Sequence[Any] | None


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
    """One recorded run. `connection` is a DuckDB connection with the views of `queries/views`.

    `warnings` names the files that were skipped. Use as a context manager, or `close()` it.
    """

    def __init__(self, info: RunInfo, tables: Mapping[str, TableFiles], warnings: Sequence[str]) -> None:
        self.info = info
        self.path = info.path
        self.warnings = [*warnings, *(w for t in tables.values() for w in t.warnings)]
        self._tables = tables
        self.connection = duckdb.connect(config={"python_enable_replacements": False})
        create_tables(self.connection, tables)
        create_views(self.connection)
        _lock(self.connection)

    def rows(self, sql: str, params: Params = None) -> list[dict[str, Any]]:
        """Run SQL of eagletrace itself; rows as dicts."""
        result = self.connection.execute(sql, params)
        names = [d[0] for d in result.description or []]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def query(self, sql: str, params: Params = None) -> QueryResult:
        """Run one SELECT that a user gave; QueryError if it fails, or is anything but one SELECT."""
        _check_select(sql)
        self.connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            table = self.connection.sql(sql, params=params).to_arrow_table()
            return QueryResult(table.rename_columns(_distinct(table.column_names)))
        except (duckdb.Error, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise QueryError(f"the query failed: {error}") from None
        finally:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection and the files."""
        self.connection.close()
        for table in self._tables.values():
            table.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder, or the newest run of a trace folder.

    Raises NotARunError or NewerSchemaError with a message that says what to do. Files that cannot be read are
    skipped and named in `Run.warnings`. A live run may be opened at any time.
    """
    info, warnings = find_run(user_path(path))
    # Load-time facts first, requests last: every round read here has its request.
    names = sorted(TABLES, key=lambda name: name == "requests")
    return Run(info, {name: read_table(info.path, name) for name in names}, warnings)


def _check_select(sql: str) -> None:
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


def _lock(connection: duckdb.DuckDBPyConnection) -> None:
    """No file can be read or written through DuckDB from here on, and no setting can be changed back."""
    folder = Path(tempfile.gettempdir()) / f"eagletrace-{os.getpid()}"  # where large sorts spill
    connection.execute(f"SET temp_directory = '{str(folder).replace(chr(39), chr(39) * 2)}'")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
