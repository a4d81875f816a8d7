"""A check of files on the terminal, in the form of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from rich.console import RenderableType

from eagletrace.report.console import is_fancy, make_console, print_parts
from eagletrace.report.terminal import bullets, card, findings

if TYPE_CHECKING:
    from eagletrace.check.result import FileCheck, Repair

NOTHING = "no fault in the files"


def print_check(result: FileCheck, file: TextIO | None = None) -> None:
    """Print a check to `file` (default: stdout)."""
    console = make_console(file)
    print_parts(console, render(result, console.width, fancy=is_fancy(console)))


def render(result: FileCheck, width: int, *, fancy: bool) -> Iterator[RenderableType]:
    """The parts of the report, top to bottom."""
    yield card(
        "eagletrace check",
        result.verdict,
        result.causes[0].title if result.causes else NOTHING,
        result.causes[:1],
        [("Why", result.why), ("Next", result.next)],
        f"SGLang {result.engine}, draft {result.draft}, target {result.target or '-'}",
        fancy=fancy,
    )
    yield from findings(result.causes, result.checks, result.notes, width, fancy=fancy)
    if result.repair is not None:
        yield from _repair(result.repair)


def _repair(repair: Repair) -> Iterator[RenderableType]:
    if repair.folder is None:
        yield from bullets("Repair", ["nothing could be repaired with certainty; no copy was written"])
    else:
        verdict = "passes this check" if repair.verdict == "healthy" else "still has a fault"
        yield from bullets(f"Repaired copy: {repair.folder} ({verdict})", repair.changed, "green")
    if repair.left:
        yield from bullets("Not repaired", repair.left, "yellow")
