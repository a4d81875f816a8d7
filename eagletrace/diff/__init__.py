"""What changed between two runs, and what it did to acceptance."""

from eagletrace.diff.engine import diff, diff_many
from eagletrace.diff.result import (
    CauseDelta,
    Diff,
    Difference,
    Divergence,
    Explanation,
    FactChange,
    Parting,
    StageDifference,
)

__all__ = [
    "CauseDelta", "Diff", "Difference", "Divergence", "Explanation", "FactChange", "Parting", "StageDifference", "diff",
    "diff_many",
]  # fmt: skip
