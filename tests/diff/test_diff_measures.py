"""What a diff counts is what the views count: of chains, of trees, of the run that ships with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagletrace.cli.demo import DEMO_RUN
from eagletrace.diagnose import diagnose
from eagletrace.diff.measures import Measured, measure
from eagletrace.store import Run, open_run
from tests.store.runs import make_folder, request, small_run, writer

Row = dict[str, Any]


def tree_run(path: Path) -> Path:
    """Two rounds of a tree: at depth 1 two siblings, at depth 2 one node under each; accepted are 2 and 0 drafts."""
    make_folder(path)
    w = writer(path)
    nodes, rounds = list[Row](), list[Row]()
    for number, (right, expected) in enumerate([(2, 31), (0, 99)], 1):
        shapes = [(0, None, 0), (1, 0, 1), (2, 0, 1), (3, 1, 2), (4, 2, 2)]
        for node, parent, depth in shapes:
            accepted = right == 2 and node in (2, 4)
            nodes.append({
                "round": number, "request_seq": 1, "node": node, "parent_node": parent, "depth": depth,
                "position": 10 * number + depth, "draft_token": 30 + node, "target_token": 7,
                "expected_token": expected, "reached": depth == 1 or (accepted and depth == 2) or depth == 0,
                "accepted": accepted if node else None,
                "draft_rank_of_target_token": (2 if right else 40) if node else None,
                "target_token_in_draft_vocab": bool(right) if node else None,
            })  # fmt: skip
        rounds.append({
            "round": number, "request_round": number, "request_seq": 1, "request_id": "r", "row": 0, "batch_size": 1,
            "position": 10 * number, "cached_tokens": 0, "drafted": 4, "accepted": right, "committed": right + 1,
            "counted": True, "time_unix_nano": number,
        })  # fmt: skip
    w.write("rounds", rounds)
    w.write("verifies", nodes)
    w.write("requests", [request(prompt_hash="aa")])
    return path


def totals(measured: Measured, name: str) -> tuple[float, float]:
    numerator, denominator = measured.sums[name]
    return float(numerator.sum()), float(denominator.sum())


def agrees(run: Run, measured: Measured) -> None:
    for depth, reached, accepted in run.execute("SELECT depth, reached, accepted FROM acceptance_by_depth"):
        assert totals(measured, f"rate.depth_{depth}") == (accepted, reached)
    for correct, rounds in run.execute("SELECT correct_drafts, rounds FROM correct_drafts_histogram"):
        assert totals(measured, f"correct_drafts.{correct}")[0] == rounds
    outside = run.execute(
        "SELECT coalesce(sum(positions) FILTER (WHERE NOT in_draft_vocab), 0), coalesce(sum(positions), 0) "
        "FROM position_stats WHERE in_draft_vocab IS NOT NULL"
    )
    assert totals(measured, "out_of_vocabulary") == outside[0]
    ranks = dict(run.execute("SELECT rank_class, sum(positions) FROM position_stats GROUP BY ALL"))
    for name, rank in (("rank.1", 1), ("rank.2_to_10", 10), ("rank.11_to_100", 100), ("rank.over_100", 1000)):
        assert totals(measured, name)[0] == ranks.get(rank, 0)


@pytest.mark.parametrize("which", ["chain", "tree", "demo"])
def test_counts_are_those_of_the_views(tmp_path: Path, which: str) -> None:
    def demo(_: Path) -> Path:
        return DEMO_RUN

    make = {"chain": small_run, "tree": tree_run, "demo": demo}[which]
    with open_run(make(tmp_path / "run")) as run:
        measured = measure(run)
        agrees(run, measured)
        acceptance = diagnose(run).acceptance
        assert totals(measured, "accept_length") == (acceptance.accepted, acceptance.rounds)


def test_siblings_are_one_position(tmp_path: Path) -> None:
    with open_run(tree_run(tmp_path / "run")) as run:
        measured = measure(run)
    assert totals(measured, "rate.depth_1") == (1, 2) and totals(measured, "rate.depth_2") == (1, 1)
    assert totals(measured, "rank.2_to_10")[0] == 2 and totals(measured, "rank.11_to_100") == (1, 3)


def test_warm_up_requests_are_a_kind_of_their_own(tmp_path: Path) -> None:
    with open_run(small_run(tmp_path / "run")) as run:
        measured = measure(run)
    assert totals(measured, "accept_length")[1] == 3 and totals(measured, "accept_length.kind.warmup")[1] == 1


def test_every_round_is_in_one_part_of_each_split() -> None:
    with open_run(DEMO_RUN) as run:
        measured = measure(run)
    for split in ("position", "time", "first_round", "cached"):
        parts = [totals(measured, n)[1] for n in measured.sums if n.startswith(f"accept_length.{split}.")]
        assert sum(parts) == measured.rounds
    thirds = [totals(measured, f"accept_length.time.third_{n}")[1] for n in (1, 2, 3)]
    assert all(thirds)


def test_positions_stand_in_steps(tmp_path: Path) -> None:
    """A position of 128 is the first of the second step, 511 its last."""
    path = make_folder(tmp_path / "run")
    w = writer(path)
    w.write("rounds", [
        {"round": n, "request_seq": 1, "position": p, "drafted": 1, "accepted": 0, "batch_size": b, "row": 0,
         "time_unix_nano": n, "counted": True}
        for n, (p, b) in enumerate([(0, 1), (127, 2), (128, 3), (511, 4), (512, 5), (2048, 9)], 1)
    ])  # fmt: skip
    w.write("requests", [request()])
    with open_run(path) as run:
        measured = measure(run)
    rounds = {n.removeprefix("accept_length."): totals(measured, n)[1] for n in measured.sums}
    assert {n: c for n, c in rounds.items() if n.startswith("position")} == {
        "position.0_to_127": 2, "position.128_to_511": 2, "position.512_to_2047": 1, "position.2048_to_8191": 1,
    }  # fmt: skip
    assert {n: c for n, c in rounds.items() if n.startswith("batch")} == {
        "batch_size.1": 1, "batch_size.2": 1, "batch_size.3_to_4": 2, "batch_size.5_to_8": 1, "batch_size.9_to_16": 1,
    }  # fmt: skip
