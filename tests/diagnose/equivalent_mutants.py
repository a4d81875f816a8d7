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

_PREFILTER = "only saves work: more pairs of kinds are looked at than can fail, and the others are not used"
_FEW = "of one round or two requests nothing is said, so that their design effect is not used"
EQUIVALENT: dict[tuple[str, str], str] = {
    ("round_split_pairs", "SELECT split, part FROM round_splits WHERE part <> 'false' OR rate < 0.6 * others_rate"):
        _PREFILTER,
    ("round_split_pairs",
     "SELECT split, part FROM round_splits WHERE part <> 'false' AND rate < (0.6 + 1) * others_rate"): _PREFILTER,
    ("round_splits",
     "greatest(1, coalesce(m / nullif(m - 1, (0 + 1)) * (aa - 2 * a / n * na + (a / n) ** 2 * nn)"): _FEW,
    ("round_splits", "greatest(1, coalesce(others_m / nullif(others_m - 1, (0 + 1))"): _FEW,
    ("round_splits", "* (others_aa - 2 * others_a / nullif(others_n, (0 + 1)) * others_na"): _FEW,
    ("round_splits", "+ (others_a / nullif(others_n, (0 + 1))) ** 2 * others_nn)"): _FEW,
    ("round_splits", "/ nullif(others_a * (1 - others_a / nullif(others_n, (0 + 1))), 0), 1)) AS others_effect"): _FEW,
}  # fmt: skip
"""(file, the line as changed): why it says the same in every run."""


def equivalent(file: str, line: str, what: str) -> bool:
    """Whether a change is known to say the same in every run."""
    at_an_end = what in ("< -> <=", "> -> >=", "<= -> <", ">= -> >") and _AT_AN_END.search(line) is not None
    return at_an_end or (file, line) in EQUIVALENT
