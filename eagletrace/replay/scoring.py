"""How well a recipe drafts what was served, and how far it would have got."""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eagletrace.distributions import t_quantile
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording, Round, Sequence
from eagletrace.replay.reference import Drafted, Extended, Reference, longest_path
from eagletrace.replay.result import Potential

RESAMPLES = 1000


@dataclass(frozen=True)
class Scored:
    """One recipe on one recording.

    `agreed` and `served` count drafted tokens by depth (index 0 is depth 1); `rounds_agreed` tells for each served
    round, in order of the recording, whether all of its tokens were reproduced; `walks` are the correct drafts of each
    round that the recipe would have run, one list for each request, and `correct` the correct drafts at every anchor.
    """

    agreed: tuple[int, ...]
    served: tuple[int, ...]
    rounds_agreed: tuple[bool, ...]
    walks: tuple[tuple[int, ...], ...] = ()
    correct: tuple[npt.NDArray[np.int64], ...] = ()

    @property
    def fidelity(self) -> float:
        """Share of served draft tokens that were reproduced."""
        return sum(self.agreed) / max(sum(self.served), 1)

    @property
    def by_depth(self) -> dict[int, float]:
        """The same by depth."""
        return {i + 1: a / s for i, (a, s) in enumerate(zip(self.agreed, self.served, strict=True)) if s}

    @property
    def accept_length(self) -> float:
        """1 + correct drafts / rounds of the walks."""
        rounds = sum(len(w) for w in self.walks)
        return 1 + sum(map(sum, self.walks)) / rounds if rounds else 1.0

    def potential(self) -> Potential:
        """Accept length of the walks with its interval."""
        return potential(self.walks)


def score(recipe: Recipe, recording: Recording, *, fidelity_only: bool = False) -> Scored:
    """Run a recipe over a recording. With `fidelity_only` only served rounds are drafted, and there are no walks.

    ReplayError where the recipe does not fit the recorded states.
    """
    reference = Reference(recipe)
    depth = recording.steps
    agreed, served = np.zeros(depth, dtype=int), np.zeros(depth, dtype=int)
    rounds_agreed: list[bool] = []
    walks: list[tuple[int, ...]] = []
    every: list[npt.NDArray[np.int64]] = []
    with torch.inference_mode():
        for sequence in recording.sequences:
            extended = reference.extend(sequence)
            drafted, index = _draft(reference, recording, sequence, extended, fidelity_only)
            paths = _paths(drafted)
            for served_round in sequence.rounds:
                mine = paths[index[served_round.anchor]]
                right = [path in mine for path in served_round.paths()]
                for good, at in zip(right, served_round.depths, strict=True):
                    served[at - 1] += 1
                    agreed[at - 1] += good
                rounds_agreed.append(all(right))
            if not fidelity_only:
                correct = longest_path(drafted, sequence.tokens, recipe.label_shift)
                walks.append(walk(correct, drafted.anchors, sequence, recording.steps))
                known = drafted.anchors + 1 + recording.steps < len(sequence.tokens)
                every.append(correct[known].numpy())
    return Scored(tuple(map(int, agreed)), tuple(map(int, served)), tuple(rounds_agreed), tuple(walks), tuple(every))


def _draft(
    reference: Reference, recording: Recording, sequence: Sequence, extended: Extended, fidelity_only: bool
) -> tuple[Drafted, dict[int, int]]:
    """The trees of a sequence's anchors, and where each anchor stands."""
    if fidelity_only:
        anchors = sorted({r.anchor for r in sequence.rounds})
    else:
        anchors = list(range(sequence.prompt - 1, sequence.rows))
    drafted = reference.draft(
        sequence, extended, torch.tensor(anchors), recording.steps, recording.topk, recording.nodes
    )
    return drafted, {anchor: i for i, anchor in enumerate(anchors)}


def _paths(drafted: Drafted) -> list[set[tuple[int, ...]]]:
    """The paths of each tree, as the tokens from depth 1 on."""
    found: list[set[tuple[int, ...]]] = []
    for tokens, parents in zip(drafted.tokens.tolist(), drafted.parents.tolist(), strict=True):
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        found.append(set(paths))
    return found


