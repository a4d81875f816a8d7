"""Runs of one configuration as sums by prompt, without files: requests of varying difficulty, rounds that are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagletrace.diff.measures import ACCEPT_LENGTH, RANKS, Measured, Sums

DEPTHS = 3
ROWS = 8
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prompts:
    """`ease[i]` is the log-odds of prompt i's first draft; `rounds[i]` how many rounds its request takes."""

    names: list[str]
    ease: Array
    rounds: npt.NDArray[np.int64]

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int, name: str, spread: float = 0.9) -> Prompts:
        rounds = np.maximum(rng.lognormal(3.6, 0.6, count).astype(np.int64), 3)
        return cls([f"{name}{n}" for n in range(count)], 0.9 + spread * rng.standard_normal(count), rounds)


def simulate(rng: np.random.Generator, prompts: Prompts, shift: float = 0.0) -> Measured:
    """One run over these prompts: log-odds drift within a request, so that neighbouring rounds are alike too."""
    measured = Measured(prompts.names)
    sums: dict[str, tuple[Array, Array]] = {}

    def add(name: str, cluster: int, numerator: float, denominator: float) -> None:
        y, x = sums.setdefault(name, (np.zeros(len(prompts.names)), np.zeros(len(prompts.names))))
        y[cluster] += numerator
        x[cluster] += denominator

    whole = max(int(prompts.rounds.sum()), 1)
    done = 0
    for cluster, (ease, rounds) in enumerate(zip(prompts.ease, prompts.rounds, strict=True)):
        drift = np.cumsum(rng.standard_normal(rounds)) * 0.15
        odds = 1 / (1 + np.exp(-(ease + shift + drift - drift.mean())))
        passed = rng.random((rounds, DEPTHS)) < odds[:, None]
        correct = np.cumprod(passed, axis=1).sum(axis=1)
        reached = correct[:, None] >= np.arange(DEPTHS)
        missed = (reached & (correct[:, None] == np.arange(DEPTHS))).sum()
        outside = rng.binomial(missed, 0.06)
        far = rng.binomial(missed - outside, 0.15)
        add(ACCEPT_LENGTH, cluster, correct.sum(), rounds)
        for depth in range(1, DEPTHS + 1):
            add(f"rate.depth_{depth}", cluster, (correct >= depth).sum(), reached[:, depth - 1].sum())
            add(f"unconditional_rate.depth_{depth}", cluster, (correct >= depth).sum(), rounds)
        for k in range(DEPTHS + 1):
            add(f"correct_drafts.{k}", cluster, (correct == k).sum(), rounds)
        ranked = reached.sum() - outside
        for name, count in zip(RANKS, (correct.sum(), missed - outside - far, far, 0), strict=True):
            add(name, cluster, count, ranked)
        add("out_of_vocabulary", cluster, outside, reached.sum())
        row = rng.integers(ROWS, size=rounds) if rng.random() < 0.3 else np.full(rounds, rng.integers(ROWS))
        third = np.minimum((done + np.arange(rounds)) * 3 // whole, 2)
        position = (np.arange(rounds) * 2.5 + rng.integers(20, 400) > 128).astype(int)
        for split, parts in (("row", row), ("time", third), ("position", position)):
            for part in np.unique(parts):
                add(f"{ACCEPT_LENGTH}.{split}.{part}", cluster, correct[parts == part].sum(), (parts == part).sum())
        cached = "yes" if cluster % 3 == 0 else "no"
        add(f"{ACCEPT_LENGTH}.cached.{cached}", cluster, correct.sum(), rounds)
        done += int(rounds)
    typed: dict[str, Sums] = dict(sums)
    measured.sums.update(typed)
    return measured


def pair(seed: int, prompts: int, *, same: bool, shift: float = 0.0) -> tuple[Measured, Measured]:
    """Two runs of one configuration (but for `shift`), sent the same prompts or others."""
    rng = np.random.default_rng(seed)
    first = Prompts.draw(rng, prompts, "p")
    second = first if same else Prompts.draw(rng, prompts, "q")
    return simulate(rng, first), simulate(rng, second, shift)
