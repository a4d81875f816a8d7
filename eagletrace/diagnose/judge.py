"""What the counts alone allow to say: is acceptance poor, healthy, or were there too few rounds to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagletrace.diagnose import policy
from eagletrace.diagnose.result import Acceptance, Check, DepthRate, Status
from eagletrace.diagnose.statistics import rounds_needed, wilson

Level = Literal["none", "too_few", "poor", "collapsed", "healthy", "excellent"]
"""none: no round; too_few: cannot be told from the threshold; poor: depth 1 fails; collapsed: depth 1 works and a
deeper one does not; healthy; excellent: no fault can cost much."""


@dataclass(frozen=True)
class Judgement:
    """`reason` is one sentence; `needed` the rounds that would do (None: not a matter of rounds)."""

    level: Level
    reason: str
    needed: int | None = None

    @property
    def lossy(self) -> bool:
        """Acceptance was clearly lost."""
        return self.level in ("poor", "collapsed")


def judge(acceptance: Acceptance) -> Judgement:
    """Judge acceptance by the 95 % interval of its conditional rates."""
    first = acceptance.depth1
    low, high = wilson(first.accepted, first.reached)
    if not acceptance.rounds or not first.reached:
        needed = rounds_needed(None, policy.POOR_DEPTH1_RATE)
        return Judgement("none", f"no round of a user request was recorded; about {needed} would do", needed)
    seen = f"{first.accepted} of {first.reached} first drafts were accepted"
    interval = f"{first.rate:.0%}, 95 % interval {low:.0%} to {high:.0%}"
    if acceptance.rounds < policy.MIN_ROUNDS or low <= policy.POOR_DEPTH1_RATE <= high:
        return _too_few(acceptance, first, seen, interval)
    if high < policy.POOR_DEPTH1_RATE:
        return Judgement("poor", f"only {seen} ({interval}); a working draft is above {policy.POOR_DEPTH1_RATE:.0%}")
    collapsed = _collapsed(acceptance)
    if collapsed:
        return Judgement(
            "collapsed",
            f"{seen} ({interval}), but at depth {collapsed.depth} only {collapsed.accepted} of {collapsed.reached}",
        )
    level: Level = "excellent" if low > policy.EXCELLENT_DEPTH1_RATE else "healthy"
    return Judgement(level, f"{seen} ({interval})")


def _too_few(acceptance: Acceptance, first: DepthRate, seen: str, interval: str) -> Judgement:
    needed = rounds_needed(first.rate, policy.POOR_DEPTH1_RATE)
    advice = (
        f"about {max(needed, policy.MIN_ROUNDS)} rounds would do"
        if needed
        else "the rate sits on the threshold, and more rounds would not settle it"
    )
    return Judgement(
        "too_few",
        f"{acceptance.rounds} rounds are too few to tell: {seen} ({interval}), against the threshold "
        f"{policy.POOR_DEPTH1_RATE:.0%}; {advice}",
        needed,
    )


def _collapsed(acceptance: Acceptance) -> DepthRate | None:
    for depth in acceptance.by_depth[1:]:
        if depth.reached >= policy.MIN_ROUNDS and depth.interval[1] < policy.COLLAPSED_DEEPER_RATE:
            return depth
    return None


def checks(acceptance: Acceptance, judgement: Judgement) -> list[Check]:
    """The judgement as checks: depth 1, and the deeper ones."""
    level = judgement.level
    status: Status = "unknown" if level in ("none", "too_few") else "alarm" if level == "poor" else "ok"
    first = Check("acceptance.depth1", status, judgement.reason, "The target accepts most first drafts")
    deeper = [d for d in acceptance.by_depth[1:] if d.reached]
    rates = ", ".join(f"depth {d.depth}: {d.accepted} of {d.reached}" for d in deeper)
    title = "Deeper drafts are accepted about as often as first ones"
    if level == "collapsed":
        return [first, Check("acceptance.deeper", "alarm", judgement.reason, title)]
    if not any(d.reached >= policy.MIN_ROUNDS for d in deeper):
        reason = f"too few drafts at depth 2 and deeper were reached to tell ({rates or 'none'}); " \
                 f"{policy.MIN_ROUNDS} would do"  # fmt: skip
        return [first, Check("acceptance.deeper", "unknown", reason, title)]
    return [first, Check("acceptance.deeper", "ok", rates, title)]
