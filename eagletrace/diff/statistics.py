"""Is a difference of two ratios more than chance, when rounds of one prompt are alike?

A measure is a ratio of sums over rounds (accepted / rounds, accepted / reached ...). Rounds of one request share their
text, so that prompts, not rounds, are what is independent: the variance is the cluster-robust one of a ratio
(linearised, each prompt's residual divided by one less its share of the whole, which is the jackknife), with Student's
t at Welch-Satterthwaite degrees of freedom, counted in prompts of equal size. A prompt that both runs were sent is one
cluster of the difference, so that its difficulty cancels: that is the paired test. Prompts of one run alone are
clusters of their own: with no prompt in common it is the test of two independent samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eagletrace.diff import policy
from eagletrace.distributions import normal_quantile, t_p, t_quantile

Array = npt.NDArray[np.float64]
_MOST_TIMES = 1e9
_STEPS = 12


@dataclass(frozen=True)
class Ratio:
    """A measure of one run: numerator and denominator summed by cluster, [clusters] each; zeros where it has none."""

    numerator: Array
    denominator: Array

    @property
    def total(self) -> float:
        """Sum of the denominator: rounds or positions."""
        return float(self.denominator.sum())

    @property
    def clusters(self) -> int:
        """Clusters with an observation."""
        return int(np.count_nonzero(self.denominator))

    @property
    def value(self) -> float | None:
        """The ratio; None without an observation."""
        return float(self.numerator.sum()) / self.total if self.total else None


@dataclass(frozen=True)
class Tested:
    """A difference b - a with its standard error, degrees of freedom and two-sided p value."""

    difference: float
    error: float
    df: float
    p: float

    def interval(self, confidence: float = policy.CONFIDENCE) -> tuple[float, float]:
        """The interval of the difference."""
        half = t_quantile(1 - confidence, self.df) * self.error
        return self.difference - half, self.difference + half

    def detectable(self, alpha: float) -> float:
        """The smallest difference that shows at `alpha` with the chance of `policy.POWER`."""
        return (t_quantile(alpha, self.df) + normal_quantile(policy.POWER)) * self.error

    def times_more(self, alpha: float) -> float | None:
        """How many times the rounds (and prompts) it takes to show the difference seen; None where none was seen."""
        if not self.difference:
            return None
        times = 1.0
        for _ in range(_STEPS):  # the t distribution comes near the normal one with more prompts
            needed = replace(self, df=(self.df + 1) * times - 1).detectable(alpha) / abs(self.difference)
            times = min(max(needed**2, 1.0), _MOST_TIMES)
        return times


def compare(a: Ratio, b: Ratio) -> Tested | None:
    """Test b - a, clusters of both in the same order; None where there is too little to test."""
    too_few = min(a.clusters, b.clusters) < policy.MIN_CLUSTERS or min(a.total, b.total) < policy.MIN_OBSERVATIONS
    if too_few or a.value is None or b.value is None:
        return None
    of_a, of_b = _influence(a, a.value), _influence(b, b.value)
    parts, in_a, in_b = of_b - of_a, a.denominator > 0, b.denominator > 0
    groups = [
        _variance(parts[where], (a.denominator / a.total + b.denominator / b.total)[where])
        for where in (in_a & in_b, in_a & ~in_b, in_b & ~in_a)
    ]
    variance = sum(v for v, _ in groups)
    df = variance**2 / sum(v * v / d for v, d in groups if v) if variance else policy.MIN_CLUSTERS - 1
    for ratio, influence in ((a, of_a), (b, of_b)):
        if variance < 1e-18 or not influence.any():
            variance += _of_constant(ratio.total)
    error, difference = math.sqrt(variance), b.value - a.value
    return Tested(difference, error, max(df, 1.0), t_p(difference / error, max(df, 1.0)))


def _influence(ratio: Ratio, value: float) -> Array:
    """What each cluster adds to the ratio, [clusters]; the jackknife's correction for large clusters included."""
    share = ratio.denominator / ratio.total
    return (ratio.numerator - value * ratio.denominator) / ratio.total / np.maximum(1 - share, 1e-9)


def _variance(parts: Array, weights: Array) -> tuple[float, float]:
    """Variance of a sum over one group of clusters, and its degrees of freedom: clusters of equal size, less one."""
    count = len(parts)
    if not count:
        return 0.0, 1.0
    equal = float(weights.sum() ** 2 / (weights**2).sum())
    return float((parts**2).sum()) * max(count - 1, 1) / count, max(equal - 1, 0.5)


def _of_constant(observations: float) -> float:
    """Variance of a share that was 0 or 1 in every observation: of one success and one failure more."""
    share = 1 / (observations + 2)
    return share * (1 - share) / observations


def correct(p: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Holm's corrected p values, weighted: all that are at most alpha may be called significant together.

    Holm and not Benjamini-Hochberg, because one significant comparison makes two runs differ: what has to stay below
    alpha is the chance of a single false one, whatever the dependence between comparisons.
    """
    order = sorted(range(len(p)), key=lambda i: p[i] / weights[i])
    left, worst, result = sum(weights), 0.0, [1.0] * len(p)
    for index in order:
        worst = max(worst, min(1.0, left * p[index] / weights[index]))
        result[index] = worst
        left -= weights[index]
    return result
