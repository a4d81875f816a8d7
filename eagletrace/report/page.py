"""The page of a cause, as `eagletrace explain` prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from eagletrace.report.console import make_console, print_parts
from eagletrace.report.text import safe

if TYPE_CHECKING:
    from eagletrace.diagnose import CauseInfo

_ISSUE = re.compile(r"(sglang|vllm|miles|specforge|speculators)#(\d+)", re.IGNORECASE)
_REPOSITORIES = {
    "sglang": "sgl-project/sglang",
    "vllm": "vllm-project/vllm",
    "miles": "radixark/miles",
    "specforge": "sgl-project/SpecForge",
    "speculators": "vllm-project/speculators",
}


def print_page(cause: CauseInfo, file: TextIO | None = None) -> None:
    """Print what a cause is, how it kills acceptance, what shows it, the fix and public cases."""
    print_parts(make_console(file), _parts(cause))


def _parts(cause: CauseInfo) -> Iterator[RenderableType]:
    yield Text.assemble((cause.id, "bold"), ": ", safe(cause.title))
    for heading, text in (
        ("What it is", cause.what),
        ("How it kills acceptance", cause.why),
        ("What shows it", cause.shows),
        ("How to fix it", cause.fix.replace("{draft}", "DRAFT").replace("{target}", "TARGET")),
        ("Not judged from the trace alone; it would take", cause.needs),
        ("Public cases", "\n".join(link(c) for c in cause.cases)),
    ):
        if text:
            yield Text("")
            yield Text(heading, style="bold underline")
            yield Padding(Text(safe(text)), (0, 0, 0, 2), expand=False)


def link(case: str) -> str:
    """A case with the address of its issue where it names one."""
    match = _ISSUE.fullmatch(case.strip())
    return f"https://github.com/{_REPOSITORIES[match[1].lower()]}/issues/{match[2]}" if match else case
