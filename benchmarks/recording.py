"""What recording costs a live server: `python -m benchmarks.recording` (twenty minutes; the machine must be quiet).

Writes `benchmarks/out/recording.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.live import Live, Window, live
from benchmarks.statistics import Figure, paired, publish, single, spread

BLOCKS, SECONDS, CLOCKED = {1: 24, 8: 48}, 2.5, 8  # blocks by requests at once
LEAST_ROUNDS = 5
TAIL_RESAMPLES = 400
NEVER = "1000000000"
COST_GOAL = {("tokens", 1): 60.0, ("tokens", 8): 150.0, ("contract", 1): 3.0, ("contract", 8): 3.0}
ROUND_OF_GOAL = {1: 11_000.0, 8: 21_000.0}
"""Microseconds of a round where the goals were set: by the share of a round they hold on any machine."""
Blocks = list[dict[str, Window]]


def arms_of(server: Live, levels: tuple[str, ...]) -> dict[str, Callable[[], None]]:
    """Untraced, the same again as control, and levels."""
    arms: dict[str, Callable[[], None]] = {
        "untraced": lambda: server.ask(pause=True),
        "control": lambda: server.ask(pause=True),
    }
    for level in levels:
        arms[level] = partial(server.ask, level=level)
    return arms


def cost(blocks: Blocks, arm: str, against: str = "untraced") -> list[float]:
    """CPU microseconds that an arm adds to a round on the scheduler's thread, by block."""
    return [(typical(b, arm, "cpu_ns") - typical(b, against, "cpu_ns")) / 1e3 for b in whole(blocks, arm, against)]


def speed(blocks: Blocks, arm: str, against: str = "untraced") -> list[float]:
    """Rounds a second of an arm by those of another, by block."""
    return [typical(b, against, "wall_ns") / typical(b, arm, "wall_ns") for b in whole(blocks, arm, against)]


def whole(blocks: Blocks, *arms: str) -> Blocks:
    """Blocks in which these arms had rounds: stopping a profiler may take a whole window."""
    return [b for b in blocks if all(len(b[arm].cpu_ns) >= LEAST_ROUNDS for arm in arms)]


def typical(block: dict[str, Window], arm: str, what: str) -> float:
    """A round of an arm: as if all arms of the block had sequences of the same length, which rounds get longer with.

    The median of what a line through all rounds of the block leaves, and the line's middle.
    """
    lengths = np.concatenate([w.tokens for w in block.values()])
    values = np.concatenate([getattr(w, what) for w in block.values()])
    low, high = np.percentile(values, [2, 90])
    kept = (values >= low) & (values <= high)
    slope = np.polyfit(lengths[kept], values[kept], 1)[0]
    own = block[arm]
    return float(np.median(getattr(own, what) - slope * (own.tokens - lengths.mean())))


def tail(blocks: Blocks, arm: str, share: float = 99.9) -> float:
    """Milliseconds of the longest rounds of an arm over all blocks, less the middle one."""
    wall = np.concatenate([b[arm].wall_ns for b in blocks])
    return float(np.percentile(wall, share) - np.median(wall)) / 1e6


def longest_delay(blocks: Blocks, arm: str) -> tuple[float, float, float]:
    """By how many milliseconds the longest rounds of an arm are longer than untraced ones, with an interval by blocks
    drawn anew."""
    draws = np.random.default_rng(0).integers(0, len(blocks), (TAIL_RESAMPLES, len(blocks)))
    drawn = [[blocks[n] for n in draw] for draw in draws]
    low, high = np.percentile([tail(part, arm) - tail(part, "untraced") for part in drawn], [2.5, 97.5])
    return tail(blocks, arm) - tail(blocks, "untraced"), float(low), float(high)


def middle(values: np.ndarray) -> float:
    """The mean without the outer tenths."""
    low, high = np.percentile(values, [10, 90])
    return float(values[(values >= low) & (values <= high)].mean())


def clocked(server: Live, level: str) -> None:
    """A level, with a clock around each of its hooks."""
    server.peer("")
    server.ask(level=level)
    server.peer("timed")


def plain(server: Live) -> None:
    """Not traced; ten small tensors of each round as lists."""
    server.peer("")
    server.ask(pause=True)
    server.peer("plain")


