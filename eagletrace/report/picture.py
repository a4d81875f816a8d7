"""A diagnosis as an SVG picture, as a terminal would show it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from eagletrace.report.terminal import render

if TYPE_CHECKING:
    from eagletrace.diagnose.result import Diagnosis

_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")  # fonts from the network: the picture is self-contained


def diagnosis_svg(diagnosis: Diagnosis, warnings: Sequence[str] = (), width: int = 100) -> str:
    """The report as one self-contained SVG, `width` characters wide."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    for part in render(diagnosis, warnings, width, fancy=True):
        console.print(part)
    svg = console.export_svg(title=f"eagletrace diagnose {diagnosis.run.id}", unique_id="eagletrace")
    return _FONT_FACE.sub("", svg)


def write_svg(path: Path, diagnosis: Diagnosis, warnings: Sequence[str] = (), width: int = 100) -> None:
    """Write the report as an SVG file."""
    path.write_text(diagnosis_svg(diagnosis, warnings, width), encoding="utf-8")
