"""Paired differences with bootstrap intervals, and the figures that a benchmark publishes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent / "out"
RESAMPLES = 10_000


@dataclass(frozen=True)
class Figure:
    """One figure. `control_ci_*` is the interval of the same arm measured twice: where it does not cover zero, the
    machine was too noisy and `holds` is None."""

    name: str
    value: float | None
    unit: str
    ci_low: float | None = None
    ci_high: float | None = None
    control_ci_low: float | None = None
    control_ci_high: float | None = None
    goal: float | None = None
    holds: bool | None = None


PAIRS: dict[str, list[float]] = {}
"""Every paired difference behind the figures made so far, in the order of the blocks."""


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Median and its bootstrap 95 % interval."""
    array = np.asarray(values, dtype=float)
    if not len(array):
        return float("nan"), float("nan"), float("nan")
    draws = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.percentile(np.median(array[draws], axis=1), [2.5, 97.5])
    return float(np.median(array)), float(low), float(high)


def paired(
    name: str, unit: str, differences: Sequence[float], control: Sequence[float], goal: float | None = None, *,
    at_least: bool = False, neutral: float = 0.0,
) -> Figure:  # fmt: skip
    """The median of paired differences (or ratios, `neutral` 1) against a goal, trusted if the control's is neutral."""
    PAIRS[name] = [round(float(d), 4) for d in differences]
    value, low, high = median_interval(differences)
    _, control_low, control_high = median_interval(control)
    holds = None
    # What two equal arms differ by must be less than what the goal speaks of, or nothing was measured.
    fine_enough = goal is not None and max(control_high - neutral, neutral - control_low) <= abs(goal - neutral) + 1e-12
    if goal is not None and control_low <= neutral <= control_high and fine_enough:
        holds = value >= goal if at_least else value <= goal
    return Figure(name, value, unit, low, high, control_low, control_high, goal, holds)


def single(name: str, unit: str, value: float | None, goal: float | None = None, *, at_least: bool = False) -> Figure:
    """A figure without arms."""
    holds = None if goal is None or value is None else (value >= goal if at_least else value <= goal)
    return Figure(name, value, unit, goal=goal, holds=holds)


def spread(name: str, unit: str, values: Sequence[float], goal: float | None = None) -> Figure:
    """The median of blocks without a control, against a goal that it may not exceed."""
    PAIRS[name] = [round(float(v), 4) for v in values]
    value, low, high = median_interval(values)
    return Figure(name, value, unit, low, high, goal=goal, holds=None if goal is None else value <= goal)


def publish(file: str, figures: Sequence[Figure]) -> Path:
    """Write `benchmarks/out/<file>.json` and print the table."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{file}.json"
    path.write_text(json.dumps([asdict(f) for f in figures], indent=1) + "\n")
    pairs = {f.name: PAIRS[f.name] for f in figures if f.name in PAIRS}
    (OUT / "pairs").mkdir(exist_ok=True)
    (OUT / "pairs" / f"{file}.json").write_text(json.dumps(pairs, indent=1) + "\n")
    from rich.console import Console
    from rich.table import Table

    table = Table(title=file)
    for column in ("figure", "value", "95 % interval", "control", "goal", "holds"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for f in figures:
        table.add_row(
            f.name, f"{number(f.value)} {f.unit}", span(f.ci_low, f.ci_high),
            span(f.control_ci_low, f.control_ci_high), number(f.goal),
            {True: "yes", False: "no", None: "-"}[f.holds],
        )  # fmt: skip
    Console(width=140).print(table)
    return path


def number(value: float | None) -> str:
    """Four digits, or a dash."""
    return "-" if value is None else f"{value:,.4g}"


def span(low: float | None, high: float | None) -> str:
    """An interval, or a dash."""
    return "-" if low is None or high is None else f"{low:,.4g} to {high:,.4g}"
