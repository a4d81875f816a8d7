"""What a disk can do to a recording: full, read-only, gone, out of descriptors, or standing still."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagletrace.record import backlog, disk, run_folder
from eagletrace.record import recorder as recorder_module
from eagletrace.record import writer as writer_module
from eagletrace.record.merge import EVERYTHING
from eagletrace.record.recorder import Recorder
from eagletrace.settings import Settings
from tests.record.packets import PROCESS, chain, rows, state

Make = Callable[..., Recorder]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Recorder] = []

    def call(folder: Path, **settings: Any) -> Recorder:
        known: dict[str, Any] = {"flush_s": 600} | settings
        recorder = Recorder(folder, Settings(**known), PROCESS, {"service.name": "test"})
        recorder.start()
        made.append(recorder)
        return recorder

    yield call
    for recorder in made:
        recorder.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "eagletrace-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def launches(recorder: Recorder, first: int, count: int = 3) -> None:
    for number in range(first, first + count):
        recorder.launch(chain([101], [101, 102], number=number))
        recorder.event("control", number=number)


def happened(run: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(run, "events"):
        found.setdefault(row["kind"], []).append(json.loads(row["detail"]))
    return found


def check_outage(run: Path, text: str, warnings: list[str]) -> None:
    """Launches 1 to 3 and 7 to 9 are whole, 4 to 6 came when the disk failed: their facts and counts alone are here."""
    assert len(warnings) == 1 and text in warnings[0] and "serving goes on" in warnings[0]
    events = happened(run)
    assert [e["number"] for e in events["control"]] == list(range(1, 10))
    (stopped,), (resumed,) = events["recording_stopped"], events["recording_resumed"]
    assert text in stopped["reason"]
    assert resumed["rows_lost"] == {"rounds": 3, "drafts": 3, "verifies": 6, "spans": 9}
    assert {e["table"]: e["rows"] for e in events["rows_dropped"]} == resumed["rows_lost"]
    totals = rows(run, "totals")
    assert sum(t["rounds"] for t in totals) == 9
    lost = sum((Counter(json.loads(t["dropped_rows_by_reason"] or "{}")) for t in totals), Counter[str]())
    assert lost == {f"write failed: {table}": count for table, count in resumed["rows_lost"].items()}
    assert sorted(r["round"] for r in rows(run, "rounds")) == [1, 2, 3, 7, 8, 9]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_full_disk(make: Make, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = make(small_disk / "run")
    launches(recorder, 1)
    assert recorder.flush(30)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    for number in (4, 5, 6):
        launches(recorder, number, 1)
        assert recorder.flush(30)
    filler.unlink()
    launches_after = 7
    assert recorder.flush(30)
    launches(recorder, launches_after)
    assert recorder.flush(30)
    check_outage(small_disk / "run", "No space left on device", said(caplog))
    assert not list((small_disk / "run").rglob("*.tmp"))


def test_a_disk_that_becomes_read_only(make: Make, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = make(small_disk / "run")
    launches(recorder, 1)
    assert recorder.flush(30)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    launches(recorder, 4)
    assert recorder.flush(30)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert recorder.flush(30)
    launches(recorder, 7)
    assert recorder.flush(30)
    check_outage(small_disk / "run", "Read-only file system", said(caplog))


def test_between_two_tries_nothing_is_written(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[Path] = []

    def fails(path: Path, data: Any) -> None:
        tries.append(path)
        raise OSError(5, "Input/output error")

    recorder = make(tmp_path / "run", flush_s=0.05)
    with monkeypatch.context() as broken:
        broken.setattr(writer_module, "write_private", fails)
        for number in range(20):
            launches(recorder, number, 1)
            time.sleep(0.05)
    assert 0 < len(tries) < 20  # each try fails once, and the next is a second later, then two
    assert len(said(caplog)) == 1


def test_a_folder_deleted_while_recording(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(dir=tmp_path, run_id="run", flush_s=600)
    folder = run_folder.create(settings, {"sglang": "0.5.23"}, PROCESS)
    before = json.loads((folder / "run.json").read_text())
    recorder = make(folder)
    recorder.fact("d2t.all_zero", False, None, "file")
    launches(recorder, 1)
    assert recorder.flush(30)
    shutil.rmtree(folder)
    launches(recorder, 4)
    assert recorder.flush(30) and recorder.flush(30)
    assert json.loads((folder / "run.json").read_text()) == before
    assert (folder / "process-node-7.json").exists()
    assert [r["round"] for r in rows(folder, "rounds")] == [4, 5, 6]
    assert [r["key"] for r in rows(folder, "contract")] == ["d2t.all_zero"]  # load-time facts are written again
    events = happened(folder)
    assert len(events["recording_stopped"]) == len(events["recording_resumed"]) == 1
    assert "deleted" in events["recording_stopped"][0]["reason"] and len(said(caplog)) == 1
    recorder.stop(30)
    recorder.writer.merge(EVERYTHING)
    assert len(list((folder / "rounds").iterdir())) == 1
    assert [r["round"] for r in rows(folder, "rounds")] == [4, 5, 6]


CHILD = """
import json, logging, os, resource, sys
from pathlib import Path
from eagletrace.record.recorder import Recorder
from eagletrace.settings import Settings
from tests.record.packets import PROCESS, chain
logging.basicConfig(stream=sys.stderr, format="%(message)s")
recorder = Recorder(Path(sys.argv[1]), Settings(flush_s=600), PROCESS, {"service.name": "test"})
recorder.start()
def launches(first):
    for number in range(first, first + 3):
        recorder.launch(chain([101], [101, 102], number=number))
        recorder.event("control", number=number)
