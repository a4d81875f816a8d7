"""Merging, taking over what dead processes left, the bound of a run, and repair."""

from __future__ import annotations

import fcntl
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagletrace.cli.main import main
from eagletrace.record import adopt, bound, merge, run_folder
from eagletrace.record.encoding import MANTISSA_BITS
from eagletrace.record.files import TraceFile, names_by_writer
from eagletrace.record.merge import EVERYTHING, Policy
from eagletrace.record.repair import BusyError, repair
from eagletrace.record.writer import TraceWriter
from eagletrace.settings import Settings
from tests.record.packets import PROCESS, rows

DEAD = 2**22 + 1  # no process has this id
DAY_FLUSHES = 108_000  # of one table, every 0.8 s


def writer(run: Path, pid: int = DEAD, **known: Any) -> TraceWriter:
    """A writer of this host, and its process file without a lock: of a process that is dead, or not, by its id."""
    return TraceWriter(run, {**PROCESS, "host": os.uname().nodename, "pid": pid}, **known)


def write(to: TraceWriter, count: int, table: str = "events", first: int = 0) -> None:
    column = {"events": "kind", "spans": "name"}[table]
    for number in range(first, first + count):
        to.write(table, [{column: f"{to.process['pid']}.{number}"}])


def names(run: Path, table: str = "events") -> list[str]:
    return sorted(p.name for p in (run / table).iterdir())


# -- how many files a run has ------------------------------------------------------------------------------------------


def files_of_a_day(policy: Policy, flush_bytes: int) -> tuple[int, float]:
    """The most files that one table of one process has at any time of a day, and how often each byte is rewritten."""
    files: list[TraceFile] = []
    most = rewritten = 0
    for number in range(DAY_FLUSHES):
        if files and files[0].bytes >= policy.large:
            files.pop(0)  # never touched again
        files.append(TraceFile(number, number, Path(), 0.0, flush_bytes))
        while group := policy.choose(files):
            first = files.index(group[0])
            assert files[first : first + len(group)] == group  # neighbours
            size = sum(f.bytes for f in group)
            rewritten += size
            files[first : first + len(group)] = [TraceFile(group[0].first, group[-1].last, Path(), 0.0, size)]
        most = max(most, sum(f.bytes < policy.large for f in files))
    return most, rewritten / (DAY_FLUSHES * flush_bytes)


LOADS = {"idle": (4, 0.5), "lab": (20, 8), "busy": (200, 20)}  # kilobytes a flush: of four tables, of six others


@pytest.mark.slow
@pytest.mark.parametrize(("load", "processes"), [("busy", 1), ("lab", 4), ("idle", 8)])
def test_a_run_of_24_hours_has_under_2000_files(load: str, processes: int) -> None:
    max_bytes = 2 << 30
    policy = Policy.of(max_bytes, processes)
    heavy, light = (files_of_a_day(policy, int(kilobytes * 1024))[0] for kilobytes in LOADS[load])
    unmergeable = max_bytes // policy.large  # as many as the bound of the run lets stand
    load_time = 4 * policy.fan_in
    assert processes * (4 * heavy + 6 * light + load_time) + unmergeable < 2000


@pytest.mark.slow
def test_where_flushes_are_large_each_row_is_rewritten_about_once() -> None:
    policy = Policy.of(2 << 30, 1)
    assert files_of_a_day(policy, 200 << 10)[1] <= 1.05
    assert files_of_a_day(policy, 10 << 10)[1] < 8


def test_the_policy_leaves_large_files_and_is_done_when_it_says_so() -> None:
    rng = np.random.default_rng(1)
    policy = Policy.of(2 << 30, 1)
    for _ in range(200):
        sizes = [int(s) for s in np.exp(rng.uniform(5, 17, rng.integers(2, 80)))]
        files = [TraceFile(n, n, Path(), 0.0, size) for n, size in enumerate(sizes)]
        for _ in range(len(files)):
            group = policy.choose(files)
            if not group:
                break
            assert len(group) > 1 and all(f.bytes < policy.large for f in group)
            assert sum(f.bytes for f in group) < 2 * policy.large
            first = files.index(group[0])
            merged = TraceFile(group[0].first, group[-1].last, Path(), 0.0, sum(f.bytes for f in group))
            files[first : first + len(group)] = [merged]
        assert not policy.choose(files)


