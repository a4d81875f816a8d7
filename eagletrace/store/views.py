"""Creates the tables and views of a run in a DuckDB connection, those that a query names and what they need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import TopologicalSorter

import duckdb
import pyarrow as pa

from eagletrace.format import TABLES
from eagletrace.store.files import TableFiles, empty
from eagletrace.store.sqlfile import SqlFile, load_folder

ALL_RANKS = "all_ranks"
IN_MEMORY = "_in_memory"  # what small files held
_LISTING = ("show", "information_schema", "pragma", "duckdb_", "pg_", "sqlite_", "query")
"""Words that list the tables, or make SQL of their own: everything is opened for them."""


@cache
def view_files() -> Mapping[str, SqlFile]:
    """The files of `queries/views`, each after those that it needs."""
    files = load_folder("views")
    return {name: files[name] for name in creation_order(files)}


def creation_order(files: Mapping[str, SqlFile]) -> list[str]:
    """Names of the view files, each after the views that it needs."""
    graph = {name: [n for n in file.words("needs") if n in files] for name, file in files.items()}
    return list(TopologicalSorter(graph).static_order())


def names_in(sql: str) -> set[str]:
    """Tables and views that the SQL may read; all of them where it lists tables or builds SQL itself."""
    known = {*view_files(), *TABLES}
    words = set(re.findall(r"\w+", sql.lower()))
    if any(word.startswith(_LISTING) for word in words):
        return known
    return words & known


def needed(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tables that have to be opened for these tables and views, and the views to be created, in order.

    `requests` is opened last, and never without `rounds`: every round that is read has its request.
    """
    files = view_files()
    tables, views, todo = set[str](), set[str](), list(names)
    while todo:
        name = todo.pop()
        if name in files and name not in views:
            views.add(name)
            todo.extend(files[name].words("needs"))
        elif name.removeprefix(f"{ALL_RANKS}.") in TABLES and name not in files:
            tables.add(name.removeprefix(f"{ALL_RANKS}."))
    if "requests" in tables:
        tables.add("rounds")
    plain = [t for t in TABLES if t in tables and t not in files]
    order = sorted((t for t in TABLES if t in tables), key=lambda name: name == "requests")
    return order, [*plain, *(name for name in files if name in views)]


def create_table(connection: duckdb.DuckDBPyConnection, files: TableFiles) -> None:
    """Create or replace `all_ranks.<table>`, with every row of every rank; large files stay where they are."""
    target = f"{ALL_RANKS}.{files.table}"
    memory = f"{target}{IN_MEMORY}"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {ALL_RANKS}")
    _insert(connection, f"CREATE OR REPLACE TABLE {memory} AS SELECT * FROM _rows", empty(files.schema))
    small = False
    for part in files.batches():
        _insert(connection, f"INSERT INTO {memory} BY NAME SELECT * FROM _rows", part)
        small = True
    sources = [f"SELECT * FROM {memory}"] if small or not files.large else []
    if files.large:
        sources.append(_read_in_place(connection, files))
    connection.execute(f"CREATE OR REPLACE VIEW {target} AS {' UNION ALL BY NAME '.join(sources)}")


def create_view(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Create or replace one view or macro of `queries/views`, or the view of a table that has none there."""
    file = view_files().get(name)
    if file is None:
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {ALL_RANKS}.{name}")
    elif file.meta.get("kind") == "macro":
        connection.execute(f"CREATE OR REPLACE MACRO {name} {file.sql}")
    else:
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS {file.sql}")


def _insert(connection: duckdb.DuckDBPyConnection, sql: str, rows: pa.Table) -> None:
    connection.register("_rows", rows)
    try:
        connection.execute(sql)
    finally:
        connection.unregister("_rows")


def _read_in_place(connection: duckdb.DuckDBPyConnection, files: TableFiles) -> str:
    """A SELECT over the large files, with every column of the table in its order."""
    there = {name for file in files.large for name in file.schema.names}
    alike = all(file.schema == files.large[0].schema for file in files.large)
    paths = ", ".join(f"'{file.path}'" for file in files.large)
    types = dict(connection.execute(
        f"SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = '{ALL_RANKS}' "
        f"AND table_name = '{files.table}{IN_MEMORY}'"
    ).fetchall())  # fmt: skip
    columns = [_quoted(n) if n in there else f"NULL::{types[n]} AS {_quoted(n)}" for n in files.schema.names]
    options = f"hive_partitioning = false, union_by_name = {str(not alike).lower()}"
    return f"SELECT {', '.join(columns)} FROM read_parquet([{paths}], {options})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
