"""What changed between two diagnoses."""

from __future__ import annotations

from collections.abc import Iterable

from eagletrace.diagnose import Diagnosis
from eagletrace.diff import policy
from eagletrace.diff.result import CauseDelta


def compare_causes(a: Diagnosis, b: Diagnosis) -> CauseDelta:
    """Causes and alarms gained, lost and kept from `a` to `b`."""
    of_a, of_b = [c.id for c in a.causes], [c.id for c in b.causes]
    sure_a, sure_b = ({c.id for c in d.causes if c.confidence >= policy.SURE_CAUSE} for d in (a, b))
    gained, lost, kept = _delta(of_a, of_b)
    checks = _delta(_alarms(a), _alarms(b))
    sure = (*(c for c in gained if c in sure_b), *(c for c in lost if c in sure_a))
    return CauseDelta(gained, lost, kept, sure, *checks, verdicts=(a.verdict, b.verdict))


def _alarms(diagnosis: Diagnosis) -> list[str]:
    return [c.id for c in diagnosis.checks if c.status == "alarm"]


def _delta(a: Iterable[str], b: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    before, after = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    return (
        tuple(x for x in after if x not in before),
        tuple(x for x in before if x not in after),
        tuple(x for x in after if x in before),
    )
