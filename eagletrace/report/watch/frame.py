"""One frame: the header, the panels of a view that fit the terminal, and the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagletrace.report.text import safe
from eagletrace.report.watch import panels, views
from eagletrace.report.watch.draw import DIM, GOOD, POOR, Place, duration, line, number, panel
from eagletrace.report.watch.session import NOW_S, Session

VIEWS = ("overview", "depths", "phases", "checks", "recording", "events", "runs")
TWO_COLUMNS = 76  # from this width panels stand side by side
SMALL_LINES, SMALL_WIDTH = 8, 30  # below this two lines say the most important
HEAD_LINES = 2  # header and keys
UNBOUNDED_LINES, ALL_LINES = 8, 1 << 30  # of a panel and of a view, where there is no height
Draw = Callable[[Session, Place], RenderableType]
PANELS: dict[str, tuple[str, Draw]] = {
    "accept": ("accept length", panels.accept_length),
    "depths": ("acceptance by depth, last 10 s", panels.depths),
    "throughput": ("throughput, last 10 s", panels.throughput),
    "phases": ("phases, last 10 s", panels.phases),
    "diagnosis": ("diagnosis", panels.diagnosis),
    "recording": ("recording", panels.recording),
}
# Rows of two panels, the most important first: (left, right, (least lines, share of what is left)).
ROWS = (("accept", "depths", (6, 3)), ("diagnosis", "recording", (5, 4)), ("throughput", "phases", (5, 1)))
ROW_ORDER = (("accept", "depths"), ("throughput", "phases"), ("diagnosis", "recording"))
# One column, the most important first.
COLUMN = (("accept", 5, 2), ("depths", 5, 2), ("diagnosis", 5, 3), ("throughput", 4, 1), ("recording", 4, 2),
          ("phases", 5, 2))  # fmt: skip
HELP = (
    ("q, Ctrl-C", "end"),
    ("p, Space", "pause this view, and go on; the server goes on"),
    ("Tab, Shift-Tab, 1-7", "choose a view"),
    ("left, right", "the run before, the run after"),
    ("n", "follow the newest run, and newer ones"),
    ("up, down, PgUp, PgDn", "scroll a list"),
    ("h, ?, Esc", "show or hide this"),
)


@dataclass
class Shown:
    """What the keyboard chose."""

    view: int = 0
    scroll: int = 0
    paused: bool = False
    help: bool = False


def frame(session: Session, shown: Shown, width: int, height: int | None, *, fancy: bool) -> RenderableType:
    """The whole screen; without `height` as many lines as there are to say, and no keys."""
    if session.run is None:
        return _waiting(session, height)
    if height is not None and (height < SMALL_LINES or width < SMALL_WIDTH):
        return _smallest(session, height)
    lines = None if height is None else height - HEAD_LINES
    body = _help(lines, fancy=fancy) if shown.help else _body(session, shown, width, lines, fancy=fancy)
    parts = [_header(session, shown, width), body]
    if height is not None:
        parts.append(_keys(shown, width))
    return Group(*parts)


def _header(session: Session, shown: Shown, width: int) -> Text:
    run = session.run
    assert run is not None
    live = run.state == "live"
    age = (session.end_ns - run.info.start_time_unix_nano) / 1e9
    state = ("live", f"bold {GOOD}") if live else ("ended", f"bold {POOR}")
    paused = [(" view paused ", f"bold reverse {POOR}"), " "] if shown.paused else []
    recording = [(" recording paused ", f"bold reverse {POOR}"), " "] if run.paused and live else []
    chosen = [(f"  run {session.index + 1} of {len(session.runs)}", DIM)] if len(session.runs) > 1 else []
    facts = [f"SGLang {run.info.sglang}" if run.info.sglang else "", f"level {run.level}" if run.level else ""]
    rest = "  ".join(safe(fact) for fact in facts if fact)
    identity = safe(run.info.id)
    if width < 100 and len(identity) > 18:
        identity = f"{identity[:8]}..{identity[-8:]}"
    return line(("eagletrace watch  ", "bold") if width >= 60 else "", *paused, *recording, state,
                f" {duration(age)}  ", (identity, "bold"), *chosen, (f"  {rest}", DIM))  # fmt: skip


def _keys(shown: Shown, width: int) -> Text:
    keys = (("q", "quit"), ("p", "go on" if shown.paused else "pause"), ("Tab", "view"), ("h", "help"), ("←→", "run"))
    parts: list[str | tuple[str, str]] = []
    for key, does in keys:
        parts += [(f" {key} ", "reverse"), f" {does}  "]
    if width >= 100:
        for number_, name in enumerate(VIEWS):
            style = "bold" if number_ == shown.view else DIM
            parts.append((f"{number_ + 1} {name}  ", style))
    else:
        parts.append((f"{shown.view + 1} {VIEWS[shown.view]}", "bold"))
    return line(*parts)


def _body(session: Session, shown: Shown, width: int, lines: int | None, *, fancy: bool) -> RenderableType:
    if shown.view == 0:
        return _overview(session, width, lines, fancy=fancy)
    name = VIEWS[shown.view]
    draw = views.VIEWS[name]
    inner = ALL_LINES if lines is None else lines - 2
    content = draw(session, Place(width - 4, inner, shown.scroll, fancy))
    return panel(views.TITLES[name], content, lines, fancy=fancy)


def _overview(session: Session, width: int, lines: int | None, *, fancy: bool) -> RenderableType:
    """Three rows of two panels, or one column; what does not fit is left out, the less important first."""

    def one(name: str, width: int, height: int | None) -> RenderableType:
        title, draw = PANELS[name]
        inner = UNBOUNDED_LINES if height is None else max(1, height - 2)
        return panel(title, draw(session, Place(width - 4, inner, 0, fancy)), height, fancy=fancy)

    if width < TWO_COLUMNS or not fancy:
        heights = _heights(lines, [size for _, *size in COLUMN])
        return Group(*(one(name, width, h) for (name, *_), h in zip(COLUMN, heights, strict=True) if h != 0))
    heights = _heights(lines, [size for *_, size in ROWS])
    made = dict(zip((row[0] for row in ROWS), heights, strict=True))
    return Group(*(
        _side_by_side(partial(one, height=made[left]), (left, right), width)
        for left, right in ROW_ORDER if made[left] != 0
    ))  # fmt: skip


def _heights(lines: int | None, sizes: Sequence[Sequence[int]]) -> list[int | None]:
    """Lines of each row, the most important first: `(at least, share of what is left)`; 0 for one without a place."""
    if lines is None:
        return [None] * len(sizes)
    heights, left = [0] * len(sizes), lines
    for index, (least, _) in enumerate(sizes):
        if least <= left:
            heights[index] = least
            left -= least
    if not any(heights):
        return [lines, *[0] * (len(sizes) - 1)]
    shares = sum(share for height, (_, share) in zip(heights, sizes, strict=True) if height)
    heights = [h + left * share // shares if h else 0 for h, (_, share) in zip(heights, sizes, strict=True)]
    first = next(index for index, height in enumerate(heights) if height)
    heights[first] += lines - sum(heights)
    return list(heights)


def _side_by_side(one: Callable[[str, int], RenderableType], names: Sequence[str], width: int) -> RenderableType:
    widths = (width // 2, width - width // 2)
    table = Table.grid(padding=0)
    for column_width in widths:
        table.add_column(width=column_width)
    table.add_row(*(one(name, column_width) for name, column_width in zip(names, widths, strict=True)))
    return table


def _waiting(session: Session, height: int | None) -> RenderableType:
    parts = [Text("eagletrace watch", style="bold"), Text(""), Text(safe(session.waiting_for or "waiting for a run"))]
    if height is not None:
        parts += [Text(""), line((" q ", "reverse"), " quit")]
    return Group(*parts[: height or len(parts)])


def _smallest(session: Session, height: int) -> RenderableType:
    """A terminal of a few lines: what matters most."""
    now, newest = session.now(), session.diagnosed
    verdict = newest.diagnosis.verdict if newest is not None and newest.diagnosis is not None else ""
    seconds = session.seconds_of(NOW_S)
    rows = [
        line(("accept ", DIM), (number(now.accept_length, 2), "bold")),
        line((verdict.replace("_", " ") or "diagnosing ...", "bold")),
        line(number(now.tokens / seconds), " tokens/s"),
        line((" q ", "reverse"), " quit"),
    ]
    return Group(*rows[:height])


def _help(lines: int | None, *, fancy: bool) -> RenderableType:
    rows = [line((f"{keys:<22}", "bold"), does) for keys, does in HELP]
    return panel("keys", Group(*rows), lines, fancy=fancy)
