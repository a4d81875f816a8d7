"""Rows of a query as a table: drawn by rich on a terminal, aligned columns of one line per row elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from eagletrace.report.console import is_fancy, make_console
from eagletrace.report.text import cell, safe

PLAIN_CELL = 200


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, file: TextIO | None = None
) -> None:
    """Print rows; without rows the column names and `(no rows)`."""
    names = list(columns if columns is not None else (rows[0] if rows else ()))
    console = make_console(file)
    if is_fancy(console):
        console.print(rich_table(rows, names))
        if not rows:
            console.print("(no rows)", style="dim")
    else:
        out = file or sys.stdout
        out.writelines(line + "\n" for line in plain_table(rows, names))


def rich_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    """Rows as a rich table; numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(Text(safe(name)), justify="right" if is_numeric(rows, name) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(n))) for n in names))
    return table


def plain_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], indent: str = "") -> list[str]:
    """Rows as aligned lines, the header first; nothing is wrapped."""
    if not names:
        return [f"{indent}(no rows)"]
    cells = [[safe(n) for n in names]] + [[cell(row.get(n), PLAIN_CELL) for n in names] for row in rows]
    right = [False if not rows else is_numeric(rows, n) for n in names]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    lines = [
        indent
        + "  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right, strict=True)).rstrip()
        for line in cells
    ]
    return lines if rows else [*lines, f"{indent}(no rows)"]


def is_numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column holds numbers (and NULL) alone."""
    values = [row.get(name) for row in rows if row.get(name) is not None]
    return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
