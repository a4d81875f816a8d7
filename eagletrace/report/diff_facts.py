"""Changed load-time facts in lines: those of one kind together, so that another checkpoint is one line, not fifty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from eagletrace.format.facts import CONTRACT_KEYS
from eagletrace.report.text import cell

if TYPE_CHECKING:
    from eagletrace.diff import Diff, FactChange

NAMES_SHOWN = 3
VALUE = 40
PART = 24
STYLES = {"decisive": "yellow", "relevant": "", "minor": "dim", "noise": "dim"}
MEANING = {
    "decisive": "say what is drafted", "relevant": "may act on acceptance", "minor": "are not known to act on it",
    "noise": "differ between any two runs",
}  # fmt: skip


def fact_lines(diff: Diff, width: int, *, everything: bool) -> Iterator[tuple[str, str]]:
    """Lines with their style: the important changes in groups, the others counted (all of them with `everything`)."""
    counts = diff.counts()
    for level in ("decisive", "relevant", "minor", "noise"):
        changes = [c for c in diff.contract if c.importance == level]
        if changes and (everything or level in ("decisive", "relevant")):
            yield f"{len(changes)} that {MEANING[level]}:", "bold"
            for line in _groups(changes, everything=everything):
                yield f"  {line}"[: max(width, 40) * 3], STYLES[level]
    left = [] if everything else [f"{counts[n]:,} that {MEANING[n]}" for n in ("minor", "noise") if counts[n]]
    others = f"; {', '.join(left)} (--all shows them)" if left else ""
    yield f"{counts['same']:,} are the same{others}", "dim"


def _groups(changes: Sequence[FactChange], *, everything: bool) -> Iterator[str]:
    ordered = sorted(enumerate(changes), key=lambda item: _first(changes, item[1]))
    for _, group in groupby(ordered, key=lambda item: _root(item[1])):
        alike = [change for _, change in group]
        if len(alike) > NAMES_SHOWN and "/" in alike[0].key and not everything:
            names = ", ".join(_name(c) for c in alike[:NAMES_SHOWN])
            table, field, kind = _root(alike[0])
            yield f"{table}: {len(alike)} {kind}{f' ({field})' if field else ''}: {names}, ..."
        elif len(alike) > 1 and "/" not in alike[0].key and not everything:
            root = _root(alike[0])[0]
            parts = (f"{c.key.removeprefix(root).strip(' .')} {values(c, PART)}".strip() for c in alike)
            yield f"{root}: {'; '.join(parts)}" + (f" ({alike[0].why})" if alike[0].why else "")
        else:
            yield from (_line(c) for c in alike)


def _first(changes: Sequence[FactChange], change: FactChange) -> int:
    """Where the first change of its group stands."""
    return next(n for n, c in enumerate(changes) if _root(c) == _root(change))


def _root(change: FactChange) -> tuple[str, str, str]:
    """What changes of one group have in common: table, field and kind; of a contract fact its key."""
    table, part, rest = change.key.partition("/")
    if part:
        field = rest.rpartition("/")[2] if change.kind == "changed" and table in ("params", "checkpoint_keys") else ""
        return table, field, change.kind
    fits = [k for k in CONTRACT_KEYS if change.key == k or change.key.startswith((f"{k}.", f"{k} "))]
    return max(fits, key=len, default=change.key), "", ""


def _name(change: FactChange) -> str:
    name = change.key.partition("/")[2]
    return name.rpartition("/")[0] if change.kind == "changed" and "/" in name else name


def _line(change: FactChange) -> str:
    return f"{change.key}: {values(change)}" + (f" ({change.why})" if change.why else "")


def values(change: FactChange, limit: int = VALUE) -> str:
    """What both runs have, in at most `limit` characters each."""
    if change.kind == "added":
        return f"only in the second: {cell(change.b, limit)}"
    if change.kind == "gone":
        return f"only in the first: {cell(change.a, limit)}"
    return f"{cell(change.a, limit)} -> {cell(change.b, limit)}"
