"""What a run did, as ratios of sums by prompt: the material of every comparison of behaviour."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eagletrace.diff import policy
from eagletrace.store import Run
from eagletrace.store.sqlfile import SqlFile, load_folder

Values = npt.NDArray[Any]
Sums = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

ACCEPT_LENGTH = "accept_length"
RANKS = {"rank.1": "rank_1", "rank.2_to_10": "rank_10", "rank.11_to_100": "rank_100", "rank.over_100": "rank_beyond"}
_BOOLS = ("cached", "first_round", "graph", "last_row", "image", "grammar", "sampled")


@dataclass(frozen=True)
class Measured:
    """Ratios of one run. `prompts[c]` names cluster c: a prompt's hash, or `#...` where it is not known.

    `sums` has numerator and denominator by cluster, [clusters] each, of every measure; those of the accept length count
    correct drafts per round, so that 1 is still to be added.
    """

    prompts: list[str]
    sums: dict[str, Sums] = field(default_factory=dict[str, Sums])

    @property
    def rounds(self) -> int:
        """Counted rounds of user requests."""
        return int(self.sums[ACCEPT_LENGTH][1].sum()) if ACCEPT_LENGTH in self.sums else 0

    @property
    def user_prompts(self) -> int:
        """Prompts of user requests that have rounds."""
        return int(np.count_nonzero(self.sums[ACCEPT_LENGTH][1])) if ACCEPT_LENGTH in self.sums else 0


def queries() -> Mapping[str, SqlFile]:
    """The files of `queries/diff`."""
    return load_folder("diff")


def measure(run: Run) -> Measured:
    """Count a run: two scans, one of rounds and one of verdicts. Leaves the temporary table `diff_requests`."""
    files = queries()
    run.execute(f"CREATE OR REPLACE TEMP TABLE diff_requests AS {files['requests'].sql}")
    named = run.execute("SELECT DISTINCT cluster, prompt FROM diff_requests ORDER BY cluster")
    prompts = [str(prompt) for _, prompt in named]
    rounds = _columns(run, files["rounds"].sql, {"rows": policy.ROWS_SHOWN_APART})
    measured = Measured(prompts)
    if not len(rounds["cluster"]):
        return measured
    nodes = _columns(run, files["chains"].sql)
    if _true(nodes["branch"]).any():
        nodes = _columns(run, files["trees"].sql)
    user = rounds["kind"] == "user"
    _accept_lengths(measured, rounds, user)
    _depths(measured, nodes)
    _ranks(measured, nodes)
    for name, parts in _splits(rounds):
        _split(measured, name, parts, rounds, user if name != "kind" else ~user)
    return measured


def _columns(run: Run, sql: str, params: Mapping[str, Any] | None = None) -> dict[str, Values]:
    """The result of a query as numpy columns; NULL of numbers as NaN, of others as None."""
    batches = list(run.batches(sql, params))
    if not batches:
        return {name: np.empty(0) for name in ("cluster", "branch", "depth")}
    table = pa.Table.from_batches(batches)
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _true(values: Values) -> npt.NDArray[np.bool_]:
    """Where a column of booleans is true; NULL is not."""
    return values == True  # noqa: E712 - a column that holds NULL is one of objects


def _by_cluster(measured: Measured, cluster: Values, values: Values) -> npt.NDArray[np.float64]:
    weights = np.nan_to_num(values.astype(np.float64))
    return np.bincount(cluster, weights, minlength=len(measured.prompts)).astype(np.float64)


def _accept_lengths(measured: Measured, rounds: Mapping[str, Values], where: Values) -> None:
    cluster = rounds["cluster"][where]
    measured.sums[ACCEPT_LENGTH] = (
        _by_cluster(measured, cluster, rounds["accepted"][where]),
        _by_cluster(measured, cluster, rounds["rounds"][where]),
    )


def _depths(measured: Measured, nodes: Mapping[str, Values]) -> None:
    """Rates by depth and the histogram: a round has at least k correct drafts exactly when depth k was accepted."""
    rounds = measured.sums[ACCEPT_LENGTH][1]
    at_least = [rounds]
    for depth in range(1, int(nodes["depth"].max(initial=0)) + 1):
        where = nodes["depth"] == depth
        cluster = nodes["cluster"][where]
        accepted = _by_cluster(measured, cluster, nodes["accepted"][where])
        measured.sums[f"rate.depth_{depth}"] = accepted, _by_cluster(measured, cluster, nodes["reached"][where])
        measured.sums[f"unconditional_rate.depth_{depth}"] = accepted, rounds
        at_least.append(accepted)
    for correct, (these, more) in enumerate(zip(at_least, [*at_least[1:], np.zeros_like(rounds)], strict=True)):
        if len(at_least) > 1:
            measured.sums[f"correct_drafts.{correct}"] = these - more, rounds


def _ranks(measured: Measured, nodes: Mapping[str, Values]) -> None:
    if not len(nodes["depth"]):
        return
    known = _by_cluster(measured, nodes["cluster"], nodes["rank_known"])
    for name, column in RANKS.items():
        measured.sums[name] = _by_cluster(measured, nodes["cluster"], nodes[column]), known
    measured.sums["out_of_vocabulary"] = (
        _by_cluster(measured, nodes["cluster"], nodes["out_of_vocab"]),
        _by_cluster(measured, nodes["cluster"], nodes["vocab_known"]),
    )


def _splits(rounds: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    """Each split with the part of every row, a name; the empty name where it has none."""
    for name, column, word in (
        ("row", "row", _row_words),
        ("batch_size", "batch_step", _batch_words), ("position", "position_step", _position_words),
        ("time", "third", _third_words),
    ):  # fmt: skip
        yield name, _named(rounds[column], word)
    yield "kind", rounds["kind"]
    for name in _BOOLS:
        yes, known = _true(rounds[name]), rounds[name] != None  # noqa: E711 - a column of objects
        yield name, np.where(known, np.where(yes, "yes", "no"), "")


def _named(values: Values, word: Callable[[float], str]) -> Values:
    numbers = values.astype(np.float64)
    kinds = np.unique(numbers[~np.isnan(numbers)])
    names = np.full(len(numbers), "", dtype=object)
    for kind in kinds:
        names[numbers == kind] = word(float(kind))
    return names


def _row_words(row: float) -> str:
    return f"{row:.0f}" if row < policy.ROWS_SHOWN_APART else f"{row:.0f}_and_more"


def _third_words(third: float) -> str:
    return f"third_{third + 1:.0f}"


def _batch_words(step: float) -> str:
    low, high = (2 ** (int(step) - 1) + 1 if step else 1), 2 ** int(step)
    return str(high) if low == high else f"{low}_to_{high}"


def _position_words(step: float) -> str:
    low = 128 * 4 ** (int(step) - 1) if step else 0
    return f"{low}_to_{128 * 4 ** int(step) - 1}"


def _split(measured: Measured, name: str, parts: Values, rounds: Mapping[str, Values], where: Values) -> None:
    """Accept lengths of each part of a split."""
    for part in sorted(set(parts[where]) - {""}, key=_natural):
        chosen = where & (parts == part)
        cluster = rounds["cluster"][chosen]
        measured.sums[f"{ACCEPT_LENGTH}.{name}.{part}"] = (
            _by_cluster(measured, cluster, rounds["accepted"][chosen]),
            _by_cluster(measured, cluster, rounds["rounds"][chosen]),
        )


def _natural(name: str) -> tuple[int, str]:
    """Names in the order of the number that they begin or end with."""
    number = re.search(r"\d+", name)
    return int(number[0]) if number else 0, name
