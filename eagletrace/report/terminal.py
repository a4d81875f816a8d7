"""A diagnosis on the terminal: the verdict card, acceptance, causes with evidence, checks, warnings."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from eagletrace.report.charts import depth_chart, histogram_chart
from eagletrace.report.console import PLAIN_WIDTH, is_fancy, make_console, print_parts
from eagletrace.report.evidence import evidence_rows
from eagletrace.report.text import safe

if TYPE_CHECKING:
    from eagletrace.diagnose.result import Acceptance, Cause, Check, Diagnosis, Evidence

VERDICTS = {
    "fault": ("FAULT", "red"),
    "weak_draft": ("WEAK DRAFT", "yellow"),
    "healthy": ("HEALTHY", "green"),
    "inconclusive": ("INCONCLUSIVE", "yellow"),
    "no_speculation": ("NO SPECULATION", "blue"),
}


def print_diagnosis(diagnosis: Diagnosis, warnings: Sequence[str] = (), file: TextIO | None = None) -> None:
    """Print a diagnosis to `file` (default: stdout), for a terminal or plain as `file` is one or not."""
    console = make_console(file)
    print_parts(console, render(diagnosis, warnings, console.width, fancy=is_fancy(console)))


def plain_text(diagnosis: Diagnosis, warnings: Sequence[str] = (), width: int = PLAIN_WIDTH) -> str:
    """The report as plain text: no colours, no boxes, no trailing spaces."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    print_parts(console, render(diagnosis, warnings, width, fancy=False))
    return out.getvalue()


def render(diagnosis: Diagnosis, warnings: Sequence[str], width: int, *, fancy: bool) -> Iterator[RenderableType]:
    """The parts of the report, top to bottom."""
    yield _card(diagnosis, fancy=fancy)
    yield from _acceptance(diagnosis.acceptance, width, fancy=fancy)
    for number, cause in enumerate(diagnosis.causes, 1):
        yield from _cause(number, cause, width, fancy=fancy)
    yield from _checks(diagnosis.checks, diagnosis.causes)
    if warnings:
        yield from _heading("Warnings")
        yield from (_bullet(w, "yellow") for w in warnings)


def _card(diagnosis: Diagnosis, *, fancy: bool) -> RenderableType:
    """What, why, what to do next."""
    word, colour = VERDICTS[diagnosis.verdict]
    a = diagnosis.acceptance
    what = Text(f"{word}: ", style=f"bold {colour}")
    what.append(safe(diagnosis.causes[0].title) if diagnosis.causes else _plain_verdict(diagnosis), style="bold")
    lines = [what]
    if diagnosis.causes:
        cause = diagnosis.causes[0]
        lines.append(_labelled("Cause", f"{cause.id} ({cause.severity}, confidence {cause.confidence:.0%})"))
    if a.rounds and a.accept_length is not None:
        lines.append(_labelled("Accept length", f"{a.accept_length:.2f} over {a.rounds:,} rounds"))
    lines.append(_labelled("Why", diagnosis.why))
    lines.append(_labelled("Next", diagnosis.next))
    run = diagnosis.run
    served = f"SGLang {run.sglang}" if run.sglang else "an engine of unknown version"
    lines.append(Text(safe(f"run {run.id}, {served}, draft {run.draft or '-'}, target {run.target or '-'}"), "dim"))
    body = Group(*(line for line in lines if line.plain))
    return Panel(body, border_style=colour, title=Text("eagletrace diagnose"), title_align="left") if fancy else body


def _plain_verdict(diagnosis: Diagnosis) -> str:
    return {
        "healthy": "no cause for a loss of acceptance",
        "weak_draft": "the draft predicts no better than it is accepted",
        "inconclusive": "too little was recorded to tell",
        "no_speculation": "the server ran without speculative decoding",
        "fault": "something is wrong",
    }[diagnosis.verdict]


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}: ", "bold"), safe(text)) if text else Text()


def _heading(text: str) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(text, style="bold underline")


def _bullet(text: str, style: str = "") -> RenderableType:
    return Padding(Text("- " + safe(text), style=style), (0, 0, 0, 2))


def _acceptance(a: Acceptance, width: int, *, fancy: bool) -> Iterator[RenderableType]:
    if not a.rounds:
        return
    yield from _heading("Acceptance by depth")
    yield depth_chart(a, width, fancy=fancy)
    yield Text("conditional: accepted / rounds that reached this depth; unconditional: accepted / all rounds", "dim")
    yield from _heading("Correct drafts per round")
    yield histogram_chart(a, width, fancy=fancy)
    if a.accept_length is not None:
        yield Text("")
        yield Text(f"accept length {a.accept_length:.3f} = 1 + {a.accepted:,} accepted / {a.rounds:,} rounds")
    if a.engine_reported_accept_length is not None:
        engine = f"accept length as the engine reports it {a.engine_reported_accept_length:.3f}"
        yield Text(safe(f"{engine}: {a.engine_difference}" if a.engine_difference else engine))


def _cause(number: int, cause: Cause, width: int, *, fancy: bool) -> Iterator[RenderableType]:
    yield from _heading(f"Cause {number}: {safe(cause.id)} ({cause.severity}, confidence {cause.confidence:.0%})")
    yield Text(safe(cause.title), style="bold")
    for evidence in cause.evidence:
        yield from _evidence(evidence, width, fancy=fancy)
    yield Text.assemble(("Fix: ", "bold green"), safe(cause.fix))
    proof = cause.proof
    if proof.repaired_accept_length is not None and proof.served_accept_length is not None:
        yield Text(
            f"Proof by replay: accept length {proof.served_accept_length:.2f} as served, "
            f"{proof.repaired_accept_length:.2f} repaired"
        )
    yield Text(safe(f"More: eagletrace explain {cause.id}"), style="dim")


def _evidence(evidence: Evidence, width: int, *, fancy: bool) -> Iterator[RenderableType]:
    yield Padding(Text.assemble("- ", safe(evidence.text), (f"  [{safe(evidence.query)}]", "dim")), (0, 0, 0, 2))
    yield from evidence_rows(evidence.rows, width, fancy=fancy)


def _checks(checks: Sequence[Check], causes: Sequence[Cause]) -> Iterator[RenderableType]:
    """Alarms and unknowns in full, those that are a cause's evidence by name, the others counted."""
    if not checks:
        return
    yield from _heading("Checks")
    open_alarms = [c for c in checks if c.status == "alarm"]
    for number, cause in enumerate(causes, 1):
        texts = tuple(evidence.text for evidence in cause.evidence)
        shown = [c for c in open_alarms if texts and c.reason.startswith(texts)]
        open_alarms = [c for c in open_alarms if c not in shown]
        if shown:
            yield _bullet(f"alarm, see cause {number}: {', '.join(c.id for c in shown)}", "red")
    for check in (*open_alarms, *(c for c in checks if c.status == "unknown")):
        yield _bullet(f"{check.status} {check.id}: {check.reason}", "red" if check.status == "alarm" else "yellow")
    counts = {s: sum(c.status == s for c in checks) for s in ("ok", "not_applicable", "alarm", "unknown")}
    yield _bullet(", ".join(f"{n} {s.replace('_', ' ')}" for s, n in counts.items() if n))
