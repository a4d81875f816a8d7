"""The rich console of a command: colours and boxes on a terminal, plain lines that grep reads elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, RenderableType

PLAIN_WIDTH = 100
MIN_PLAIN_WIDTH = 60
MAX_WIDTH = 120


def make_console(file: TextIO | None = None) -> Console:
    """A console on `file` (default: stdout). Plain unless it is a terminal; `NO_COLOR` is rich's own concern."""
    out = file or sys.stdout
    console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() and int(columns) >= MIN_PLAIN_WIDTH else PLAIN_WIDTH
        return Console(file=out, highlight=False, markup=False, emoji=False, color_system=None, width=width)
    console.width = min(console.width, MAX_WIDTH)
    return console


def is_fancy(console: Console) -> bool:
    """Whether boxes and block characters may be used."""
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only


def print_parts(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print parts one below the other; plain output has no trailing spaces."""
    if is_fancy(console):
        for part in parts:
            console.print(part)
        return
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    console.file.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))
