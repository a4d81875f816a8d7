"""Following a run that is written, merged and taken over: every row once, none lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import eagletrace
from eagletrace.store import follow
from eagletrace.store.follow import TableFollower
from eagletrace.store.live import LiveRun
from tests.cli.commands import environ
from tests.store.runs import make_folder, request, writer

ROOT = Path(__file__).resolve().parents[2]


def numbers(follower: TableFollower) -> list[int]:
    return [row["rounds"] for table in follower.poll() for row in table.to_pylist()]


def total(number: int) -> dict[str, Any]:
    return {"time_unix_nano": number, "rounds": number}


def test_a_file_that_vanishes_while_it_is_read_costs_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    follower = TableFollower(path, "totals", ("rounds",))
    for number in range(1, 9):
        w.write("totals", [total(number)])
    with_sources = sorted(file.name for file in (path / "totals").iterdir())
    w.merge()
    w.write("totals", [total(9)])
    listings = iter([[*with_sources[4:], "node-7-00000008-00000008.parquet"]])
    real = follow.stable_listing

    def stale_first(folder: int) -> list[str]:
        return next(listings, None) or real(folder)

    monkeypatch.setattr(follow, "stable_listing", stale_first)
    assert sorted(numbers(follower) + numbers(follower)) == list(range(1, 10))


def test_a_merged_file_that_holds_rows_already_read_gives_the_others(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    follower = TableFollower(path, "totals", ("rounds",))
    for number in range(1, 6):
        w.write("totals", [total(number)])
    assert numbers(follower) == [1, 2, 3, 4, 5]
    for number in range(6, 9):
        w.write("totals", [total(number)])
    assert w.merge() == 7
    assert numbers(follower) == [6, 7, 8] and numbers(follower) == []


def test_old_row_groups_are_not_read(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    for number in (10, 20):
        w.write("totals", [total(number)])
    follower = TableFollower(path, "totals", ("rounds",))
    assert [row["rounds"] for table in follower.poll(since=15) for row in table.to_pylist()] == [20]


def test_damaged_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    writer(path).write("totals", [total(4)])
    (path / "totals" / "node-7-00000001-00000001.parquet").write_bytes(b"PAR1 no PAR1")
    (path / "totals" / "x.parquet").symlink_to("/etc/passwd")
    follower = TableFollower(path, "totals", ("rounds", "accepted"))
    assert numbers(follower) == [4] and follower.skipped == 2 and numbers(follower) == []


def test_columns_that_an_older_run_lacks_are_null(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = make_folder(tmp_path / "run")
    (path / "totals").mkdir()
    table = pa.table({"host": ["a"], "pid": [1], "rounds": pa.array([3], pa.int64())})
    pq.write_table(table, path / "totals" / "a-1-00000000-00000000.parquet")
    (rows,) = TableFollower(path, "totals", ("rounds", "accepted")).poll()
    assert rows.to_pylist() == [
        {"host": "a", "pid": 1, "tp_rank": None, "time_unix_nano": None, "rounds": 3, "accepted": None}
    ]


def test_requests_that_run_and_end(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    live = LiveRun(path)
    w.write("requests", [request(1), request(2), request(3, request_kind="health")])
    live.poll()
    assert len(live.running) == 2 and not live.finished
    end = {"time_unix_nano": 5, "end_time_unix_nano": 4, "finish_reason": "stop"}
    w.write("requests", [request(2, **end), request(4, **end)])
    w.write("requests", [request(2, **end)])
    live.poll()
    assert len(live.running) == 1 and live.finished == {"stop": 2}


@pytest.mark.slow
def test_what_a_live_writer_writes_and_merges_is_counted_exactly(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "tests.report.live_writer", str(tmp_path), "run", "200"]
    process = subprocess.Popen(line, env=environ(), cwd=ROOT)
    path = tmp_path / "run"
    try:
        until = time.monotonic() + 30
        while not (path / "totals").is_dir():
            assert time.monotonic() < until
            time.sleep(0.05)
        live = LiveRun(path)
        merged, polls, until = False, 0, time.monotonic() + 12
        while time.monotonic() < until:
            live.poll()
            assert live.state == "live"
            polls += 1
            names = os.listdir(path / "totals")  # noqa: PTH208
            merged = merged or any(name.split("-")[-2:] != [p := name.split("-")[-1], p] for name in names)
    finally:
        process.terminate()
        process.wait(20)
    live.poll()
    assert live.state == "ended" and merged and polls > 100
    with eagletrace.open_run(path) as run:
        ((rounds, accepted),) = run.execute("SELECT sum(rounds), sum(accepted) FROM totals")
        ((spans,),) = run.execute("SELECT count(*) FROM spans WHERE name IN ('eagle.draft', 'eagle.verify')")
    assert (live.counts.rounds, live.counts.accepted) == (rounds, accepted) and rounds > 200
    assert sum(len(durations) for _, _, durations in live._spans) == spans  # pyright: ignore[reportPrivateUsage]