"""


def run_child(folder: Path, code: str) -> str:
    """Run a recorder in a process of its own; returns what it warned of."""
    script = CHILD + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_no_file_descriptors_left(tmp_path: Path) -> None:
    warned = run_child(
        tmp_path,
        """
        launches(1); assert recorder.flush(30)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        launches(4); assert recorder.flush(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert recorder.flush(30)
        launches(7); assert recorder.flush(30)
        """,
    )
    check_outage(tmp_path, "Too many open files", warned.strip().splitlines())


def test_a_disk_that_hangs(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "STALL_S", 0.2)
    monkeypatch.setattr(recorder_module, "QUEUE_LIMIT", 50)
    released, write = threading.Event(), writer_module.write_private
    hung = threading.Event()

    def hangs(path: Path, data: Any) -> None:
        hung.set()
        released.wait(60)
        write(path, data)

    recorder = make(tmp_path, flush_s=0.05)
    monkeypatch.setattr(writer_module, "write_private", hangs)
    recorder.event("control", number=-1)
    assert hung.wait(30)
    for number in range(500):
        recorder.event("control", number=number)  # returns at once
    time.sleep(0.3)
    released.set()
    deadline = time.monotonic() + 30
    while not {"recording_resumed", "rows_dropped"} <= set(happened(tmp_path)) and time.monotonic() < deadline:
        recorder.flush(1)
    events = happened(tmp_path)
    assert [e["number"] for e in events["control"]] == list(range(-1, 50))
    assert any("the disk took" in e["reason"] for e in events["recording_stopped"]) and len(said(caplog)) == 1
    assert {"table": "events", "rows": 450, "reason": "queue full"} in events["rows_dropped"]


def test_a_disk_that_hangs_does_not_hold_an_exit_up(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recorder_module.EXIT_S <= 2.0
    hung, released = threading.Event(), threading.Event()

    def hangs(path: Path, data: Any) -> None:
        hung.set()
        released.wait(60)

    monkeypatch.setattr(writer_module, "write_private", hangs)
    recorder = make(tmp_path, flush_s=0.05)
    recorder.event("control", number=1)
    assert hung.wait(30)
    recorder.stop()  # returns though the disk never does
    released.set()


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    run_child(
        tmp_path,
        """
        launches(1)
        pid = os.fork()
        if pid == 0:
            recorder.event("control", number=99)
            launches(50)
            assert not recorder.flush(5)
            sys.exit(0)  # with the exit handlers that it has inherited
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        launches(4)
        """,
    )
    assert [e["number"] for e in happened(tmp_path)["control"]] == [1, 2, 3, 4, 5, 6]
    assert sorted(r["round"] for r in rows(tmp_path, "rounds")) == [1, 2, 3, 4, 5, 6]


def test_the_recorder_imports_no_pandas(tmp_path: Path) -> None:
    """It would take the interpreter for half a second and 40 MB for ever."""
    run_child(
        tmp_path,
        """
        from eagletrace.record.merge import EVERYTHING
        from tests.record.packets import state
        for number in range(9):
            launches(number)
            recorder.request(state(number))
            recorder.fact("d2t.all_zero", False, None, "file")
            recorder.row("params", name="x", shape=[1, 2], checkpoint_keys=["a", "b"], rms=0.5)
            assert recorder.flush(30)
        recorder.stop(30)
        recorder.writer.merge(EVERYTHING)
        assert "pandas" not in sys.modules
        """,
    )
    (shape,) = {tuple(r["shape"]) for r in rows(tmp_path, "params")}
    assert shape == (1, 2) and rows(tmp_path, "params")[0]["checkpoint_keys"] == ["a", "b"]


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_only_the_servers_user_may_read_a_run(make: Make, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = run_folder.create(Settings(dir=tmp_path, run_id=f"run-{umask}"), {}, PROCESS)
        modes: set[int] = set()
        rename = Path.rename

        def watched(self: Path, target: Path) -> Path:
            modes.add(stat.S_IMODE(self.stat().st_mode))
            return rename(self, target)

        recorder = make(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "rename", watched)
            for number in range(9):
                launches(recorder, number)
                recorder.request(state())
                assert recorder.flush(30)
            recorder.stop(30)
            recorder.writer.merge(EVERYTHING)
        assert modes == {0o600}  # temporaries too
        for path in folder.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_folder_of_an_older_release_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o755)
    run_folder.create(Settings(dir=tmp_path, run_id="run"), {}, PROCESS)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_facts_that_wait_are_bounded_and_totals_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MAX_BYTES", 10 * backlog.ROW_BYTES)
    waiting = backlog.Backlog()
    for number in range(25):
        waiting.add("events", [{"time_unix_nano": number}])
    assert len(waiting.rows["events"]) == 10 and waiting.lost == {"events": 15}
    for number in range(1, 5000):
        waiting.add("totals", [{
            "time_unix_nano": number, "rounds": 1, "drafted": 3, "accepted": 1, "reached_by_depth": [1, 1],
            "accepted_by_depth": [1] if number % 2 else [1, 0, 1], "correct_drafts_histogram": [0, 1],
            "dropped_rows_by_reason": json.dumps({"queue full: events": 1}) if number % 2 else None,
        }])  # fmt: skip
        assert len(waiting.rows["totals"]) <= backlog.TOTALS_KEPT
    total = backlog.summed(waiting.rows["totals"])
    assert (total["rounds"], total["drafted"], total["time_unix_nano"]) == (4999, 14997, 4999)
    assert total["accepted_by_depth"] == [4999, 0, 2499] and total["correct_drafts_histogram"] == [0, 4999]
    assert json.loads(total["dropped_rows_by_reason"]) == {"queue full: events": 2500}
    waiting.written("events")
    waiting.add("events", [{}])
    assert len(waiting.rows["events"]) == 1
