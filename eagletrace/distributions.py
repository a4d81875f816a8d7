"""Student's t distribution, without a package for it."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

NORMAL = NormalDist()
_NEARLY_NORMAL = 1e5  # degrees of freedom
_TINY = 1e-300
_LARGEST = 1e15


def normal_quantile(share: float) -> float:
    """Quantile of the standard normal distribution."""
    return NORMAL.inv_cdf(share)


def t_p(t: float, df: float) -> float:
    """Two-sided p value of `t` at `df` degrees of freedom (a fraction is fine)."""
    if math.isinf(t):
        return 0.0
    if df > _NEARLY_NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The t that has the two-sided p value `p`: Newton's method between bounds, on the logarithm of p."""
    low, high = 0.0, max(normal_quantile(1 - p / 2), 1.0)
    while t_p(high, df) > p and high < _LARGEST:
        low, high = high, high * 4
    t = high
    for _ in range(200):
        now = t_p(t, df)
        low, high = (t, high) if now > p else (low, t)
        step = (math.log(max(now, _TINY)) - math.log(p)) * now / (2 * _density(t, df)) if now > 0 else 0.0
        if abs(step) < 1e-10 * t or high - low < 1e-12 * high:
            break
        t = t + step if low < t + step < high else (low + high) / 2
    return t


def _density(t: float, df: float) -> float:
    if df > _NEARLY_NORMAL:
        return max(NORMAL.pdf(t), _TINY)
    log = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return max(math.exp(log - (df + 1) / 2 * math.log1p(t * t / df)), _TINY)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / _away(1 + even * d), _away(1 + even / c)
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / _away(1 + odd * d), _away(1 + odd / c)
        value *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
