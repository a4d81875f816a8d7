"""The rows behind a finding, small enough to read: a table, or lines for a single one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from eagletrace.report.tables import plain_table, rich_table
from eagletrace.report.text import cell, safe

MAX_ROWS = 5
MAX_CELL = 48
MAX_VALUE = 400
INDENT = 4
SPACE_BETWEEN = 3  # columns of a drawn table; plain ones take two

Row = Mapping[str, Any]


def evidence_rows(rows: Sequence[Row], width: int, *, fancy: bool) -> Iterator[RenderableType]:
    """The first rows within `width`, indented; says how many there are when some are left out."""
    if not rows:
        return
    shown = rows[:MAX_ROWS]
    names = _fitting(shown, list(rows[0]), width - INDENT)
    if len(shown) == 1:
        yield from _single(shown[0])
    elif fancy:
        yield Padding(rich_table(shown, names), (0, 0, 0, INDENT))
    else:
        yield from (Padding(Text(line, no_wrap=True), (0, 0, 0, INDENT)) for line in plain_table(_short(shown), names))
    if len(rows) > len(shown):
        yield Padding(Text(f"{len(shown)} of {len(rows)} rows (--json has all)", "dim"), (0, 0, 0, INDENT))


def _short(rows: Sequence[Row]) -> list[Row]:
    return [{k: v if isinstance(v, int | float) else cell(v, MAX_CELL) for k, v in row.items()} for row in rows]


def _fitting(rows: Sequence[Row], names: list[str], width: int) -> list[str]:
    """The leading columns that fit; at least one."""
    used, fitting = 0, 0
    for name in names:
        used += max(len(name), *(len(cell(row.get(name), MAX_CELL)) for row in rows)) + SPACE_BETWEEN
        if used - SPACE_BETWEEN > width:
            break
        fitting += 1
    return names[: max(fitting, 1)]


def _single(row: Row) -> Iterator[RenderableType]:
    """One row in one line, or a line per value when a value has parts of its own."""
    named = [(safe(name), cell(value, MAX_VALUE)) for name, value in row.items()]
    if any(isinstance(value, Mapping) for value in row.values()):
        for name, value in named:
            yield Padding(Text.assemble((f"{name}: ", "dim"), value), (0, 0, 0, INDENT))
    else:
        yield Padding(Text("; ".join(f"{name}: {value}" for name, value in named), "dim"), (0, 0, 0, INDENT))