# -- what merging does -------------------------------------------------------------------------------------------------


def fill(to: TraceWriter, files: int, rows_each: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(files):
        columns: dict[str, Any] = {
            name: rng.integers(1 << 40, size=rows_each)
            for name in ("round", "request_seq", "draft_token", "expected_token", "target_token")
        }
        to.write_columns("verifies", columns | {"node": np.full(rows_each, number)}, rows_each)


def test_a_merge_holds_about_one_row_group(tmp_path: Path) -> None:
    to = writer(tmp_path)
    fill(to, 40, 20_000)
    whole = sum(pq.read_table(f).nbytes for f in (tmp_path / "verifies").iterdir())
    assert whole > 10 * merge.ROW_GROUP_BYTES
    code = (
        "import sys; import pyarrow as pa; from pathlib import Path\n"
        "from tests.record.test_record_merge import writer, EVERYTHING\n"
        "to = writer(Path(sys.argv[1])); to.claim('verifies')\n"
        "print(to.merge(EVERYTHING), pa.default_memory_pool().max_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    merged, peak = map(int, done.stdout.split())
    assert merged == 39 and peak < 5 * merge.ROW_GROUP_BYTES
    (file,) = (tmp_path / "verifies").iterdir()
    groups = pq.read_metadata(file)
    assert groups.num_rows == 800_000 and groups.num_row_groups < 30
    assert groups.row_group(0).num_rows > 30_000


def test_a_merge_can_be_left_and_taken_up(tmp_path: Path) -> None:
    to = writer(tmp_path, DEAD)
    fill(to, 10, 20_000)
    steps = to.merge_steps(EVERYTHING)
    next(steps)
    assert any(name.endswith(".tmp") for name in names(tmp_path, "verifies"))
    fill(to, 1, 10)  # a flush in between
    for _ in steps:
        pass
    assert [pq.read_metadata(tmp_path / "verifies" / n).num_rows for n in names(tmp_path, "verifies")] == [200_010]
    fill(to, 10, 20_000)
    steps = to.merge_steps(EVERYTHING)
    next(steps)
    steps.close()  # and given up
    assert not any(name.endswith(".tmp") for name in names(tmp_path, "verifies"))
    assert len(rows(tmp_path, "verifies")) == 400_010


def test_a_source_given_up_for_space_meanwhile_stays_away(tmp_path: Path) -> None:
    to = writer(tmp_path)
    write(to, 10, "spans")
    steps = to.merge_steps(EVERYTHING)
    next(steps)
    assert to.enforce(0) == {"spans": 10}
    for _ in steps:
        pass
    assert names(tmp_path, "spans") == []


def test_a_file_that_cannot_be_read_is_left_where_it_is(tmp_path: Path) -> None:
    to = writer(tmp_path)
    write(to, 20)
    broken = tmp_path / "events" / names(tmp_path)[7]
    broken.write_bytes(b"PAR1 no more")
    assert to.merge(EVERYTHING) == 17
    assert broken.read_bytes() == b"PAR1 no more" and len(names(tmp_path)) == 3
    other = tmp_path / "events" / names(tmp_path)[0]
    pq.write_table(pa.table({"from_another_release": [1]}), other)
    write(to, 10, first=20)
    assert to.merge(EVERYTHING) == 10 and pq.read_table(other).num_rows == 1


FLOATS = [0.0, -0.0, -1.2345678, 3.4e-30, 1e30, -math.inf, math.inf, math.nan, None]


def test_values_survive_but_for_the_last_bits_of_probabilities(tmp_path: Path) -> None:
    to = writer(tmp_path)
    given = {
        "draft_logprob": FLOATS, "draft_entropy": FLOATS[::-1], "token": [2**62, -(2**62), None, *range(6)],
        "rope_position": [None, *range(8)], "node": [None] * 9, "round": list(range(9)), "request_seq": [1] * 9,
    }  # fmt: skip
    for _ in range(3):
        to.write("drafts", [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)])
    for _ in range(2):  # as written, and merged
        found = rows(tmp_path, "drafts")
        for name, values in given.items():
            for seen, value in zip((r[name] for r in found), values * 3, strict=True):
                if isinstance(value, float) and math.isfinite(value):
                    assert abs(seen - value) <= abs(value) * 2.0 ** -(MANTISSA_BITS + 1)
                else:
                    assert seen == value or (seen != seen and value != value), name
        assert to.merge(EVERYTHING) in (2, 0)


# -- what dead processes left ------------------------------------------------------------------------------------------


def test_files_of_dead_processes_are_taken_over(tmp_path: Path) -> None:
    dead = writer(tmp_path)
    for pid in range(DEAD, DEAD + 20):
        dead = writer(tmp_path, pid)
        write(dead, 3)
        write(dead, 9, "spans")
        dead.merge()
    (tmp_path / "events" / f"{dead.stem}-00000003-00000003.tmp").write_bytes(b"half")
    heir = writer(tmp_path, os.getpid())
    write(heir, 2)
    for _ in heir.upkeep():
        pass
    assert {n.split("-")[1] for table in ("events", "spans") for n in names(tmp_path, table)} == {str(os.getpid())}
    assert len(names(tmp_path)) < 10 and len(names(tmp_path, "spans")) < 22
    found = [r["kind"] for r in rows(tmp_path, "events")]
    assert sorted(found) == sorted([f"{p}.{n}" for p in range(DEAD, DEAD + 20) for n in range(3)]
                                   + [f"{os.getpid()}.{n}" for n in range(2)])  # fmt: skip
    assert {r["pid"] for r in rows(tmp_path, "events")} == {*range(DEAD, DEAD + 20), os.getpid()}
    assert len(rows(tmp_path, "spans")) == 180


def test_sources_of_a_merge_that_was_killed_before_unlinking_are_not_taken_twice(tmp_path: Path) -> None:
    dead = writer(tmp_path)
    write(dead, 10)
    sources = {p: p.read_bytes() for p in (tmp_path / "events").iterdir()}
    dead.merge()
    for path, content in sources.items():
        path.write_bytes(content)
    for _ in writer(tmp_path, os.getpid()).adopt():
        pass
    assert len(names(tmp_path)) == 1 and len(rows(tmp_path, "events")) == 10


def test_a_process_of_the_same_id_goes_on_after_its_predecessor(tmp_path: Path) -> None:
    write(writer(tmp_path), 5)
    (tmp_path / "events" / f"{writer(tmp_path).stem}-00000000-00000004.tmp").write_bytes(b"half a merge")
    again = writer(tmp_path)
    write(again, 5, first=5)
    assert again.merge() == 9
    assert [r["kind"] for r in rows(tmp_path, "events")] == [f"{DEAD}.{n}" for n in range(10)]
    assert len(names(tmp_path)) == 1


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A run with the files of a process that lives, as its lock says: id and host say nothing."""
    run = run_folder.create(Settings(dir=tmp_path, run_id="run"), {}, {**PROCESS, "host": "elsewhere", "pid": DEAD})
    other = TraceWriter(run, {**PROCESS, "host": "elsewhere", "pid": DEAD})
    write(other, 10)
    (run / "events" / f"{other.stem}-00000000-00000009.tmp").write_bytes(b"being merged")
    return run


def unlock(run: Path) -> None:
    """Let the process of `live` be dead."""
    from eagletrace.record.liveness import process_file, release

    release(process_file(run, f"elsewhere-{DEAD}"))


def test_files_of_a_live_process_are_left_alone(live: Path) -> None:
    before = names(live)
    for _ in writer(live, os.getpid()).upkeep():
        pass
    assert names(live) == before
    report = repair(live)
    assert names(live) == before and report["live_writers"] == [f"elsewhere-{DEAD}"]
    assert report["temporaries_removed"] == 0
    unlock(live)
    for _ in writer(live, os.getpid()).upkeep():
        pass
    assert names(live) != before and len(rows(live, "events")) == 10
    assert not list(live.rglob("*.tmp"))


def test_process_files_of_a_server_that_restarts_all_day_are_few(tmp_path: Path) -> None:
    for pid in range(DEAD, DEAD + adopt.PROCESS_FILES_KEPT + 30):
        text = json.dumps({"pid": pid, "host": "node", "lock": "flock"})
        (tmp_path / f"process-node-{pid}.json").write_text(text)
    for _ in writer(tmp_path, os.getpid()).adopt():
        pass
    assert len(list(tmp_path.glob("process-*.json"))) == adopt.PROCESS_FILES_KEPT
    lines = [json.loads(line) for line in (tmp_path / "processes.jsonl").read_text().splitlines()]
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("process-*.json")]
    assert sorted(p["pid"] for p in [*lines, *kept]) == list(range(DEAD, DEAD + adopt.PROCESS_FILES_KEPT + 30))


# -- the bound of a run ------------------------------------------------------------------------------------------------


def size(run: Path) -> int:
    return sum(p.stat().st_size for p in run.rglob("*") if p.is_file())


def test_all_processes_of_a_run_share_its_bound(tmp_path: Path) -> None:
    first, second = writer(tmp_path, DEAD), writer(tmp_path, DEAD + 1)
    write(first, 10, "spans")
    for path in (tmp_path / "spans").iterdir():
        os.utime(path, (1, 1))
    write(second, 10, "spans")
    write(second, 5)
    lost = second.enforce(size(tmp_path) - 1)
    assert lost == {"spans": 1} and len(names_by_writer(tmp_path / "spans")[first.stem]) == 9
    assert second.enforce(0) == {"spans": 19}
    assert len(rows(tmp_path, "events")) == 5
    assert first.merge(EVERYTHING) == 10 and names(tmp_path, "spans") == []  # it sees that they are gone


def test_a_run_stays_within_its_bound_while_it_is_written(tmp_path: Path) -> None:
    limit = 1 << 20
    to = writer(tmp_path, max_bytes=limit)
    rng = np.random.default_rng(0)
    written = 0
    for _ in range(120):
        to.write_columns("verifies", {"draft_token": rng.integers(1 << 62, size=3000)}, 3000)
        written += 3000
        to.write("totals", [{"rounds": 3000}])
        to.merge()
        assert size(tmp_path) <= limit
    assert to.lost["verifies"] == written - len(rows(tmp_path, "verifies")) > 0
    assert sum(r["rounds"] for r in rows(tmp_path, "totals")) == written
    assert size(tmp_path) > limit / 2


def test_files_that_a_merged_one_covers_are_not_counted_as_lost(tmp_path: Path) -> None:
    to = writer(tmp_path)
    write(to, 10, "spans")
    sources = {p: p.read_bytes() for p in (tmp_path / "spans").iterdir()}
    to.merge()
    for path, content in sources.items():
        path.write_bytes(content)
    assert bound.enforce(tmp_path, 0)[0] == {"spans": 10}
    assert names(tmp_path, "spans") == []


# -- repair ------------------------------------------------------------------------------------------------------------


def test_repair(live: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unlock(live)
    dead = writer(live)
    write(dead, 20)
    dead.write("totals", [{"rounds": 1, "dropped_rows_by_reason": json.dumps({"disk bound: spans": 7})}])
    (live / "events" / f"{dead.stem}-00000020-00000020.tmp").write_bytes(b"half")
    outside = tmp_path / "outside"
    outside.write_text("of somebody else")
    kept = ["notes.tmp", "mine.parquet", f"{dead.stem}-00000001-00000002.parquet.bak"]
    for name in kept:
        (live / "events" / name).write_text("not ours")
    (live / "events" / f"{dead.stem}-00000000-99999999.parquet").symlink_to(outside)
    assert main(["repair", str(live), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["temporaries_removed"] == 2 and report["rows_lost"] == {"disk bound: spans": 7}
    assert report["unreadable"] == [] and report["live_writers"] == []
    assert sorted(r["kind"] for r in rows_of(live)) == sorted([f"{DEAD}.{n}" for n in range(20)]
                                                             + [f"{DEAD}.{n}" for n in range(10)])  # fmt: skip
    assert [n for n in names(live) if n in kept] == sorted(kept)
    assert outside.read_text() == "of somebody else" and sum(n.endswith(".parquet") for n in names(live)) == 3
    assert main(["repair", str(live)]) == 0
    assert "7 disk bound: spans" in capsys.readouterr().out


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Rows of `events` in files that are ours."""
    found: list[dict[str, Any]] = []
    for path in sorted((run / "events").iterdir()):
        if path.suffix == ".parquet" and not path.is_symlink() and path.name != "mine.parquet":
            found += pq.read_table(path).to_pylist()
    return found


def test_repair_says_what_is_wrong(live: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["repair", str(tmp_path / "nothing")]) == 2
    descriptor = os.open(live, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(BusyError):
        repair(live)
    assert main(["repair", str(live)]) == 2
    os.close(descriptor)
    assert "try again" in capsys.readouterr().err
