"""Creates the tables and views of a run in a DuckDB connection."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter

import duckdb

from eagletrace.format import TABLES
from eagletrace.store.files import TableFiles
from eagletrace.store.sqlfile import SqlFile, load_folder

ALL_RANKS = "all_ranks"


def create_tables(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, TableFiles]) -> None:
    """Create `all_ranks.<table>` for every table, with every row of every rank.

    Large files stay where they are: they are seen through this connection only, not through its cursors.
    """
    connection.execute(f"CREATE SCHEMA {ALL_RANKS}")
    for name, files in tables.items():
        connection.register("_rows", files.rows)
        large = files.dataset()
        target = f"{ALL_RANKS}.{name}"
        if large is None:
            connection.execute(f"CREATE TABLE {target} AS SELECT * FROM _rows")
        else:
            connection.execute(f"CREATE TABLE {target}_in_memory AS SELECT * FROM _rows")
            connection.register(f"{name}_in_files", large)
            connection.execute(
                f"CREATE VIEW {target} AS SELECT * FROM {target}_in_memory UNION ALL BY NAME FROM {name}_in_files"
            )
        connection.unregister("_rows")


def create_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the views of `queries/views`, and `<table>` for each table that has no view of its own there."""
    files = load_folder("views")
    for name in TABLES:
        if name not in files:
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {ALL_RANKS}.{name}")
    for name in creation_order(files):
        file = files[name]
        if file.meta.get("kind") == "macro":
            connection.execute(f"CREATE MACRO {name} {file.sql}")
        else:
            connection.execute(f"CREATE VIEW {name} AS {file.sql}")


def creation_order(files: Mapping[str, SqlFile]) -> list[str]:
    """Names of the view files, each after the views that it needs."""
    graph = {name: [n for n in file.words("needs") if n in files] for name, file in files.items()}
    return list(TopologicalSorter(graph).static_order())
