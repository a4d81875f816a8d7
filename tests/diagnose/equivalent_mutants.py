"""Changes of checks' SQL that no run can show, each with the reason."""

from __future__ import annotations

import re

ENDS = (
    "low",
    "high",
    "before_low",
    "early_low",
    "late_high",
    "low_1",
    "high_2",
    "live_low",
    "others_low",
    "rate",
    "by_rate",
)
"""Columns that hold the end of a Wilson interval, or a rate that is compared with a part of another rate."""

_AT_AN_END = re.compile(rf"\b({'|'.join(ENDS)}|entropy) (<=|>=) ")
AT_AN_END = (
    "whether the end of an interval, a part of a rate or a mean entropy may equal its threshold: no likely counts make "
    "the two equal to the last bit, and where they did, rounding would decide"
)

EQUIVALENT: dict[tuple[str, str], str] = {}
"""(file, the line as changed): why it says the same in every run."""


def equivalent(file: str, line: str, what: str) -> bool:
    """Whether a change is known to say the same in every run."""
    at_an_end = what in ("< -> <=", "> -> >=", "<= -> <", ">= -> >") and _AT_AN_END.search(line) is not None
    return at_an_end or (file, line) in EQUIVALENT
