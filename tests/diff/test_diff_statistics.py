"""Intervals and alarms of a diff: against tables, against each other, and on simulated runs."""

from __future__ import annotations

import numpy as np
import pytest

from eagletrace.diff import policy
from eagletrace.diff.behaviour import compare_behaviour
from eagletrace.diff.statistics import Ratio, compare, correct
from eagletrace.distributions import t_p, t_quantile
from tests.diff.simulator import pair

PAIRS = 40


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [(0.05, 1, 12.7062), (0.05, 2, 4.30265), (0.05, 10, 2.22814), (0.01, 30, 2.75), (0.001, 7, 5.40788),
     (0.05, 1e7, 1.95996)],
)  # fmt: skip
def test_the_t_distribution_is_that_of_the_tables(p: float, df: float, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-5)
    assert t_p(t, df) == pytest.approx(p, rel=1e-3)


def test_holm_is_that_of_the_textbook() -> None:
    assert correct([0.01, 0.04, 0.03, 0.005], [1, 1, 1, 1]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_comparison_of_more_weight_is_corrected_less() -> None:
    first, second = correct([0.02, 0.02], [0.9, 0.1])
    assert first == pytest.approx(0.02 / 0.9) and second == pytest.approx(first)
    assert correct([0.2, 0.04], [0.1, 0.9]) == pytest.approx([0.2, 0.04 / 0.9])


def ratio(*parts: tuple[float, float]) -> Ratio:
    y, x = zip(*parts, strict=True)
    return Ratio(np.array(y, float), np.array(x, float))


def test_what_is_alike_in_every_prompt_shows_when_the_prompts_are_the_same() -> None:
    """Prompts differ by much more than the runs do: only the pairing shows it."""
    easy = [10, 30, 55, 70, 85, 95]
    a = [(y, 100) for y in easy]
    b = [(y - 6 + n % 3, 100) for n, y in enumerate(easy)]
    none = [(0, 0)] * len(easy)
    paired = compare(ratio(*a), ratio(*b))
    apart = compare(ratio(*a, *none), ratio(*none, *b))
    assert paired is not None and apart is not None
    assert paired.difference == apart.difference == pytest.approx(-0.05)
    assert paired.p < 0.001 and apart.p > 0.5


def test_a_share_of_none_and_of_all_has_an_interval() -> None:
    a, b = ratio(*[(0, 4)] * 3), ratio(*[(4, 4)] * 3)
    tested = compare(a, b)
    assert tested is not None and tested.error > 0.1 and tested.p < 0.05
    same = compare(a, a)
    assert same is not None and same.difference == 0 and same.interval()[1] > 0.1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (ratio((5, 10), (5, 10), (0, 0)), ratio((5, 10), (5, 10), (5, 10))),
        (ratio(*[(1, 3)] * 3), ratio(*[(9, 30)] * 3)),
    ],
)
def test_too_few_prompts_or_rounds_are_not_tested(a: Ratio, b: Ratio) -> None:
    assert compare(a, b) is None


@pytest.mark.parametrize("same", [True, False], ids=["same prompts", "other prompts"])
@pytest.mark.parametrize("prompts", [8, 24])
def test_two_runs_of_one_configuration_give_at_most_two_alarms_in_forty(prompts: int, same: bool) -> None:
    alarms = [bool(compare_behaviour(*pair(seed, prompts, same=same)).changed) for seed in range(PAIRS)]
    assert sum(alarms) <= 2


def test_the_interval_holds_in_95_of_100() -> None:
    lengths = [compare_behaviour(*pair(seed, 12, same=False)).differences[0] for seed in range(100)]
    inside = sum(d.ci_low is not None and d.ci_high is not None and d.ci_low <= 0 <= d.ci_high for d in lengths)
    assert 90 <= inside <= 100


def test_a_loss_is_found_and_its_size_told() -> None:
    found = [compare_behaviour(*pair(seed, 24, same=True, shift=-0.7)) for seed in range(10)]
    assert all(b.paired and b.differences[0].significant for b in found)
    sizes = [b.differences[0].difference or 0 for b in found]
    assert -0.9 < float(np.mean(sizes)) < -0.3


def test_what_cannot_be_shown_says_how_many_rounds_would() -> None:
    """With the rounds that it advises, most of the same differences are found."""
    few = [compare_behaviour(*pair(seed, 10, same=False, shift=-0.7)).differences[0] for seed in range(20)]
    unseen = [d for d in few if d.state == "undetectable" and d.rounds_needed and (d.difference or 0) < -0.4]
    assert len(unseen) >= 5
    found = 0
    for seed, d in enumerate(unseen):
        assert d.rounds_needed is not None and not d.significant and "would show" in d.why
        prompts = max(10, round(10 * d.rounds_needed / np.mean(d.observations)))
        found += compare_behaviour(*pair(1000 + seed, prompts, same=False, shift=-0.7)).differences[0].significant
    assert found >= 0.5 * len(unseen)


def test_rounds_of_one_prompt_do_not_count_as_many() -> None:
    """Rounds that are all alike within a prompt tell as much as the prompts do, however many they are."""
    few = compare(ratio((0, 10), (10, 10), (10, 10), (0, 10)), ratio((10, 10), (10, 10), (10, 10), (0, 10)))
    many = compare(
        ratio((0, 1000), (1000, 1000), (1000, 1000), (0, 1000)),
        ratio((1000, 1000), (1000, 1000), (1000, 1000), (0, 1000)),
    )
    assert few is not None and many is not None and many.p == pytest.approx(few.p) and many.p > 0.2


def test_the_thresholds_are_those_of_the_docs() -> None:
    assert policy.ALPHA == 0.05 and policy.ACCEPT_LENGTH_WEIGHT == 0.5
