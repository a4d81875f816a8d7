"""Acceptance by depth and the histogram of correct drafts, as small bar charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from eagletrace.diagnose.result import Acceptance

MIN_BAR = 8
MAX_BAR = 30
EIGHTHS = " ▏▎▍▌▋▊▉"
DEPTH_COLUMNS_WIDTH = 52  # what stands beside the bar of a depth
COUNTS_WIDTH = 18  # accepted / reached, left out on a narrow terminal
HISTOGRAM_COLUMNS_WIDTH = 34


def bar(share: float, width: int, *, fancy: bool) -> str:
    """A horizontal bar for a share from 0 to 1; `#` where block characters may not be used."""
    share = min(max(share, 0.0), 1.0)
    if not fancy:
        return "#" * round(share * width)
    full, eighth = divmod(round(share * width * 8), 8)
    return "█" * full + (EIGHTHS[eighth] if eighth else "")


def bar_width(console_width: int, beside: int) -> int:
    """Cells left for the bar, within sane bounds."""
    return max(MIN_BAR, min(MAX_BAR, console_width - beside))


def percent(value: float | None) -> str:
    """A share in percent; `-` for one that cannot be told."""
    return "-" if value is None else f"{value:.1%}"


def depth_chart(acceptance: Acceptance, width: int, *, fancy: bool) -> Table:
    """One line per depth: the conditional rate as a bar with its interval, the unconditional rate beside it."""
    with_counts = width >= DEPTH_COLUMNS_WIDTH + COUNTS_WIDTH + MIN_BAR
    cells = bar_width(width, DEPTH_COLUMNS_WIDTH + (COUNTS_WIDTH if with_counts else 0))
    names = ["depth", "", "conditional", "95 % interval", "unconditional"]
    table = _grid(*names, *(["accepted/reached"] if with_counts else []), left=1)
    for d in acceptance.by_depth:
        row = [
            str(d.depth),
            Text(bar(d.rate or 0.0, cells, fancy=fancy), style="green" if (d.rate or 0) >= 0.5 else "yellow"),
            percent(d.rate),
            "-" if d.rate is None else "{:.1%} to {:.1%}".format(*d.interval),
            percent(d.unconditional),
            f"{d.accepted:,}/{d.reached:,}",
        ]
        table.add_row(*row[: len(table.columns)])
    return table


def histogram_chart(acceptance: Acceptance, width: int, *, fancy: bool) -> Table:
    """One line per number of correct drafts: how many rounds had so many."""
    cells = bar_width(width, HISTOGRAM_COLUMNS_WIDTH)
    table = _grid("correct drafts", "", "rounds", "share", left=1)
    for correct, rounds in enumerate(acceptance.histogram):
        share = rounds / acceptance.rounds
        table.add_row(str(correct), Text(bar(share, cells, fancy=fancy), style="cyan"), f"{rounds:,}", percent(share))
    return table


def _grid(*names: str, left: int) -> Table:
    """A table without lines, so that piped output stays greppable; column `left` is not right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index == left else "right", no_wrap=index == left)
    return table
