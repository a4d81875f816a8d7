"""The page of a cause, as `eagletrace explain` prints it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TextIO

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from eagletrace.report.console import make_console
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
    console = make_console(file)
    console.print(Text.assemble((cause.id, "bold"), ": ", safe(cause.title)))
    sections = [
        ("What it is", cause.what),
        ("How it kills acceptance", cause.why),
        ("What shows it", cause.shows),
        ("How to fix it", cause.fix.replace("{draft}", "the draft's folder").replace("{target}", "the target's folder")),
        ("Not judged from the trace alone; it would take", cause.needs or ""),
        ("Public cases", "\n".join(link(c) for c in cause.cases)),
    ]
    for heading, text in sections:
        if text:
            console.print()
            console.print(Text(heading, style="bold underline"))
            console.print(_indented(text))


def link(case: str) -> str:
    """A case with the address of its issue where it names one."""
    match = _ISSUE.fullmatch(case.strip())
    return f"https://github.com/{_REPOSITORIES[match[1].lower()]}/issues/{match[2]}" if match else case


def _indented(text: str) -> RenderableType:
    return Padding(Text(safe(text)), (0, 0, 0, 2), expand=False)
