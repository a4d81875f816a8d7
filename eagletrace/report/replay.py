"""A replay on the terminal: fidelity, potential, stages, hypotheses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import RenderableType
from rich.text import Text

from eagletrace.report.console import is_fancy, make_console, print_parts
from eagletrace.report.tables import plain_table, rich_table
from eagletrace.report.text import safe

if TYPE_CHECKING:
    from eagletrace.replay.result import Hypothesis, Potential, Replay

OTHERS = 5


def print_replay(replay: Replay, file: TextIO | None = None) -> None:
    """Print a replay to `file` (default: stdout)."""
    console = make_console(file)
    fancy = is_fancy(console)
    print_parts(console, _parts(replay, fancy=fancy))


def _parts(replay: Replay, *, fancy: bool) -> Iterator[RenderableType]:
    agrees = replay.agrees
    word = "agrees" if agrees else "differs"
    yield Text.assemble(
        ("REPLAY ", "bold"), (word, f"bold {'green' if agrees else 'red'}"),
        f": the draft as its files say drafts {replay.overall:.1%} of what was served",
    )  # fmt: skip
    yield Text(f"{replay.tokens:,} positions of {replay.requests} requests, {replay.rounds:,} rounds", "dim")
    yield Text("")
    yield Text("Accept length", style="bold underline")
    lengths: list[tuple[str, Potential | None]] = [
        ("as served", replay.served), ("reference, with what was found", replay.as_served),
        ("reference, as the files say", replay.potential), ("reference, with all repairs", replay.best),
    ]  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "draft": name,
            "accept length": f"{p.accept_length:.2f}",
            "95 % interval": f"{p.ci_low:.2f} to {p.ci_high:.2f}",
        }
        for name, p in lengths
        if p is not None and p.rounds
    ]
    yield from _table(rows, fancy=fancy)
    if replay.fidelity:
        yield Text("")
        yield Text("Served draft tokens that the reference drafts, by depth", style="bold underline")
        yield from _table([{"depth": d, "share": f"{s:.1%}"} for d, s in replay.fidelity.items()], fancy=fancy)
    if replay.stages:
        yield Text("")
        yield Text("Stages, recorded against recomputed", style="bold underline")
        yield from _table([s.to_json() for s in replay.stages], fancy=fancy)
    yield from _hypotheses("What explains it", replay.found, fancy=fancy)
    yield from _hypotheses("Tried besides", replay.others[:OTHERS], fancy=fancy)


def _hypotheses(title: str, found: tuple[Hypothesis, ...], *, fancy: bool) -> Iterator[RenderableType]:
    if not found:
        return
    yield Text("")
    yield Text(title, style="bold underline")
    rows = [
        {
            "cause": h.cause, "change": h.change, "drafts what was served": _share(h.reproduces_served),
            "accept length without": "-" if h.repaired_accept_length is None else f"{h.repaired_accept_length:.2f}",
        }
        for h in found
    ]  # fmt: skip
    yield from _table(rows, fancy=fancy)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _table(rows: list[dict[str, Any]], *, fancy: bool) -> Iterator[RenderableType]:
    names = list(rows[0]) if rows else []
    if fancy:
        yield rich_table(rows, names)
    else:
        yield from (Text(safe(line)) for line in plain_table(rows, names))