def in_hooks(blocks: Blocks, arm: str) -> list[float]:
    """Mean microseconds of a round in hooks under a clock, by block."""
    return [float(np.mean(b[arm].hooks_ns)) / 1e3 for b in blocks]


def hooks_share(blocks: Blocks, arm: str) -> list[float]:
    """Percent of the time of rounds that is spent in hooks, by block."""
    return [100 * float(np.sum(b[arm].hooks_ns) / np.sum(b[arm].wall_ns)) for b in blocks]


def delay_figure(name: str, blocks: Blocks, arm: str, goal: float | None) -> Figure:
    """The longest delay, trusted where the control's interval covers zero and is within the goal."""
    value, low, high = longest_delay(blocks, arm)
    _, control_low, control_high = longest_delay(blocks, "control")
    holds = None
    if goal is not None and control_low <= 0 <= control_high and max(-control_low, control_high) <= goal:
        holds = value <= goal
    return Figure(name, value, "ms", low, high, control_low, control_high, goal, holds)


def level_figures(server: Live, batch: int, levels: tuple[str, ...], blocks: int, seconds: float) -> list[Figure]:
    """Cost, throughput, longest delay and background share of each level."""
    label = "1 request" if batch == 1 else f"{batch} requests"
    print(f"{label}: {blocks} blocks", flush=True)
    server.load(batch)
    try:
        measured = server.blocks(arms_of(server, levels), batch, blocks, seconds)
        clocks = {"plain": partial(plain, server), **{level: partial(clocked, server, level) for level in levels}}
        timed = server.blocks(clocks, batch, CLOCKED, seconds, discard_s=1.0)
    finally:
        server.peer("")
        server.idle()
    figures: list[Figure] = []
    base = np.median(np.concatenate([b["untraced"].wall_ns for b in measured])) / 1e3
    figures.append(single(f"a round, untraced, {label}", "us", float(base)))
    figures.append(spread(f"a plain recorder of ten small tensors, {label}", "us", in_hooks(timed, "plain")))
    for level in levels:
        added = cost(measured, level)
        figures.append(paired(f"{level}: added to a round, {label}", "us", added, cost(measured, "control"),
                              COST_GOAL.get((level, batch))))  # fmt: skip
        goal = COST_GOAL.get((level, batch))
        figures.append(spread(f"{level}: in the hooks of a round, {label}", "us", in_hooks(timed, level), goal))
        goal_share = None if goal is None else 100 * goal / ROUND_OF_GOAL[batch]
        figures.append(
            spread(
                f"{level}: in the hooks of a round, share of it, {label}", "%", hooks_share(timed, level), goal_share
            )
        )
        share = [100 * a / base for a in added]
        again = cost(measured, "control")
        same = [100 * a / base for a in again]
        figures.append(paired(f"{level}: share of a round, {label}", "%", share, same))
        figures.append(
            paired(f"{level}: throughput, {label}", "of untraced", speed(measured, level), speed(measured, "control"),
                   0.99 if level == "tokens" and batch == 8 else None, at_least=True, neutral=1.0)
        )  # fmt: skip
        goal = 1.0 if level == "tokens" else None
        figures.append(delay_figure(f"{level}: longest delay (p99.9), {label}", measured, level, goal))
        hooks = np.concatenate([b[level].hooks_ns for b in timed]) / 1e6
        figures.append(single(f"{level}: in the hooks of a round (p99.9), {label}", "ms",
                              float(np.percentile(hooks, 99.9)), goal))  # fmt: skip
        background = 100 * float(np.median([b[level].background_share for b in measured]))
        figures.append(single(f"{level}: background threads, {label}", "% of a core", background))
    return figures


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--batch", type=int, action="append", help="1, 8 or both")
    parser.add_argument("--level", action="append")
    options = parser.parse_args()
    levels = tuple(options.level or ("contract", "tokens"))
    figures: list[Figure] = []
    with live(EAGLETRACE_HIDDEN_EVERY=NEVER) as server:
        for batch in options.batch or (1, 8):
            blocks = options.blocks or BLOCKS.get(batch, BLOCKS[8])
            figures += level_figures(server, batch, levels, blocks, options.seconds)
    publish("recording", figures)


if __name__ == "__main__":
    main()
