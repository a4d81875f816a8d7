"""Own counts of a run: from verdicts where there are any, else from the totals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from eagletrace.diagnose.result import Acceptance, DepthRate
from eagletrace.store import Run
from eagletrace.store.sqlfile import load_folder

_QUERIES = load_folder("acceptance")

PER_REQUEST = (
    "the engine divides the completion tokens of finished requests (the prefill's first token included, cut at stop "
    "and length) by their verify rounds"
)
PER_ROUND = "the average of the engine's own number of each round, plus one"


def measure(run: Run) -> Acceptance:
    """Counts of user requests' counted rounds; those of the totals where verdicts were sampled or dropped.

    Leaves temporary tables `late_from`, `round_counts`, `round_kinds`, `round_splits`, `round_split_pairs`,
    `position_stats` and `first_draft_tokens` (the views' content) in the run's connection, so that the checks do not
    scan rounds and verdicts again.
    """
    run.execute(f"CREATE OR REPLACE TEMP TABLE node_counts AS {_QUERIES['nodes'].sql}")
    for view in ("late_from", "round_counts", "round_kinds", "round_splits", "round_split_pairs"):
        run.execute(f"CREATE OR REPLACE TEMP TABLE {view} AS SELECT * FROM main.{view}")
    rows = run.execute(_QUERIES["depths"].sql)
    if not rows:
        return _with_engine(run, _from_totals(run))
    tree = any(branch for *_, branch in rows)
    source = "main.position_stats" if tree else f"({_QUERIES['chain_positions'].sql})"
    run.execute(f"CREATE OR REPLACE TEMP TABLE position_stats AS SELECT * FROM {source}")
    tokens = _QUERIES["first_draft_tokens"].sql
    run.execute(f"CREATE OR REPLACE TEMP TABLE first_draft_tokens AS {tokens}")
    rounds = sum(nodes for depth, nodes, *_ in rows if depth == 0)
    drafts = [row for row in rows if row[0] > 0]
    # In a chain a round has one node at each depth, so that counts of nodes are counts of rounds.
    depths = _depths_of_trees(run) if tree else [(d, reached, accepted) for d, _, accepted, reached, _ in drafts]
    by_depth = tuple(DepthRate(depth, reached, accepted, rounds) for depth, reached, accepted in depths)
    drafted, accepted = (sum(row[column] for row in drafts) for column in (1, 2))
    measured = Acceptance(rounds, drafted, accepted, by_depth)
    totals = _from_totals(run) if _incomplete(run) else measured
    return _with_engine(run, totals if totals.rounds > measured.rounds else measured)


def _incomplete(run: Run) -> bool:
    """Whether verdicts were sampled or dropped; the totals are exact all the same."""
    settings: Any = run.info.raw.get("settings")
    sample = cast("dict[str, Any]", settings).get("sample", 1) if isinstance(settings, dict) else 1
    dropped = run.execute("FROM dropped_rows LIMIT 1")
    return (isinstance(sample, int | float) and sample < 1) or bool(dropped)


def _depths_of_trees(run: Run) -> list[tuple[int, int, int]]:
    rows = run.execute("SELECT depth, reached, accepted FROM acceptance_by_depth ORDER BY depth")
    return [(int(depth), int(reached), int(accepted)) for depth, reached, accepted in rows]


def _from_totals(run: Run) -> Acceptance:
    (row,) = run.execute("SELECT rounds, drafted, accepted FROM totals_acceptance")
    rounds, drafted, accepted = (int(value or 0) for value in row)
    depths = run.execute("SELECT depth, reached, accepted FROM totals_by_depth ORDER BY depth")
    by_depth = tuple(DepthRate(int(d), int(r), int(a), rounds) for d, r, a in depths)
    return Acceptance(rounds, drafted, accepted, by_depth, source="totals")


def _with_engine(run: Run, acceptance: Acceptance) -> Acceptance:
    ((per_request, per_round),) = run.execute(_QUERIES["engine_counts"].sql)
    if per_request is not None:
        return replace(acceptance, engine_reported_accept_length=float(per_request), engine_difference=PER_REQUEST)
    if per_round is not None:
        return replace(acceptance, engine_reported_accept_length=float(per_round), engine_difference=PER_ROUND)
    return acceptance
