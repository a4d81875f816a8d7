"""The outcome of one check on files, before it is reasoned with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagletrace.diagnose.checks import Certainty
from eagletrace.diagnose.result import Status

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """`rows` are the evidence; `certainty` overrides that of the check where the files tell more than a trace does;
    `dies`: the engine ends with an error because of it."""

    status: Status
    reason: str
    rows: tuple[dict[str, Any], ...] = ()
    certainty: Certainty | None = None
    dies: bool = False


def ok(reason: str, **evidence: Any) -> Outcome:
    """Nothing is wrong."""
    return Outcome("ok", reason, (evidence,) if evidence else ())


def skip(reason: str) -> Outcome:
    """There is nothing to check."""
    return Outcome("not_applicable", reason)


def unknown(reason: str) -> Outcome:
    """It cannot be told; the reason says what to give."""
    return Outcome("unknown", reason)


def alarm(
    reason: str, rows: Rows = (), certainty: Certainty | None = None, *, dies: bool = False, **evidence: Any
) -> Outcome:
    """Something is wrong; evidence as rows, or as the values of one."""
    found = tuple(dict(row) for row in rows) or ((evidence,) if evidence else ())
    return Outcome("alarm", reason, found, certainty, dies)


def several(reasons: Sequence[str], limit: int = 3) -> str:
    """A few reasons in one line."""
    text = "; ".join(reasons[:limit])
    return f"{text}; and {len(reasons) - limit} more" if len(reasons) > limit else text
