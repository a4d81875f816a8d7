"""Intervals, how many rounds would do, and what counts alone allow to say."""

from __future__ import annotations

import pytest

from eagletrace.diagnose import Acceptance, DepthRate, policy
from eagletrace.diagnose.judge import checks, judge
from eagletrace.diagnose.statistics import rounds_needed, wilson


def acceptance(*depths: tuple[int, int]) -> Acceptance:
    rounds = depths[0][0]
    by_depth = tuple(DepthRate(d, reached, accepted, rounds) for d, (reached, accepted) in enumerate(depths, 1))
    return Acceptance(rounds, 3 * rounds, sum(a for _, a in depths), by_depth)


def test_wilson_against_published_values() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert wilson(0, 30) == pytest.approx((0.0, 0.1135), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.58, 0.9])
def test_rounds_needed_settle_the_rate(rate: float) -> None:
    needed = rounds_needed(rate, policy.POOR_DEPTH1_RATE)
    assert needed is not None
    level = judge(acceptance((needed, round(rate * needed)))).level
    assert level in ("poor", "healthy", "excellent")


def test_no_number_of_rounds_settles_a_rate_on_the_threshold() -> None:
    assert rounds_needed(policy.POOR_DEPTH1_RATE, policy.POOR_DEPTH1_RATE) is None
    on_it = judge(acceptance((1000, round(1000 * policy.POOR_DEPTH1_RATE))))
    assert (on_it.level, on_it.needed) == ("too_few", None)
    assert "more rounds would not" in on_it.reason


def test_an_unknown_rate_needs_the_least() -> None:
    assert rounds_needed(None, policy.POOR_DEPTH1_RATE) == policy.MIN_ROUNDS
    assert judge(Acceptance()).level == "none"


@pytest.mark.parametrize(
    ("depths", "level"),
    [
        (((29, 0),), "too_few"),
        (((30, 0),), "poor"),
        (((300, 100),), "poor"),
        (((300, 117),), "too_few"),
        (((300, 140),), "healthy"),
        (((300, 285),), "excellent"),
        (((300, 200), (200, 20), (20, 5)), "collapsed"),
        (((300, 200), (200, 60), (60, 20)), "healthy"),
        (((60, 40), (29, 0)), "healthy"),
    ],
)
def test_levels(depths: tuple[tuple[int, int], ...], level: str) -> None:
    assert judge(acceptance(*depths)).level == level


def test_checks_of_the_counts() -> None:
    measured = acceptance((300, 200), (200, 20), (20, 5))
    assert [c.status for c in checks(measured, judge(measured))] == ["ok", "alarm"]
    shallow = acceptance((300, 10), (10, 3))
    assert [c.status for c in checks(shallow, judge(shallow))] == ["alarm", "unknown"]
    nothing = Acceptance()
    assert [c.status for c in checks(nothing, judge(nothing))] == ["unknown", "unknown"]


def test_no_rounds_give_the_contracts_zero_object() -> None:
    assert Acceptance().to_json()["accept_length"] == 1.0
    assert Acceptance().accept_length is None
    assert Acceptance().depth1.rate is None
