"""Training beside serving in lines: what was trained, what is the target's, the weights served, and first drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagletrace.checkpoint.names import canonical

if TYPE_CHECKING:
    from eagletrace.diagnose.result import DepthRate
    from eagletrace.diff import Frozen, TrainingComparison

NAMES_SHOWN = 6


def training_lines(found: TrainingComparison, names: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Lines with their style; `names` are those of the two runs."""
    mine, theirs = names if found.side == "a" else (names[1], names[0])
    yield f"{mine} is a validation step of the draft's training, {theirs} a server", "dim"
    yield f"trained: {_named(_parts(found.trained))}", ""
    yield from _frozen(found.frozen)
    yield from _weights(found)
    yield (
        f"first drafts: {_rate(found.training, 'right in training')}; {_rate(found.served, 'accepted when served')}",
        "",
    )
    yield from ((f"departs: {d.text}", "yellow") for d in found.departures)


def _parts(names: Sequence[str]) -> list[str]:
    """Parameters by the part of the draft that they belong to, with their number where it has several."""
    parts: dict[str, int] = {}
    for name in names:
        first, _, rest = canonical(name).partition(".")
        part = f"{first}.{rest.partition('.')[0]}" if first in ("layers", "fc_norm") else first
        parts[part] = parts.get(part, 0) + 1
    return [part if count == 1 else f"{part} ({count} parameters)" for part, count in parts.items()]


def _frozen(frozen: Sequence[Frozen]) -> Iterator[tuple[str, str]]:
    for equal, words in (
        (True, "frozen, and equal to the target's"), (False, "frozen, and not the target's"), (None, "frozen"),
    ):  # fmt: skip
        these = [f.name for f in frozen if f.equals_target is equal]
        if these:
            yield f"{words}: {_named(_parts(these))}", "yellow" if equal is False else ""


def _weights(found: TrainingComparison) -> Iterator[tuple[str, str]]:
    counts = found.counts()
    dtypes = sorted({t.detail for t in found.tensors if t.state == "rounded"})
    words = [
        f"{counts['same']} as in training" if counts["same"] else "",
        f"{counts['rounded']} rounded to {' or '.join(dtypes)}" if counts["rounded"] else "",
        f"{counts['from_target']} served from the target, as trained" if counts["from_target"] else "",
        f"{counts['left_out']} that serving does not need" if counts["left_out"] else "",
        f"{counts['unknown']} not compared" if counts["unknown"] else "",
    ]
    yield f"tensors of training: {', '.join(word for word in words if word) or 'none is served'}", ""
    for tensor in found.other:
        yield f"other: {tensor.label}: {tensor.detail}" + (
            "" if tensor.trained is None else ", trained" if tensor.trained else ", frozen in training"
        ), "yellow"  # fmt: skip
    reasons = {t.detail for t in found.unknown}
    yield from ((f"not compared: {reason}", "dim") for reason in sorted(reasons))


def _rate(rate: DepthRate, words: str) -> str:
    if not rate.reached:
        return f"none seen {words.split(maxsplit=1)[1]}"
    low, high = rate.interval
    return f"{rate.rate:.1%} of {rate.reached:,} {words} (95 % interval {low:.1%} to {high:.1%})"


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return (", ".join(names[:NAMES_SHOWN]) or "nothing") + (f" and {more} more" if more > 0 else "")
