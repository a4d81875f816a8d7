"""Counts of trees, of ghost and warm-up rounds, and where the counts come from."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic import Row, Synthetic

from eagletrace.diagnose.acceptance import measure
from eagletrace.record.writer import TraceWriter
from eagletrace.store import open_run


def node(round_: int, number: int, parent: int | None, depth: int, reached: bool, accepted: bool | None) -> Row:
    return {
        "round": round_, "request_seq": 1, "node": number, "parent_node": parent, "depth": depth, "reached": reached,
        "accepted": accepted, "draft_token": number, "expected_token": number if accepted else 99, "target_token": 5,
        "draft_rank_of_target_token": 1 if accepted else 20, "target_token_in_draft_vocab": True,
    }  # fmt: skip


def tree(round_: int, accepted: tuple[int, ...]) -> list[Row]:
    """Root 0; 1, 2 and 3 below it; 4 and 5 below 1, 6 below 2; 7 below 4."""
    parents = {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 2, 7: 4}
    depth = {0: 0, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2, 7: 3}
    path = {0, *accepted}
    rows = [node(round_, 0, None, 0, True, None)]
    return rows + [node(round_, n, p, depth[n], p in path, n in accepted) for n, p in parents.items()]


def write(folder: Path, trees: list[tuple[int, ...]], *, counted: tuple[bool, ...] = (), kind: str = "user") -> Path:
    run = Synthetic(rounds=0).write(folder)
    writer = TraceWriter(run, {"host": "node", "pid": 8, "tp_rank": 0})
    flags = counted or tuple(True for _ in trees)
    writer.write("rounds", [
        {"round": n, "request_seq": 1, "drafted": 7, "accepted": len(a), "counted": flags[n - 1]}
        for n, a in enumerate(trees, 1)
    ])  # fmt: skip
    writer.write("verifies", [row for n, a in enumerate(trees, 1) for row in tree(n, a)])
    writer.write("requests", [{"request_seq": 1, "request_kind": kind, "time_unix_nano": 1}])
    return run


def test_depths_of_a_tree_count_rounds_and_not_branches(tmp_path: Path) -> None:
    """Rounds accept 1-4-7, 2 (6 below it is wrong), 3 (nothing below it), and none."""
    with open_run(write(tmp_path, [(1, 4, 7), (2,), (3,), ()])) as run:
        found = measure(run)
        positions = run.connection.execute(
            "SELECT depth, sum(positions) FROM position_stats GROUP BY depth ORDER BY depth"
        ).fetchall()
    assert (found.rounds, found.drafted, found.accepted, found.accept_length) == (4, 28, 5, 2.25)
    assert [(d.depth, d.reached, d.accepted) for d in found.by_depth] == [(1, 4, 3), (2, 2, 1), (3, 1, 1)]
    assert found.histogram == (1, 2, 0, 1)
    assert positions == [(1, 4), (2, 2), (3, 1)]


def test_ghost_rounds_do_not_count(tmp_path: Path) -> None:
    with open_run(write(tmp_path, [(1,), (1,), ()], counted=(True, False, True))) as run:
        assert (measure(run).rounds, measure(run).accepted) == (2, 1)


def test_warm_up_requests_do_not_count(tmp_path: Path) -> None:
    with open_run(write(tmp_path, [(1,), (1,)], kind="warmup")) as run:
        assert measure(run).rounds == 0


def test_the_fast_way_for_chains_agrees_with_the_view(tmp_path: Path) -> None:
    with open_run(Synthetic(rounds=200).write(tmp_path)) as run:
        measure(run)
        query = "SELECT depth, accepted, in_draft_vocab, rank_class, rejected_equal, positions FROM {} ORDER BY ALL"
        fast = run.connection.execute(query.format("temp.position_stats")).fetchall()
        assert fast == run.connection.execute(query.format("memory.main.position_stats")).fetchall()
        view = run.connection.execute("SELECT reached, accepted FROM acceptance_by_depth ORDER BY depth").fetchall()
        assert [(d.reached, d.accepted) for d in measure(run).by_depth] == view


def test_totals_count_where_verdicts_were_sampled_or_dropped(tmp_path: Path) -> None:
    """Two rounds have verdicts, the totals know of fifty."""
    whole = write(tmp_path / "a", [(1,), ()])
    sampled = write(tmp_path / "b", [(1,), ()])
    dropped = write(tmp_path / "c", [(1,), ()])
    totals: Row = {"time_unix_nano": 1, "rounds": 50, "drafted": 350, "accepted": 20, "reached_by_depth": [50, 20],
                   "accepted_by_depth": [20, 0]}  # fmt: skip
    for folder in (whole, sampled, dropped):
        TraceWriter(folder, {"host": "node", "pid": 9, "tp_rank": 0}).write("totals", [totals])
    info = json.loads((sampled / "run.json").read_text())
    (sampled / "run.json").write_text(json.dumps({**info, "settings": {"sample": 0.04}}))
    TraceWriter(dropped, {"host": "node", "pid": 9, "tp_rank": 0}).write(
        "events", [{"time_unix_nano": 1, "kind": "rows_dropped", "detail": '{"table": "verifies", "rows": 9}'}]
    )
    for folder, rounds, source in ((whole, 2, "verifies"), (sampled, 50, "totals"), (dropped, 50, "totals")):
        with open_run(folder) as run:
            found = measure(run)
            assert (found.rounds, found.source) == (rounds, source)
