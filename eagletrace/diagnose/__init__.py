"""Checks -> evidence -> ranked causes -> verdict."""

from eagletrace.diagnose.causes import CAUSES, CauseInfo, explain
from eagletrace.diagnose.engine import diagnose
from eagletrace.diagnose.result import (
    EXIT_CODES,
    Acceptance,
    Cause,
    Check,
    DepthRate,
    Diagnosis,
    Evidence,
    Proof,
    RunInfo,
)

__all__ = [
    "CAUSES", "EXIT_CODES", "Acceptance", "Cause", "CauseInfo", "Check", "DepthRate", "Diagnosis", "Evidence", "Proof",
    "RunInfo", "diagnose", "explain",
]  # fmt: skip
