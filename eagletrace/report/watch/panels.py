"""The panels of the overview: each says what it knows in as many lines as it is given."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from eagletrace.report.charts import bar
from eagletrace.report.terminal import VERDICTS
from eagletrace.report.text import safe
from eagletrace.report.watch.draw import (
    BAD,
    DIM,
    GOOD,
    POOR,
    Place,
    chart,
    duration,
    grid,
    line,
    number,
    percent,
    share_style,
    span_name,
    sparkline,
)
from eagletrace.report.watch.session import NOW_S, Session

STATUS_STYLE = {"ok": GOOD, "alarm": BAD, "unknown": POOR, "not_applicable": DIM}
MAX_DEPTHS = 12
_SCALE = 4  # characters beside a chart
_RATES = 30  # beside the bars of the depths


def highest(session: Session) -> float:
    """The accept length that a perfect draft would have, as far as it was drafted."""
    depths = len(session.run.counts.reached) if session.run is not None else 0
    return max(2.0, float(depths + 1))


def accept_length(session: Session, place: Place) -> RenderableType:
    """Now, over the last minutes and of the run, and its course."""
    now, run = session.now(), session.run
    assert run is not None
    bins = max(10, min(120, place.width - _SCALE))
    course = session.course(bins)
    recent = session.recent()
    top = highest(session)
    style = f"bold {share_style(_of_best(now.accept_length, top))}"
    head = line((number(now.accept_length, 2), style), " now", (f"   best {top:.0f}", DIM))
    below = line(
        (f"{span_name(session.window_s)} ", DIM), number(recent.accept_length, 2), ("   run ", DIM),
        number(run.counts.accept_length, 2), (f" of {run.counts.rounds:,} rounds", DIM),
    )  # fmt: skip
    rows = max(0, place.lines - 3)
    if rows == 0:
        return Group(head, below)
    drawn = chart([c.accept_length for c in course], 1.0, top, rows, fancy=place.fancy)
    scale = [f"{top:.0f}", *[""] * (rows - 2), "1"] if rows > 1 else [""]
    body = [line((f"{s:>3} ", DIM), (d, "cyan")) for s, d in zip(scale, drawn, strict=True)]
    ago = f"{span_name(session.window_s)} ago"
    axis = line(("    " + ago + " " * max(1, bins - len(ago) - 3) + "now", DIM))
    return Group(head, below, *body, axis) if place.lines > 3 + rows - 1 else Group(head, below, *body)


def _of_best(value: float | None, best: float) -> float | None:
    return None if value is None else (value - 1) / max(1.0, best - 1)


def depths(session: Session, place: Place) -> RenderableType:
    """The conditional rate at each depth, now and over the last minutes."""
    run = session.run
    assert run is not None
    count = min(len(run.counts.reached), MAX_DEPTHS, max(1, place.lines - 1))
    if not count:
        return line(("no rounds of user requests yet", DIM))
    now = session.now()
    cells = max(4, min(24, (place.width - _RATES) // 3))
    course = session.course(max(4, min(60, place.width - _RATES - cells)))
    recent = session.recent()
    table = grid(("depth", True), ("", False), ("now", True), (span_name(session.window_s), True), ("course", False))
    for depth in range(1, count + 1):
        rate = now.rate(depth)
        table.add_row(
            str(depth), Text(bar(rate or 0.0, cells, fancy=place.fancy).ljust(cells), style=share_style(rate)),
            percent(rate), percent(recent.rate(depth)),
            Text(sparkline([c.rate(depth) for c in course], 0.0, 1.0, fancy=place.fancy), style="cyan"),
        )  # fmt: skip
    return table


def throughput(session: Session, place: Place) -> RenderableType:
    """Tokens, rounds and requests."""
    run = session.run
    assert run is not None
    now, seconds = session.now(), session.seconds_of(NOW_S)
    bins = max(10, min(120, place.width))
    course = session.course(bins)
    tokens = [float(c.tokens) for c in course]
    running = len(run.running) if run.state == "live" else 0
    finished = sum(run.finished.values())
    rows = [
        line((number(now.tokens / seconds), "bold"), " tokens/s   ",
             (number(now.rounds / seconds, 1), "bold"), " rounds/s"),
        line((number(running), "bold"), " requests running, ", number(finished), " finished"),
    ]  # fmt: skip
    left = place.lines - len(rows)
    if left > 0:
        drawn = chart([t or None for t in tokens], 0.0, max(tokens) or 1.0, min(left, 4), fancy=place.fancy)
        rows += [line((d, "cyan")) for d in drawn]
    return Group(*rows[: place.lines])


def phases(session: Session, place: Place) -> RenderableType:
    """Phases of the engine, the slowest first."""
    run = session.run
    assert run is not None
    found = run.phases(NOW_S, session.end_ns)
    if not found:
        text = "none in the last seconds" if run.level != "contract" else "not recorded at level contract"
        return line((text, DIM))
    whole = sum(phase.seconds for phase in found)
    wide = place.width >= 48
    table = grid(
        ("phase", False), ("share", True), *([("", False)] if wide else []), ("median ms", True), ("p99", True)
    )
    for phase in found[: max(1, place.lines - 1)]:
        share = phase.seconds / whole if whole else 0.0
        drawn = [Text(bar(share, 8, fancy=place.fancy).ljust(8), style="cyan")] if wide else []
        table.add_row(
            safe(phase.name), f"{share:.0%}", *drawn, number(phase.median_ms, 1), number(phase.p99_ms, 1)
        )  # fmt: skip
    return table


def diagnosis(session: Session, place: Place) -> RenderableType:
    """The verdict, the cause, and checks that turned or alarm."""
    newest = session.diagnosed
    if newest is None:
        return line(("diagnosing ...", DIM))
    if newest.diagnosis is None:
        return line(("cannot be diagnosed: ", POOR), safe(newest.error))
    found = newest.diagnosis
    word, colour = VERDICTS[found.verdict]
    head = line((word, f"bold {colour}"), (f"   {_ago(newest.at)}", DIM))
    rows: list[RenderableType] = [head]
    if found.causes:
        rows.append(line((safe(found.causes[0].id), "bold"), f"  {safe(found.causes[0].title)}"))
    elif found.why:
        rows.append(line(safe(found.why)))
    counts = Counter(check.status for check in found.checks)
    order = ("alarm", "unknown", "ok", "not_applicable")
    parts = [(f"{counts[s]} {s.replace('_', ' ')}", STATUS_STYLE[s]) for s in order if counts[s]]
    rows.append(line(*[p for part in parts for p in (part, "  ")]))
    rows += [
        turned_line(turn.at, turn.check, turn.before, turn.after, turn.reason)
        for turn in session.turned
        if "alarm" in (turn.before, turn.after)
    ]
    shown = {turn.check for turn in session.turned if turn.after == "alarm"}
    alarms = [c for c in found.checks if c.status == "alarm" and c.id not in shown]
    rows += [line((f"alarm {safe(c.id)} ", BAD), (safe(c.reason), DIM)) for c in alarms]
    return Group(*rows[: place.lines])


def turned_line(at: float, check: str, before: str, after: str, reason: str) -> Text:
    """A check that turned."""
    clock = datetime.fromtimestamp(at).strftime("%H:%M:%S")
    was = f"{before.replace('_', ' ')} > "
    return line((f"{clock} ", DIM), (f"{was}{after.replace('_', ' ')} ", STATUS_STYLE.get(after, "")), safe(check),
                (f"  {safe(reason)}", DIM))  # fmt: skip


def recording(session: Session, place: Place) -> RenderableType:
    """Hooks, dropped rows and the newest events."""
    run = session.run
    assert run is not None
    states = Counter(str(hook["status"]) for hook in run.hooks.values())
    errors = sum(hook["errors"] or 0 for hook in run.hooks.values())
    lost = [h for h in run.hooks.values() if h["required"] and h["status"] in ("missing", "shut_out")]
    bad = states["disabled_after_errors"] + states["shut_out"]
    hooks = line(
        (f"{states['installed']} hooks", GOOD if states["installed"] else POOR),
        f", {states['missing']} not in this engine",
        (f", {bad} off" if bad else "", BAD), (f", {errors} errors" if errors else "", BAD),
        (f", {len(lost)} required missing" if lost and not states["installed"] else "", BAD),
    )  # fmt: skip
    dropped = sum(run.dropped.values())
    if dropped:
        top, count = run.dropped.most_common(1)[0]
        drops = line((f"{dropped:,} rows dropped", BAD), (f"  {safe(top)}: {count:,}", DIM))
    else:
        drops = line(("no rows dropped", GOOD))
    rows: list[RenderableType] = [hooks, drops]
    newest = sorted(run.events, key=lambda event: event["time_unix_nano"] or 0, reverse=True)
    rows += [event_line(event) for event in newest[: max(0, place.lines - 2)]]
    return Group(*rows[: place.lines])


def event_line(event: dict[str, object]) -> Text:
    """One event: when, what, details."""
    time_ns = event["time_unix_nano"]
    clock = datetime.fromtimestamp(time_ns / 1e9).strftime("%H:%M:%S") if isinstance(time_ns, int) else "-"
    detail = safe(event["detail"] or "").replace("\n", " ")
    return line((f"{clock} ", DIM), safe(event["kind"] or "event"), (f"  {detail[:400]}", DIM))


def _ago(at: float) -> str:
    seconds = max(0, int(time.time() - at))
    return "just now" if seconds < 2 else f"{seconds} s ago" if seconds < 120 else f"{duration(seconds)} ago"
