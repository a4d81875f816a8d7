"""The other views: one subject each, over the whole terminal, scrolled where it is a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from rich.console import Group, RenderableType
from rich.text import Text

from eagletrace.report.charts import bar
from eagletrace.report.text import safe
from eagletrace.report.watch.draw import (
    DIM,
    Place,
    chart,
    grid,
    line,
    number,
    percent,
    share_style,
    span_name,
    sparkline,
)
from eagletrace.report.watch.panels import STATUS_STYLE, event_line, turned_line
from eagletrace.report.watch.session import NOW_S, Session

TITLES = {
    "depths": "acceptance by depth (conditional rates)",
    "phases": "phases of the engine, last 10 s",
    "checks": "checks of the newest diagnosis",
    "recording": "hooks and dropped rows",
    "events": "events, the newest first",
    "runs": "runs of this folder",
}


def depths(session: Session, place: Place) -> RenderableType:
    """Rates at each depth over several windows, their course, and the histogram of correct drafts."""
    run = session.run
    assert run is not None
    cells = max(10, min(60, place.width - 62))
    course = session.course(cells)
    now, recent = session.now(), session.recent()
    table = grid(("depth", True), ("now", True), (span_name(session.window_s), True), ("run", True),
                 ("reached now", True), (f"course of {span_name(session.window_s)}", False))  # fmt: skip
    for depth in range(1, len(run.counts.reached) + 1):
        rates = [counts.rate(depth) for counts in (now, recent, run.counts)]
        reached = now.reached[depth - 1] if depth <= len(now.reached) else 0
        table.add_row(
            str(depth), *(Text(percent(rate), style=share_style(rate)) for rate in rates), number(reached),
            Text(sparkline([c.rate(depth) for c in course], 0.0, 1.0, fancy=place.fancy), style="cyan"),
        )  # fmt: skip
    histogram = grid(("correct drafts", True), ("", False), ("rounds now", True), ("share", True), ("of the run", True))
    whole = sum(now.histogram) or 1
    for correct, rounds in enumerate(run.counts.histogram):
        mine = now.histogram[correct] if correct < len(now.histogram) else 0
        histogram.add_row(
            str(correct), Text(bar(mine / whole, 24, fancy=place.fancy).ljust(24), style="cyan"), number(mine),
            percent(mine / whole), percent(rounds / (run.counts.rounds or 1)),
        )  # fmt: skip
    return _fit([*_table_lines(table), Text(""), *_table_lines(histogram)], place)


def phases(session: Session, place: Place) -> RenderableType:
    """Every phase of the last seconds, the slowest first, and the throughput beside it."""
    run = session.run
    assert run is not None
    found = run.phases(NOW_S, session.end_ns)
    whole = sum(phase.seconds for phase in found) or 1.0
    table = grid(("phase", False), ("share", True), ("", False), ("seconds", True), ("calls", True),
                 ("median ms", True), ("p99", True), ("longest", True))  # fmt: skip
    for phase in found:
        table.add_row(
            safe(phase.name), percent(phase.seconds / whole),
            Text(bar(phase.seconds / whole, 12, fancy=place.fancy).ljust(12), style="cyan"), number(phase.seconds, 2),
            number(phase.count), number(phase.median_ms, 2), number(phase.p99_ms, 2), number(phase.max_ms, 2),
        )  # fmt: skip
    course = session.course(max(10, min(120, place.width)))
    tokens = [float(c.tokens) for c in course]
    drawn = chart([t or None for t in tokens], 0.0, max(tokens) or 1.0, 4, fancy=place.fancy)
    head = Text(f"tokens, last {span_name(session.window_s)}", style=DIM)
    return _fit([*_table_lines(table), Text(""), head, *(line((d, "cyan")) for d in drawn)], place)


def checks(session: Session, place: Place) -> RenderableType:
    """Checks that turned, then all of them, alarms first."""
    newest = session.diagnosed
    if newest is None or newest.diagnosis is None:
        return line((safe(newest.error) if newest is not None else "diagnosing ...", DIM))
    rows: list[Text] = [turned_line(t.at, t.check, t.before, t.after, t.reason) for t in session.turned]
    if rows:
        rows = [Text("turned while this was watched", style=DIM), *rows, Text("")]
    order = list(STATUS_STYLE)
    order = ["alarm", "unknown", *(status for status in order if status not in ("alarm", "unknown"))]
    for check in sorted(newest.diagnosis.checks, key=lambda c: (order.index(c.status), c.id)):
        style = STATUS_STYLE[check.status]
        rows.append(line((f"{check.status.replace('_', ' '):<15}", style), f"{safe(check.id):<24} ",
                         (safe(check.reason), DIM)))  # fmt: skip
    return _fit(rows, place)


def recording(session: Session, place: Place) -> RenderableType:
    """Every hook with its calls, and dropped rows by reason."""
    run = session.run
    assert run is not None
    rows: list[Text] = []
    for reason, count in run.dropped.most_common():
        rows.append(line((f"{count:>12,} rows dropped  ", "red"), safe(reason)))
    rows.append(Text("") if rows else line(("no rows dropped", "green")))
    several = len({(hook["host"], hook["pid"]) for hook in run.hooks.values()}) > 1
    table = grid(("hook", False), ("status", False), ("calls", True), ("errors", True),
                 ("process" if several else "", True))  # fmt: skip
    bad = ("disabled_after_errors", "shut_out", "missing")
    for hook in sorted(run.hooks.values(), key=lambda h: (_place(str(h["status"]), bad), str(h["target"]))):
        status = str(hook["status"])
        style = "green" if status == "installed" else DIM if status == "missing" and not hook["required"] else "yellow"
        table.add_row(
            safe(str(hook["target"]).rpartition(":")[2] or hook["target"]), Text(safe(status), style=style),
            number(hook["calls"]), number(hook["errors"]), str(hook["pid"]) if several else "",
        )  # fmt: skip
    return _fit([*rows, *_table_lines(table)], place)


def _place(value: str, order: Sequence[str]) -> int:
    return order.index(value) if value in order[:2] else 3 if value in order else 2


def events(session: Session, place: Place) -> RenderableType:
    """Events, the newest first."""
    run = session.run
    assert run is not None
    newest = sorted(run.events, key=lambda event: event["time_unix_nano"] or 0, reverse=True)
    return _fit([event_line(event) for event in newest] or [line(("none yet", DIM))], place)


def runs(session: Session, place: Place) -> RenderableType:
    """The runs, the newest first; which is shown, and whether newer ones are followed."""
    rows: list[Text] = []
    for index, info in reversed(list(enumerate(session.runs))):
        shown = index == session.index
        start = datetime.fromtimestamp(info.start_time_unix_nano / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        mark = ("> " if session.pinned else "* ") if shown else "  "
        rows.append(
            line(
                (mark, "bold"),
                (safe(info.id), "bold" if shown else ""),
                (f"  {start} UTC  SGLang {safe(info.sglang or '-')}, level {safe(info.level or '-')}", DIM),
            )
        )
    follows = "this run was chosen; n follows the newest" if session.pinned else "the newest run is followed"
    return _fit([line((follows, DIM)), *rows], place)


def _table_lines(table: RenderableType) -> list[Text]:
    """A table as lines that can be scrolled."""
    from rich.console import Console

    console = Console(width=400, color_system="truecolor", force_terminal=True, highlight=False, legacy_windows=False)
    made: list[Text] = []
    for segments in console.render_lines(table, pad=False):
        text = Text(no_wrap=True, overflow="ellipsis")
        for segment in segments:
            text.append(segment.text, segment.style)
        text.rstrip()
        made.append(text)
    return made


def _fit(rows: Sequence[Text], place: Place) -> RenderableType:
    """As many lines from `scroll` on as there is place for; says how many more there are."""
    if len(rows) <= place.lines:
        return Group(*rows)
    room = max(1, place.lines - 1)
    start = min(max(0, place.scroll), len(rows) - room)
    more = line((f"lines {start + 1} to {start + room} of {len(rows)} (up, down)", DIM))
    return Group(*rows[start : start + room], more)


VIEWS: dict[str, Callable[[Session, Place], RenderableType]] = {
    "depths": depths, "phases": phases, "checks": checks, "recording": recording, "events": events, "runs": runs,
}  # fmt: skip
