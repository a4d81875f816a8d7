"""The charts of a run: what is drawn, the same as a table, and one sentence that says what is to be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from eagletrace.diagnose.result import Acceptance, DepthRate
from eagletrace.report.html.gather import LATER_ROUND, RunReport, Timeline

Z = 1.96
MAX_MARKS = 40  # of events in the timeline: more cannot be told apart
MIN_REQUESTS = 5  # an interval from fewer requests would be far too short
CLASSES: tuple[tuple[int | None, str], ...] = (
    (1, "1: the draft's first choice"), (2, "2"), (3, "3"), (4, "4 to 10"), (11, "11 to 100"), (101, "101 to 1000"),
    (1001, "beyond 1000"), (0, "not in the draft vocabulary"), (None, "not recorded"),
)  # fmt: skip
SPLITS = (
    ("row", "by row of the batch", "row", "rows"),
    ("batch_size", "by batch size", "requests in the batch", "batch-sizes"),
    ("position", "by sequence position", "position", "positions"),
    ("cached", "by prefix-cache hit", "prompt tokens in the prefix cache", "cached"),
    ("request_round", "by round after the prefill", "round after the prefill", "request-rounds"),
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A chart and its table. `kind` is the drawing function in `report.js`, `data` its argument; `summary` is what a
    screen reader says instead of the chart; `query` gives the same numbers by `eagletrace query`."""

    id: str
    title: str
    kind: str
    summary: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    note: str = ""
    query: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def percent(value: float | None) -> str:
    """A share with one decimal; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


def clock(ns: int, *, date: bool = True) -> str:
    """A moment in UTC, to the millisecond; the number itself where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(ns // 1_000_000 / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(ns)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + f".{moment.microsecond // 1000:03d}"


def figures(report: RunReport) -> dict[str, Figure]:
    """The charts of a run by id; those without data are left out."""
    acceptance = report.diagnosis.acceptance
    made = [depths(acceptance), histogram(acceptance), timeline(report.timeline), ranks(report.ranks)]
    made += [split(report.splits, *names, overall=acceptance.accept_length) for names in SPLITS]
    return {figure.id: figure for figure in made if figure is not None}


def depths(acceptance: Acceptance) -> Figure | None:
    """Acceptance by depth: conditional with its interval, and unconditional."""
    known = [d for d in acceptance.by_depth if d.rate is not None]
    if not known:
        return None
    data = [
        {"depth": d.depth, "rate": d.rate, "low": d.interval[0], "high": d.interval[1], "all": d.unconditional,
         "tip": f"depth {d.depth}: {percent(d.rate)} of the {d.reached:,} rounds that reached it\n"
                f"95 % interval {percent(d.interval[0])} to {percent(d.interval[1])}\n"
                f"{percent(d.unconditional)} of all rounds"}
        for d in known
    ]  # fmt: skip
    rows = [
        (str(d.depth), f"{d.reached:,}", f"{d.accepted:,}", percent(d.rate),
         f"{percent(d.interval[0])} to {percent(d.interval[1])}" if d.reached else "-", percent(d.unconditional))
        for d in acceptance.by_depth
    ]  # fmt: skip
    said = ", ".join(f"depth {d.depth} {percent(d.rate)}" for d in known)
    return Figure(
        "depth", "Acceptance by depth", "depth", f"Bars: conditional acceptance, {said}.",
        ("depth", "reached", "accepted", "conditional", "95 % interval", "unconditional"), rows, {"depths": data},
        "Conditional: accepted of the rounds that reached this depth. Unconditional: accepted of all rounds.",
        "acceptance-by-depth", (("bar", "conditional, with its 95 % interval"), ("dot", "unconditional")),
    )  # fmt: skip


def compared(a: Acceptance, b: Acceptance) -> dict[str, Figure]:
    """The chart of two runs side by side by its id; none where one of them has no rates."""
    known = {run: {d.depth: d for d in of.by_depth if d.rate is not None} for run, of in (("A", a), ("B", b))}
    if not all(known.values()):
        return {}
    data = [
        {"depth": d.depth, "run": run, "rate": d.rate, "low": d.interval[0], "high": d.interval[1],
         "tip": f"run {run}, depth {d.depth}: {percent(d.rate)} of the {d.reached:,} rounds that reached it\n"
                f"95 % interval {percent(d.interval[0])} to {percent(d.interval[1])}"}
        for run, depths in known.items() for d in depths.values()
    ]  # fmt: skip
    rows = [
        (str(depth), *_told(known["A"].get(depth)), *_told(known["B"].get(depth)))
        for depth in sorted(known["A"] | known["B"])
    ]
    said = ", ".join(f"depth {depth} {rate_a} and {rate_b}" for depth, rate_a, _, rate_b, _ in rows)
    figure = Figure(
        "depth", "Acceptance by depth, A and B", "pairs", f"Bars in pairs, A and B: conditional acceptance, {said}.",
        ("depth", "A", "95 % interval of A", "B", "95 % interval of B"), rows, {"pairs": data},
        "Conditional: accepted of the rounds that reached this depth.", legend=(("bar", "A"), ("other", "B")),
    )  # fmt: skip
    return {figure.id: figure}


def _told(depth: DepthRate | None) -> tuple[str, str]:
    """Rate and interval of a depth; dashes where there is none."""
    if depth is None:
        return "-", "-"
    return percent(depth.rate), f"{percent(depth.interval[0])} to {percent(depth.interval[1])}"


def histogram(acceptance: Acceptance) -> Figure | None:
    """How many rounds had 0, 1, 2, ... correct drafts."""
    if not acceptance.rounds:
        return None
    shares = [(k, n, n / acceptance.rounds) for k, n in enumerate(acceptance.histogram)]
    data = [{"correct": k, "share": s, "tip": f"{k} correct: {n:,} rounds, {percent(s)}"} for k, n, s in shares]
    said = ", ".join(f"{k} correct {percent(s)}" for k, _, s in shares)
    return Figure(
        "histogram", "Correct drafts per round", "histogram", f"Bars: share of rounds with {said}.",
        ("correct drafts", "rounds", "share"), [(str(k), f"{n:,}", percent(s)) for k, n, s in shares],
        {"bins": data}, query="histogram",
    )  # fmt: skip


def timeline(line: Timeline) -> Figure | None:
    """Accept length over time, with what happened."""
    if not line.steps:
        return None
    steps, segment, before = list[dict[str, Any]](), 0, None
    for step in line.steps:
        segment += before is not None and step["time"] - before > 1.5 * step["width"]
        before = step["time"]
        low, high = interval(step)
        middle = step["time"] + step["width"] // 2
        counts = f"accept length {step['accept_length']:.2f} over {step['rounds']:,} rounds"
        tip = f"{clock(step['time'], date=False)} UTC\n{counts}"
        steps.append({"t": middle / 1e6, "length": step["accept_length"], "low": low, "high": high, "part": segment,
                      "tip": tip})  # fmt: skip
    first, last = line.steps[0]["time"], line.steps[-1]["time"] + line.steps[-1]["width"]
    marks = numbered(line)
    shown = [
        {"t": min(max(m["time"], first), last) / 1e6, "n": str(m["n"]), "level": m["n"] % 3, "tip": m["text"]}
        for m in marks
    ]
    lengths = [step["accept_length"] for step in line.steps]
    said = (
        f"Line from {clock(first)} to {clock(last)} UTC: accept length between {min(lengths):.2f} and "
        f"{max(lengths):.2f}, {lengths[0]:.2f} at first and {lengths[-1]:.2f} at last; {len(marks)} events marked."
    )
    columns = ("from (UTC)", "rounds", "requests", "accept length", "95 % interval")
    rows = [
        (clock(s["time"]), f"{s['rounds']:,}", f"{s['requests']:,}" if "requests" in s else "-",
         f"{s['accept_length']:.3f}", _range(*interval(s)))
        for s in line.steps
    ]  # fmt: skip
    return Figure(
        "timeline", "Acceptance over time", "timeline", said, columns, rows, {"steps": steps, "marks": shown},
        f"Times are UTC, a step is {line.steps[0]['width'] / 1e9:.3g} s. {_marked(line, len(marks))}{_INTERVALS}",
        "timeline",
    )  # fmt: skip


def _marked(line: Timeline, marks: int) -> str:
    if not marks:
        return ""
    left = len(line.marks) - marks
    return "Numbered lines are events. " + (f"{left:,} of frequent kinds are not marked. " if left else "")


def numbered(line: Timeline) -> list[dict[str, Any]]:
    """The events that are marked, numbered from 1: `n`, `time`, `kind`, `times`, `text`; the rarest kinds where there
    are too many."""
    often = Counter(mark["kind"] for mark in line.marks)
    kept = sorted(sorted(line.marks, key=lambda m: often[m["kind"]])[:MAX_MARKS], key=lambda m: (m["time"], m["kind"]))
    return [
        {**mark, "n": n, "text": f"{n}: {mark['kind']}" + (f" ({mark['times']:,} times)" if mark["times"] > 1 else "")}
        for n, mark in enumerate(kept, 1)
    ]


def ranks(rows: Sequence[Row]) -> Figure | None:
    """Where the target's token stood in the draft's distribution, by depth."""
    if not any(row["class"] is not None for row in rows):
        return None
    whole = {d: sum(r["positions"] for r in rows if r["depth"] == d) for d in sorted({r["depth"] for r in rows})}
    count: Callable[[int, int | None], int] = lambda depth, kind: sum(  # noqa: E731
        r["positions"] for r in rows if r["depth"] == depth and r["class"] == kind
    )
    used = [(n, kind, name) for n, (kind, name) in enumerate(CLASSES) if any(r["class"] == kind for r in rows)]
    data = [
        {"depth": d, "kind": n, "share": count(d, kind) / whole[d],
         "tip": f"depth {d}, rank {name}\n{count(d, kind):,} positions, {percent(count(d, kind) / whole[d])}"}
        for d in whole for n, kind, name in used
    ]  # fmt: skip
    table = [(str(d), f"{whole[d]:,}", *(percent(count(d, kind) / whole[d]) for _, kind, _ in used)) for d in whole]
    said = ", ".join(f"depth {d} {percent(count(d, 1) / whole[d])}" for d in whole)
    return Figure(
        "ranks", "Rank of the target's token in the draft's distribution", "ranks",
        f"Stacked bars by depth; the target's token was the draft's first choice: {said}.",
        ("depth", "positions", *(name for _, _, name in used)), table, {"parts": data},
        "Of the positions that were judged. Rank 1 would have been accepted.", "rank-histogram",
        tuple((f"r{n}", name) for n, _, name in used),
    )  # fmt: skip


def split(rows: Sequence[Row], name: str, title: str, axis: str, query: str, overall: float | None) -> Figure | None:
    """Accept length by one property of a round; None where there is nothing to compare."""
    found = [row for row in rows if row["split"] == name]
    if len(found) < 2:
        return None
    label = _LABELS.get(name, str)
    data = [
        {"value": label(r["value"]), "length": r["accept_length"], "low": interval(r)[0], "high": interval(r)[1],
         "tip": f"{axis} {label(r['value'])}\naccept length {r['accept_length']:.2f}, 95 % interval "
                f"{_range(*interval(r))}\n{r['rounds']:,} rounds of {r['requests']:,} requests"}
        for r in found
    ]  # fmt: skip
    table = [
        (label(r["value"]), f"{r['requests']:,}", f"{r['rounds']:,}", f"{r['accept_length']:.3f}", _range(*interval(r)),
         percent(r["first_rate"]))
        for r in found
    ]  # fmt: skip
    worst, best = (pick(found, key=lambda r: r["accept_length"]) for pick in (min, max))
    said = (f"Accept length {title}: lowest {worst['accept_length']:.2f} at {label(worst['value'])}, highest "
            f"{best['accept_length']:.2f} at {label(best['value'])}.")  # fmt: skip
    return Figure(
        f"by-{name.replace('_', '-')}", f"Accept length {title}", "split", said,
        (axis, "requests", "rounds", "accept length", "95 % interval", "first draft accepted"), table,
        {"values": data, "axis": axis, "overall": overall}, query=query if query != "batch-sizes" else "",
    )  # fmt: skip


_INTERVALS = f"Intervals count whole requests, and are left out below {MIN_REQUESTS} requests."
_LABELS: dict[str, Callable[[int], str]] = {
    "cached": lambda value: "some" if value else "none",
    "position": lambda value: f"{value}-{2 * value - 1}" if value > 1 else "0-1",
    "request_round": lambda value: f"{value}+" if value == LATER_ROUND else str(value),
}


def interval(row: Row) -> tuple[float | None, float | None]:
    """95 % interval of an accept length; None where too few requests were served for one."""
    error = row.get("stderr")
    if not error or row["requests"] < MIN_REQUESTS:  # all alike: no error can be told from them
        return None, None
    return max(1.0, row["accept_length"] - Z * error), row["accept_length"] + Z * error


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"
