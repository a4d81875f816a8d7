"""Intervals of acceptance rates, and how many rounds it takes to tell one from a threshold."""

from __future__ import annotations

import math

from eagletrace.diagnose import policy


def wilson(accepted: int, reached: int, z: float = policy.Z) -> tuple[float, float]:
    """Wilson score interval of a rate; (0, 1) when nothing was reached."""
    if reached == 0:
        return 0.0, 1.0
    rate = accepted / reached
    scale = 1 + z * z / reached
    centre = (rate + z * z / (2 * reached)) / scale
    half = z * math.sqrt(rate * (1 - rate) / reached + z * z / (4 * reached * reached)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def rounds_needed(rate: float | None, threshold: float, least: int = policy.MIN_ROUNDS) -> int | None:
    """Rounds after which the interval of `rate` leaves `threshold` out; None if the rate sits on it.

    An unknown rate needs `least` rounds, which settle every rate that is not near the threshold.
    """
    if rate is None:
        return least
    rounds = least
    while rounds <= policy.MAX_ROUNDS_ADVISED:
        low, high = wilson(round(rate * rounds), rounds)
        if low > threshold or high < threshold:
            return rounds
        rounds = math.ceil(rounds * 1.1)
    return None
