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
from eagletrace.diff.trained import Departure, Frozen, TrainedTensor, TrainingComparison

__all__ = [
    "CauseDelta", "Departure", "Diff", "Difference", "Divergence", "Explanation", "FactChange", "Frozen",
    "Parting", "StageDifference", "TrainedTensor",
    "TrainingComparison", "diff", "diff_many",
]  # fmt: skip
