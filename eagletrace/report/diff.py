"""A diff on the terminal: verdict, facts, behaviour with intervals, first divergence, causes; a table of many runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from eagletrace.report.console import is_fancy, make_console, print_parts
from eagletrace.report.diff_facts import fact_lines, values
from eagletrace.report.diff_training import training_lines
from eagletrace.report.tables import plain_table, rich_table
from eagletrace.report.terminal import bullets, proved
from eagletrace.report.text import cell, safe

if TYPE_CHECKING:
    from eagletrace.diagnose import RunInfo
    from eagletrace.diff import Diff, Difference, Divergence, Explanation, Parting

VERDICTS = {"same": ("NO SIGNIFICANT CHANGE", "green"), "changed": ("CHANGED", "yellow")}
LENGTH = "accept_length"
STYLES = {"changed": "bold yellow", "same": "green", "undetectable": "dim"}
KEYS_SHOWN = 4
PARTINGS = {
    "output_token": "the output token is", "drafted_token": "the drafted token is", "tree": "the drafted tree has",
    "target_token": "the target's token is", "verdict": "the verdict is",
}  # fmt: skip


def print_diff(
    diff: Diff, *, everything: bool = False, names: tuple[str, str] = ("A", "B"), file: TextIO | None = None
) -> None:
    """Print a diff to `file` (default: stdout); with `everything` every fact and every comparison."""
    console = make_console(file)
    print_parts(console, render(diff, console.width, everything=everything, names=names, fancy=is_fancy(console)))


def print_table(diffs: Sequence[Diff], file: TextIO | None = None) -> None:
    """Print several runs against the first, a line for each."""
    console = make_console(file)
    print_parts(console, _table_of_runs(diffs, fancy=is_fancy(console)))


def render(
    diff: Diff, width: int, *, everything: bool, names: tuple[str, str], fancy: bool
) -> Iterator[RenderableType]:
    """The parts of the report, top to bottom."""
    yield _card(diff, names, fancy=fancy)
    if diff.training is not None:
        yield from _heading("Training and serving")
        yield from (_line(text, style) for text, style in training_lines(diff.training, names))
    yield from _heading("Load-time facts")
    yield from (_line(text, style) for text, style in fact_lines(diff, width, everything=everything))
    yield from _behaviour(diff, names, everything=everything, fancy=fancy)
    yield from _divergence(diff.divergence, names)
    yield from _causes(diff)
    if diff.notes:
        yield from bullets("Notes", diff.notes, "yellow")


def _card(diff: Diff, names: tuple[str, str], *, fancy: bool) -> RenderableType:
    word, colour = VERDICTS[diff.verdict]
    texts = [Text.assemble((f"{word}: ", f"bold {colour}"), (safe(diff.why), "bold"))]
    if told := lengths(diff):
        texts.append(_labelled("Accept length", told))
    for explanation in diff.explanations:
        texts.append(_labelled(*explained(explanation)))
        if explanation.fix:
            texts.append(Text.assemble(("Fix: ", "bold green"), safe(explanation.fix)))
    if diff.divergence.first is not None:
        texts.append(_labelled("First divergence", _parting(diff.divergence.first, names)))
    texts += [Text(safe(_subject(name, run)), "dim") for name, run in zip(names, (diff.a, diff.b), strict=True)]
    body = Group(*texts)
    return Panel(body, border_style=colour, title=Text("eagletrace diff"), title_align="left") if fancy else body


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}: ", "bold"), safe(text))


def lengths(diff: Diff) -> str:
    """Both accept lengths and how sure their difference is; empty where one is not known."""
    length = _length(diff)
    if length is None or length.a is None or length.b is None:
        return ""
    return f"{length.a:.2f} -> {length.b:.2f}{_by(length)}"


def _by(length: Difference) -> str:
    if length.ci_low is None or length.ci_high is None:
        return f" ({length.why})" if length.why else ""
    says = "significant" if length.significant else "not significant"
    return f", {length.difference:+.2f} (95 % interval {length.ci_low:+.2f} to {length.ci_high:+.2f}), {says}"


def explained(found: Explanation) -> tuple[str, str]:
    """A cause with what bears on it, or a change of behaviour with what else changed."""
    keys = [f"{c.key}: {values(c, 32)}" for c in found.changes[:KEYS_SHOWN]]
    more = len(found.changes) - len(keys)
    text = "; ".join(keys) + (f"; and {more} more" if more > 0 else "")
    if found.cause is None:
        return "May explain it", text or "no load-time fact that acts on acceptance changed"
    facts = f" ({text})" if text else " (no fact that bears on it changed)"
    proof = f". {words}" if (words := proved(found.proof)) else ""
    return f"Cause {found.delta}", f"{found.cause}{facts}{proof}"


def _subject(name: str, run: RunInfo) -> str:
    return f"{name}: run {run.id}, SGLang {run.sglang or '-'}, draft {run.draft or '-'}, target {run.target or '-'}"


def _heading(text: str) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(text, style="bold underline")


def _line(text: str, style: str = "") -> RenderableType:
    return Padding(Text(safe(text), style=style), (0, 0, 0, 2))


def label(name: str) -> str:
    """The name of a comparison in words."""
    kind, _, part = name.partition(".")
    words = part.replace("depth_", "").replace("_", " ")
    plain = {
        LENGTH: "accept length", "rate": f"rate at depth {words}",
        "unconditional_rate": f"unconditional rate at depth {words}",
        "correct_drafts": f"rounds with {words} correct drafts", "rank": f"target's token: rank {words}",
        "out_of_vocabulary": "target's token: not draftable",
    }  # fmt: skip
    if kind == LENGTH and part:
        split, _, value = part.partition(".")
        return f"{split.replace('_', ' ')}: {value.replace('_', ' ')}"
    return plain.get(kind, name)


def _behaviour(diff: Diff, names: tuple[str, str], *, everything: bool, fancy: bool) -> Iterator[RenderableType]:
    if not diff.behaviour:
        return
    how = "requests of the same prompts in pairs" if diff.paired else "requests as independent samples"
    tested = sum(d.p is not None for d in diff.behaviour)
    yield from _heading("Behaviour")
    yield from _rows([d for d in diff.behaviour if not d.group], names, fancy=fancy)
    splits = [d for d in diff.behaviour if d.group]
    shown = splits if everything else [d for d in splits if d.significant]
    if splits:
        yield from _heading("Accept length by kind of round")
        yield from _rows(shown, names, fancy=fancy)
        if left := len(splits) - len(shown):
            yield _line(f"{left} of {len(splits)} kinds without a significant difference (--all shows them)", "dim")
    yield Text("")
    yield Text(
        f"{how}; intervals are 95 % each; changed: significant after Holm's correction of {tested} comparisons; "
        "undetectable: smaller than these runs show; needs: rounds in each run that would show it",
        "dim",
    )


def _rows(differences: Sequence[Difference], names: tuple[str, str], *, fancy: bool) -> Iterator[RenderableType]:
    yield from _table([_row(d, names) for d in differences], fancy=fancy)


def _row(d: Difference, names: tuple[str, str]) -> dict[str, str]:
    share = not d.name.startswith(LENGTH)
    interval = "-"
    if d.ci_low is not None and d.ci_high is not None:
        interval = f"{_number(d.ci_low, share, '+')} to {_number(d.ci_high, share, '+')}"
    says = d.state if d.p is not None else "too few" if d.difference is not None else "-"
    return {
        "": label(d.name), names[0]: _number(d.a, share), names[1]: _number(d.b, share),
        f"{names[1]} - {names[0]}": _number(d.difference, share, "+"), "95 % interval": interval, "verdict": says,
        "needs": f"{d.rounds_needed:,}" if d.rounds_needed and d.state == "undetectable" else "",
    }  # fmt: skip


def _number(value: float | None, share: bool, sign: str = "") -> str:
    if value is None:
        return "-"
    value += 0.0  # no minus before zero
    return f"{value:{sign}.1%}" if share else f"{value:{sign}.2f}"


def _table(
    rows: Sequence[dict[str, str]], *, fancy: bool, words: Sequence[str] = ("", "verdict")
) -> Iterator[RenderableType]:
    """A table of text; columns but those of `words` to the right."""
    if not rows:
        return
    names = list(rows[0])
    if fancy:
        table = rich_table(rows, names)
        for name, column in zip(names, table.columns, strict=True):
            column.justify = "left" if name in words else "right"
        yield Padding(table, (0, 0, 0, 1))
    else:
        widths = {n: max(len(n), *(len(row[n]) for row in rows)) for n in names}
        right = [{n: v if n in words else v.rjust(widths[n]) for n, v in row.items()} for row in rows]
        yield from (Text(line, no_wrap=True) for line in plain_table(right, names, "  "))


def _parting(parting: Parting, names: tuple[str, str]) -> str:
    at = f"depth {parting.depth} of the round at " if parting.depth else ""
    place = f"{at}output token {parting.output_index - parting.depth}"
    return (
        f"{place} of request {parting.request_a}: {PARTINGS[parting.what]} {cell(parting.a)} in {names[0]}, "
        f"{cell(parting.b)} in {names[1]}"
    )


def _divergence(divergence: Divergence, names: tuple[str, str]) -> Iterator[RenderableType]:
    yield from _heading("First divergence")
    if divergence.matched:
        yield _line(
            f"{divergence.matched:,} requests of the same prompts, {divergence.compared:,} compared: "
            f"{divergence.parted:,} part, {divergence.same_outputs:,} have the same output"
        )
    if divergence.first is not None:
        yield _line(_parting(divergence.first, names))
    if (stage := divergence.first_stage) is not None:
        yield _line(
            f"states part first at {stage.name} (position {stage.first_bad_position} of request {stage.request}): "
            f"relative error {stage.max_rel_error:.2g}, cosine {stage.cosine:.2f}",
            "bold",
        )
        before = [s for s in divergence.stages if s.first_bad_position is None]
        worst = max((s.max_rel_error for s in before), default=0.0)
        yield _line(f"{len(before)} stages agree (relative error up to {worst:.1g})", "dim")
    elif divergence.stages:
        worst = max(s.max_rel_error for s in divergence.stages)
        yield _line(f"recorded states agree in all {len(divergence.stages)} stages (relative error up to {worst:.1g})")
    yield from (_line(note, "dim") for note in divergence.notes)


def _causes(diff: Diff) -> Iterator[RenderableType]:
    causes = diff.causes
    yield from _heading("Causes and checks")
    yield _line(f"diagnosis: {causes.verdicts[0]} -> {causes.verdicts[1]}")
    for word, ids, checks, style in (
        ("gained", causes.gained, causes.checks_gained, "red"), ("lost", causes.lost, causes.checks_lost, "green"),
        ("kept", causes.kept, causes.checks_kept, ""),
    ):  # fmt: skip
        if ids or checks:
            alarms = f"; checks in alarm: {', '.join(checks)}" if checks else ""
            yield _line(f"{word}: {', '.join(ids) or 'no cause'}{alarms}", style if ids else "")


def _table_of_runs(diffs: Sequence[Diff], *, fancy: bool) -> Iterator[RenderableType]:
    """Which runs there are, and a line for each, against the first."""
    first = diffs[0]
    runs = [first.a, *(diff.b for diff in diffs)]
    yield from (Text(safe(f"{n}: run {run.id}, SGLang {run.sglang or '-'}"), "dim") for n, run in enumerate(runs, 1))
    yield Text("")
    length = _length(first)
    rows = [_run_row(1, first.causes.verdicts[0], _number(length.a if length else None, share=False))]
    for number, diff in enumerate(diffs, 2):
        own = _length(diff)
        row = _run_row(number, diff.causes.verdicts[1], _number(own.b if own else None, share=False))
        if own is not None:
            row["difference"] = _number(own.difference, share=False, sign="+") + ("*" if own.significant else " ")
        row["verdict"], row["facts"] = diff.verdict, str(diff.counts()["decisive"])
        row["causes"] = ", ".join([*(f"+{c}" for c in diff.causes.gained), *(f"-{c}" for c in diff.causes.lost)])
        rows.append(row)
    yield from _table(rows, fancy=fancy, words=("run", "diagnosis", "verdict", "causes"))
    yield Text("")
    yield Text(
        "against run 1; *: significant; facts: changed ones that say what is drafted; +, -: causes gained and lost; "
        "--all shows each diff",
        "dim",
    )


def _length(diff: Diff) -> Difference | None:
    return next((d for d in diff.behaviour if d.name == LENGTH), None)


def _run_row(number: int, verdict: str, length: str) -> dict[str, str]:
    return {
        "run": str(number), "diagnosis": verdict, "accept length": length, "difference": "", "verdict": "",
        "facts": "", "causes": "",
    }  # fmt: skip
