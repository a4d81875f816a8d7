"""The numbers of the charts: against the views that count the same another way, and against counting by hand."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagletrace.cli.demo import DEMO_RUN
from eagletrace.diagnose.result import DepthRate
from eagletrace.report.html import gather
from eagletrace.report.html.figures import MAX_MARKS, clock, compared, figures, numbered, split
from eagletrace.report.html.gather import RunReport, Timeline, round_up
from eagletrace.store import open_run
from tests.report.html_runs import tree_run
from tests.store.runs import small_run, writer

VIEWS = {"batch_size": "batch_size", "position": "position_from", "cached": "cached", "request_round": "request_round"}


@pytest.fixture(scope="module")
def demo() -> RunReport:
    with open_run(DEMO_RUN) as run:
        return gather(run)


@pytest.mark.parametrize("name", VIEWS)
def test_splits_are_those_of_the_views(name: str, demo: RunReport) -> None:
    column = VIEWS[name]
    with open_run(DEMO_RUN) as run:
        rows = run.rows(
            f"SELECT {column}::BIGINT AS value, rounds, accept_length, first_rate FROM acceptance_by_{name}"
        )
    counted = {row["value"]: row for row in rows if row["value"] is not None}
    found = {row["value"]: row for row in demo.splits if row["split"] == name}
    assert set(found) == set(counted) and len(found) > (0 if name == "cached" else 1)
    for value, row in found.items():
        assert row["rounds"] == counted[value]["rounds"]
        assert row["accept_length"] == pytest.approx(counted[value]["accept_length"])
        assert row["first_rate"] == pytest.approx(counted[value]["first_rate"])


def test_two_runs_stand_side_by_side(demo: RunReport) -> None:
    """Depths of one run alone have one bar; a run without rates gives no chart."""
    a = demo.diagnosis.acceptance
    b = replace(a, by_depth=(DepthRate(1, 200, 50), DepthRate(2, 50, 25)))
    (figure,) = compared(a, b).values()
    bars = {(bar["run"], bar["depth"]): bar for bar in figure.data["pairs"]}
    assert set(bars) == {*(("A", d.depth) for d in a.by_depth if d.rate is not None), ("B", 1), ("B", 2)}
    assert bars["B", 2]["rate"] == 0.5 and bars["B", 2]["low"] < 0.5 < bars["B", 2]["high"]
    assert [row[0] for row in figure.rows] == sorted({str(depth) for _, depth in bars})
    assert figure.rows[0][3] == "25.0%" and figure.rows[-1][3:] == ("-", "-")
    assert compared(a, replace(a, by_depth=())) == {}


def test_the_interval_counts_requests(demo: RunReport) -> None:
    """The standard error of a ratio of sums over requests, computed here from the rounds one by one."""
    with open_run(DEMO_RUN) as run:
        rounds = run.execute("SELECT request_seq, accepted, batch_size FROM rounds WHERE accepted IS NOT NULL")
    largest = max(size for *_, size in rounds)
    groups: dict[int, list[int]] = defaultdict(list)
    for seq, accepted, size in rounds:
        if size == largest:
            groups[seq].append(accepted)
    m, total = len(groups), sum(map(len, groups.values()))
    rate = sum(map(sum, groups.values())) / total
    residues = sum((sum(g) - rate * len(g)) ** 2 for g in groups.values())
    error = math.sqrt(m / (m - 1) * residues) / total
    (row,) = [r for r in demo.splits if r["split"] == "batch_size" and r["value"] == largest]
    assert row["requests"] == m and row["stderr"] == pytest.approx(error) and error > 0


def test_no_interval_from_few_requests(tmp_path: Path) -> None:
    with open_run(small_run(tmp_path / "run")) as run:
        report = gather(run)
    assert {row["stderr"] for row in report.splits} == {None}
    assert figures(report)["by-request-round"].data["values"][0]["low"] is None
    few: dict[str, Any] = {"split": "row", "rounds": 9, "accept_length": 2.0, "first_rate": 0.5, "stderr": 0.1}
    rows = [{**few, "value": 0, "requests": 4}, {**few, "value": 1, "requests": 5}]
    made = split(rows, "row", "by row", "row", "rows", 2.0)
    assert made is not None
    assert [v["low"] for v in made.data["values"]] == [None, pytest.approx(2 - 0.196)]


def test_the_timeline_counts_every_round_once(demo: RunReport) -> None:
    acceptance = demo.diagnosis.acceptance
    assert sum(step["rounds"] for step in demo.timeline.steps) == acceptance.rounds
    accepted = sum((step["accept_length"] - 1) * step["rounds"] for step in demo.timeline.steps)
    assert accepted == pytest.approx(acceptance.accepted)


def test_steps_and_events_stand_where_they_happened(tmp_path: Path) -> None:
    """Rounds at 1, 2 and 3 s with 2, 0 and 3 correct drafts; two updates of weights at 2.4 s, one event long before."""
    path = small_run(tmp_path / "run")
    kinds = ((2_400_000_000, "weights_changed"), (2_400_000_001, "weights_changed"), (-(10**12), "serving"))
    writer(path).write("events", [{"time_unix_nano": t, "kind": k, "detail": "{}"} for t, k in kinds])
    with open_run(path) as run:
        report = gather(run)
    assert [(s["time"], s["width"], s["accept_length"]) for s in report.timeline.steps] == [
        (10**9, 2 * 10**8, 3.0), (2 * 10**9, 2 * 10**8, 1.0), (3 * 10**9, 2 * 10**8, 4.0)]  # fmt: skip
    figure = figures(report)["timeline"]
    assert [s["part"] for s in figure.data["steps"]] == [0, 1, 2], "no line is drawn where there were no rounds"
    assert [(m["t"], m["n"]) for m in figure.data["marks"]] == [(2_400.0, "1")]
    assert figure.data["marks"][0]["tip"] == "1: weights_changed (2 times)"
    assert len(report.events) == 3


def test_frequent_events_give_way_to_rare_ones() -> None:
    marks: list[dict[str, Any]] = [{"time": n, "kind": "retraction", "times": 3} for n in range(100)]
    shown = numbered(Timeline([], [*marks, {"time": 50, "kind": "weights_changed", "times": 1}]))
    assert len(shown) == MAX_MARKS and "weights_changed" in {m["kind"] for m in shown}
    assert [m["time"] for m in shown] == sorted(m["time"] for m in shown)


@pytest.mark.parametrize("make", ["chain", "tree"])
def test_ranks_are_those_of_the_view(make: str, tmp_path: Path) -> None:
    path = tree_run(tmp_path / "run") if make == "tree" else DEMO_RUN
    with open_run(path) as run:
        report = gather(run)
        rows = run.rows("FROM rank_histogram")
    counted: dict[tuple[int, int | None], int] = defaultdict(int)
    for row in rows:
        rank = row["rank"]
        first = max((c for c in (1, 2, 3, 4, 11, 101, 1001) if rank is not None and c <= rank), default=None)
        counted[row["depth"], 0 if row["in_draft_vocab"] is False else first] += row["positions"]
    assert {(r["depth"], r["class"]): r["positions"] for r in report.ranks} == dict(counted)


def test_shares_of_ranks_add_up(demo: RunReport) -> None:
    parts = figures(demo)["ranks"].data["parts"]
    for depth in {p["depth"] for p in parts}:
        assert sum(p["share"] for p in parts if p["depth"] == depth) == pytest.approx(1)


@pytest.mark.parametrize(("length", "rounded"), [(1, 1), (3, 5), (5, 5), (6, 10), (123, 200), (501, 1000), (999, 1000)])
def test_steps_have_round_lengths(length: int, rounded: int) -> None:
    assert round_up(length) == rounded


def test_times_that_no_calendar_has() -> None:
    assert clock(1_700_000_000_123_456_789) == "2023-11-14 22:13:20.123"
    assert clock(-(1 << 63)) == str(-(1 << 63)) or clock(-(1 << 63)).startswith("1677-09-21")
    assert clock((1 << 63) - 1).startswith("2262-04-11")
