"""Compares what two runs did: every measure that both have, tested together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagletrace.diff import policy
from eagletrace.diff.measures import ACCEPT_LENGTH, Measured, Sums
from eagletrace.diff.result import Difference, State
from eagletrace.diff.statistics import Ratio, Tested, compare, correct

SPLITS = f"{ACCEPT_LENGTH}."


@dataclass(frozen=True)
class Behaviour:
    """All comparisons, and whether most rounds of both runs are of prompts that both were sent."""

    differences: tuple[Difference, ...]
    shared_prompts: int
    paired: bool

    @property
    def changed(self) -> tuple[Difference, ...]:
        """The significant ones."""
        return tuple(d for d in self.differences if d.significant)


def compare_behaviour(a: Measured, b: Measured) -> Behaviour:
    """Compare two runs measure by measure, with one correction for all."""
    place = {prompt: n for n, prompt in enumerate(dict.fromkeys([*_names(a, "a"), *_names(b, "b")]))}
    where_a, where_b = ([place[p] for p in _names(m, side)] for m, side in ((a, "a"), (b, "b")))
    shared = _with_rounds(a, where_a) & _with_rounds(b, where_b)
    plain, tested = list[Difference](), list[Tested | None]()
    for name in _compared(a, b):
        ratio_a, ratio_b = (_ratio(m.sums.get(name), where, len(place)) for m, where in ((a, where_a), (b, where_b)))
        plain.append(_plain(name, ratio_a, ratio_b))
        tested.append(compare(ratio_a, ratio_b))
    weights = _weights([d.name for d, t in zip(plain, tested, strict=True) if t is not None])
    corrected = dict(zip(weights, correct([t.p for t in tested if t is not None], list(weights.values())), strict=True))
    differences = tuple(
        _judged(d, t, corrected[d.name], policy.ALPHA * weights[d.name]) if t is not None else d
        for d, t in zip(plain, tested, strict=True)
    )
    return Behaviour(differences, len(shared), _paired(a, where_a, shared) and _paired(b, where_b, shared))


def _with_rounds(measured: Measured, where: Sequence[int]) -> set[int]:
    """Clusters with rounds of user requests."""
    rounds = measured.sums[ACCEPT_LENGTH][1] if measured.rounds else np.zeros(len(where))
    return {n for n, count in zip(where, rounds, strict=True) if count}


def _names(measured: Measured, side: str) -> list[str]:
    """Prompts by name; one that is not known is nobody else's."""
    return [p if not p.startswith("#") else f"{p}#{side}" for p in measured.prompts]


def _compared(a: Measured, b: Measured) -> list[str]:
    """Measures of either run, in order; splits of which both runs have at least two parts in common."""
    names = list(dict.fromkeys([*a.sums, *b.sums]))
    common = [_split_of(n) for n in names if n.startswith(SPLITS) and n in a.sums and n in b.sums]
    told = {s for s in common if common.count(s) > 1 or s == "kind"}
    plain = sorted((n for n in names if not n.startswith(SPLITS)), key=_order)
    return [*plain, *(n for n in names if n.startswith(SPLITS) and _split_of(n) in told)]


def _split_of(name: str) -> str:
    return name.removeprefix(SPLITS).partition(".")[0]


def _order(name: str) -> tuple[int, str]:
    kinds = (ACCEPT_LENGTH, "rate.", "unconditional_rate.", "correct_drafts.", "rank.", "out_of")
    return next(n for n, kind in enumerate(kinds) if name.startswith(kind)), ""


def _ratio(sums: Sums | None, where: Sequence[int], clusters: int) -> Ratio:
    """A measure of one run over the clusters of both."""
    numerator, denominator = np.zeros(clusters), np.zeros(clusters)
    if sums is not None:
        numerator[where], denominator[where] = sums
    return Ratio(numerator, denominator)


def _plain(name: str, a: Ratio, b: Ratio) -> Difference:
    """A comparison before any test."""
    added = 1 if name.startswith(ACCEPT_LENGTH) else 0
    values = [None if r.value is None else r.value + added for r in (a, b)]
    difference = None if values[0] is None or values[1] is None else values[1] - values[0]
    few = f"fewer than {policy.MIN_CLUSTERS} prompts or {policy.MIN_OBSERVATIONS} rounds in one of the runs"
    why = few if difference is not None else "not observed in one of the runs"
    group = _split_of(name) if name.startswith(SPLITS) else ""
    seen = int(a.total), int(b.total)
    return Difference(name, values[0], values[1], difference, observations=seen, group=group, why=why)


def _weights(names: Sequence[str]) -> dict[str, float]:
    """The share of alpha of each comparison."""
    others = [n for n in names if n != ACCEPT_LENGTH]
    if len(others) == len(names):
        return {n: 1 / len(names) for n in names}
    own = policy.ACCEPT_LENGTH_WEIGHT if others else 1.0
    return {n: own if n == ACCEPT_LENGTH else (1 - own) / len(others) for n in names}


def _judged(plain: Difference, tested: Tested, corrected: float, alpha: float) -> Difference:
    low, high = tested.interval()
    significant = corrected <= policy.ALPHA
    margin = policy.SAME_LENGTH if plain.name.startswith(ACCEPT_LENGTH) else policy.SAME_SHARE
    state: State = "changed" if significant else "same" if -margin < low and high < margin else "undetectable"
    times = tested.times_more(alpha)
    needed = None if significant or times is None else _rounds(times, plain.observations)
    detectable = tested.detectable(alpha)
    why = ""
    if state == "undetectable":
        more = f"about {needed:,} rounds in each run would show one of the size seen" if needed else (
            "no difference was seen")  # fmt: skip
        least = f"these runs show differences from {detectable:.2g}" if detectable < _range(plain) else (
            "these runs are too few prompts to show any difference")  # fmt: skip
        why = f"{least}; {more}"
    return replace(
        plain, ci_low=low, ci_high=high, significant=significant, p=tested.p, p_corrected=corrected, state=state,
        detectable=detectable, rounds_needed=needed, why=why,
    )  # fmt: skip


def _range(plain: Difference) -> float:
    """About the largest difference that there can be."""
    return max(plain.a or 0.0, plain.b or 0.0, 1.0)


def _rounds(times: float, observations: tuple[int, int]) -> int | None:
    needed = math.ceil(times * sum(observations) / 2)
    return needed if needed <= policy.MAX_ROUNDS_ADVISED else None


def _paired(measured: Measured, where: Sequence[int], shared: set[int]) -> bool:
    """Whether most rounds are of prompts that both runs were sent."""
    if not measured.rounds:
        return False
    rounds = measured.sums[ACCEPT_LENGTH][1]
    return float(rounds[[n in shared for n in where]].sum()) > 0.5 * float(rounds.sum())
