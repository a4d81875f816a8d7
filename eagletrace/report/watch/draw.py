"""Small drawings of characters: charts of a course, bars, panels; with ASCII alone where nothing else may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII_BLOCKS = " .:-=+*#@"
GOOD, POOR, BAD, DIM = "green", "yellow", "red", "dim"


@dataclass(frozen=True)
class Place:
    """Where something is drawn: characters, lines, the first line of a list, and whether blocks and colours may be."""

    width: int
    lines: int
    scroll: int = 0
    fancy: bool = True


def chart(values: Sequence[float | None], low: float, high: float, rows: int, *, fancy: bool) -> list[str]:
    """Values as columns, `rows` characters high; None leaves a gap, the lowest value still shows."""
    blocks = BLOCKS if fancy else ASCII_BLOCKS
    steps = rows * 8
    span = high - low or 1.0
    heights = [0 if v is None else max(1, round(min(max((v - low) / span, 0.0), 1.0) * steps)) for v in values]
    return ["".join(blocks[min(8, max(0, h - 8 * row))] for h in heights) for row in reversed(range(rows))]


def sparkline(values: Sequence[float | None], low: float, high: float, *, fancy: bool) -> str:
    """Values as one line of blocks."""
    return chart(values, low, high, 1, fancy=fancy)[0]


def share_style(share: float | None) -> str:
    """The colour of a rate of acceptance."""
    return DIM if share is None else GOOD if share >= 0.5 else POOR if share >= 0.2 else BAD


def panel(title: str, body: RenderableType, height: int | None, *, fancy: bool) -> RenderableType:
    """A box of this height with a title; without boxes a heading."""
    if not fancy:
        return Group(Text(title, style="bold"), body, Text(""))
    return Panel(body, title=Text(title, style="bold"), title_align="left", height=height, border_style="bright_black",
                 padding=(0, 1))  # fmt: skip


def grid(*columns: tuple[str, bool], header: bool = True, expand: bool = False) -> Table:
    """A table without lines; `(name, whether numbers stand in it)`. Nothing wraps: what is too long is cut."""
    table = Table(box=None, show_header=header, header_style=DIM, pad_edge=False, padding=(0, 2, 0, 0), expand=expand)
    for name, numbers in columns:
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True, overflow="ellipsis")
    return table


def line(*parts: str | tuple[str, str]) -> Text:
    """One line of text that is cut, not wrapped."""
    text = Text.assemble(*parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def number(value: float | None, digits: int = 0) -> str:
    """A number with separators; `-` for one that is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share in percent, without decimals where there is no space for them."""
    return "-" if value is None else f"{value:.1%}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days} d {clock}" if days else clock


def span_name(seconds: float) -> str:
    """A span of time, short."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
