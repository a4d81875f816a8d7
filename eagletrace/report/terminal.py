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
    from eagletrace.diagnose.result import Acceptance, Cause, Check, Diagnosis, Evidence, Proof

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
    yield _diagnosis_card(diagnosis, fancy=fancy)
    yield from _acceptance(diagnosis.acceptance, width, fancy=fancy)
    yield from findings(diagnosis.causes, diagnosis.checks, warnings, width, fancy=fancy)


def findings(
    causes: Sequence[Cause], checks: Sequence[Check], warnings: Sequence[str], width: int, *, fancy: bool
) -> Iterator[RenderableType]:
    """Causes with their evidence, checks, warnings."""
    for number, cause in enumerate(causes, 1):
        yield from _cause(number, cause, width, fancy=fancy)
    yield from _checks(checks, causes)
    if warnings:
        yield from bullets("Warnings", warnings, "yellow")


def bullets(heading: str, texts: Sequence[str], style: str = "") -> Iterator[RenderableType]:
    """A heading with a list below it."""
    yield from _heading(heading)
    yield from (_bullet(text, style) for text in texts)


def _diagnosis_card(diagnosis: Diagnosis, *, fancy: bool) -> RenderableType:
    a, run = diagnosis.acceptance, diagnosis.run
    counted = a.rounds and a.accept_length is not None
    length = f"{a.accept_length:.2f} over {a.rounds:,} rounds" if counted else ""
    served = f"SGLang {run.sglang}" if run.sglang else "an engine of unknown version"
    return card(
        "eagletrace diagnose",
        diagnosis.verdict,
        diagnosis.causes[0].title if diagnosis.causes else _plain_verdict(diagnosis),
        diagnosis.causes[:1],
        [("Accept length", length), ("Why", diagnosis.why), ("Next", diagnosis.next)],
        f"run {run.id}, {served}, draft {run.draft or '-'}, target {run.target or '-'}",
        fancy=fancy,
    )


def card(
    title: str, verdict: str, what: str, causes: Sequence[Cause], lines: Sequence[tuple[str, str]], subject: str, *,
    fancy: bool,
) -> RenderableType:  # fmt: skip
    """The card on top: verdict and what was found, the first of `causes`, labelled lines (empty ones are left out),
    and what it is about."""
    word, colour = VERDICTS[verdict]
    texts = [Text.assemble((f"{word}: ", f"bold {colour}"), (safe(what), "bold"))]
    texts += [_labelled("Cause", f"{c.id} ({c.severity}, confidence {c.confidence:.0%})") for c in causes]
    texts += [_labelled(label, text) for label, text in lines]
    texts.append(Text(safe(subject), "dim"))
    body = Group(*(text for text in texts if text.plain))
    return Panel(body, border_style=colour, title=Text(title), title_align="left") if fancy else body


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
    if words := proved(cause.proof):
        yield Text(words)
    yield Text(safe(f"More: eagletrace explain {cause.id}"), style="dim")


def proved(proof: Proof) -> str:
    """A proof in words, or what was replayed where nothing was regained; empty where there was no replay."""
    lengths = ((proof.served_accept_length, "as served"), (proof.repaired_accept_length, "repaired"))
    told = ", ".join(f"{length:.2f} {when}" for length, when in lengths if length is not None)
    said = [f"accept length {told}"] if told else []
    if proof.reproduces_served is not None:
        said.append(f"with this fault the reference drafts {proof.reproduces_served:.1%} of the served tokens")
    label = "Replay" if proof.repaired_accept_length is None else "Proof by replay"
    return f"{label}: {'; '.join(said)}" if said else ""


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