def walk(correct: Tensor, anchors: Tensor, sequence: Sequence, steps: int) -> tuple[int, ...]:
    """Correct drafts of the rounds that an engine would run, from the end of the prompt on.

    A round near the end, where the continuation is not known to full depth, is left out.
    """
    by_anchor = dict(zip(anchors.tolist(), correct.tolist(), strict=True))
    anchor, rounds = sequence.prompt - 1, list[int]()
    while anchor in by_anchor and anchor + 1 + steps < len(sequence.tokens):
        rounds.append(by_anchor[anchor])
        anchor += by_anchor[anchor] + 1
    return tuple(rounds)


def served(recording: Recording) -> Potential:
    """Accept length of the served rounds, counted like a walk: rounds near the end are left out."""
    return potential(tuple(served_walk(s, recording.steps) for s in recording.sequences))


def served_walk(sequence: Sequence, steps: int) -> tuple[int, ...]:
    """Correct drafts of the served rounds of a sequence."""
    return tuple(r.correct for r in sequence.rounds if r.anchor + 1 + steps < len(sequence.tokens))


def potential(walks: List[List[int]]) -> Potential:
    """Accept length of some walks; the 95 % interval is a bootstrap over requests, over rounds where those are few."""
    parts = [np.asarray(w) for w in walks if len(w)]
    if not parts:
        return Potential(1.0, 1.0, float("inf"), 0)
    if len(parts) < 8:
        parts = [part for whole in parts for part in np.array_split(whole, max(len(whole) // 4, 1))]
    sums, counts = np.array([p.sum() for p in parts]), np.array([len(p) for p in parts])
    chosen = np.random.default_rng(0).integers(0, len(parts), (RESAMPLES, len(parts)))
    lengths = 1 + sums[chosen].sum(1) / counts[chosen].sum(1)
    low, high = np.quantile(lengths, (0.025, 0.975))
    return Potential(1 + float(sums.sum() / counts.sum()), float(low), float(high), int(counts.sum()))


def rounds_in_order(recording: Recording) -> list[tuple[Sequence, Round]]:
    """The served rounds, in the order of `Scored.rounds_agreed`."""
    return [(sequence, r) for sequence in recording.sequences for r in sequence.rounds]


def gain(better: Scored, worse: Scored, *, walked: bool = False, of: int = 1) -> tuple[float, float, float]:
    """Mean difference of correct drafts at the same anchors, with its 95 % interval, over blocks of 16 anchors.

    With `walked`, only at the anchors of the rounds that the worse one would have run: what fails in some rounds of a
    request alone, such as the first, does not show at all anchors.

    The interval is a bootstrap over blocks. Where the difference is one `of` several that are looked at, all of their
    intervals hold together: Student's t at a level shared among them, as a few blocks resampled say nothing of so far
    a tail.
    """
    blocks: list[tuple[float, int]] = []
    for a, b, rounds in zip(better.correct, worse.correct, worse.walks, strict=True):
        apart = (a - b).astype(float)
        if walked:
            at = np.cumsum([0, *(correct + 1 for correct in rounds)])[: len(rounds)]
            apart = apart[at[at < len(apart)]]
        blocks += [(float(part.sum()), len(part)) for part in np.array_split(apart, max(len(apart) // 16, 1))]
    sums, counts = np.array([s for s, _ in blocks]), np.array([c for _, c in blocks])
    if not counts.sum():
        return 0.0, -math.inf, math.inf
    mean = float(sums.sum() / counts.sum())
    if of > 1:
        return mean, *_shared_interval(sums, counts, mean, of)
    chosen = np.random.default_rng(0).integers(0, len(blocks), (RESAMPLES, len(blocks)))
    means = sums[chosen].sum(1) / np.maximum(counts[chosen].sum(1), 1)
    low, high = np.quantile(means, (0.025, 0.975))
    return mean, float(low), float(high)


def _shared_interval(
    sums: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], mean: float, of: int
) -> tuple[float, float]:
    """The interval of a ratio of sums over blocks, at Bonferroni's level for `of` of them."""
    if len(sums) < 2:
        return -math.inf, math.inf
    error = math.sqrt(len(sums) / (len(sums) - 1) * float(((sums - mean * counts) ** 2).sum())) / float(counts.sum())
    reach = t_quantile(0.05 / of, len(sums) - 1) * error
    return mean - reach, mean + reach
