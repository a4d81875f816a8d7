"""What breaks around the recorder of a serving engine never reaches the engine: its disk, its hooks, other tools.

Three servers: one untraced, whose answers the others must give; one that loses its disk in every way and then its
engine; one whose hooks break, each in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import shutil
import stat
import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagletrace.instrumentations.sglang.targets import TARGETS
from eagletrace.store import open_run
from tests.lab.contents import holding, windows
from tests.lab.served import FLUSH_S, PROMPTS, Served, Streams, check_run, engine_error, seconds_to_exit

pytestmark = [pytest.mark.lab, pytest.mark.slow]
SOAK = bool(os.environ.get("EAGLETRACE_SOAK"))
HANG_S = 30.0 if SOAK else 7.0
MARKER = "zq_marker_7731_kvj"
PROMPT_WITH_MARKER = f"# {MARKER}\n"
PATHS = [t.path for t in TARGETS if t.name != "scheduler.init"]
DISK_BYTES = 24 << 20
V2 = "sglang.srt.speculative.eagle_worker_v2"
VERIFY, DRAFT = f"{V2}:EAGLEWorkerV2.verify", f"{V2}:EagleDraftWorker.draft"
RESULTS = "sglang.srt.managers.scheduler:Scheduler.process_batch_result"


@dataclass
class Plain:
    """What the untraced server did."""

    outputs: list[list[int]]
    nonsense: dict[str, str]
    error: tuple[list[str], list[str]]
    seconds: float


def break_under_load(served: Served) -> tuple[Streams, float, float]:
    """The engine breaks while clients stream: the clients, when, and how long the server took to go."""
    with Streams(served.server) as streams:
        streams.wait_for(300)
        time.sleep(FLUSH_S + 1.5)
        died = time.time()
        seconds = seconds_to_exit(served, lambda: served.call("break_engine", wait=False))
    return streams, died, seconds


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """An untraced server that dies of an exception."""
    with Served(tmp_path_factory.mktemp("plain"), tracing=False) as served:
        outputs, nonsense = served.outputs(), served.call("call_with_nonsense", PATHS)
        seconds = break_under_load(served)[2]
    return Plain(outputs, nonsense, engine_error(served.log), seconds)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own where that is permitted, else a plain folder."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = mount(f"size={DISK_BYTES}", folder)
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(options: str, folder: Path) -> bool:
    """Mount a tmpfs, or mount it again with other options; False where that is not permitted."""
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode == 0


def needs_mount(folder: Path) -> None:
    if not folder.is_mount():
        pytest.skip("may not mount a file system here")


@pytest.fixture(scope="module")
def disk(plain: Plain, small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A traced server whose run lies on the small disk."""
    with Served(tmp_path_factory.mktemp("served"), runs=small_disk / "runs") as served:
        served.generate(PROMPT_WITH_MARKER, 48, "marker-0")
        yield served


def serves(served: Served, plain: Plain, name: str, seconds: float = 2.5) -> None:
    """The answers are those of the untraced server, for at least two flushes."""
    deadline, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < deadline:
        assert served.outputs(f"{name}-{number}") == plain.outputs
        number += 1


def warnings(served: Served, since: int) -> list[str]:
    """Our lines of the log."""
    return [line for line in served.log[since:].splitlines() if re.search(r"\beagletrace: ", line)]


def events(served: Served, since: float) -> set[str]:
    """Kinds of events since a time."""
    with open_run(served.run) as run:
        return {e["kind"] for e in run.rows(f"SELECT kind FROM events WHERE time_unix_nano > {int(since * 1e9)}")}


def survives(served: Served, plain: Plain, name: str, broken: contextlib.AbstractContextManager[Any]) -> None:
    """While the disk is broken the server serves; afterwards it records again, and says once what happened."""
    start, since = time.time(), len(served.log)
    with broken:
        serves(served, plain, name)
    said = warnings(served, since)
    told = served.wait_for(lambda: {"recording_stopped", "recording_resumed"} <= events(served, start), 60.0)
    assert told, "no event says that recording stopped and went on"
    assert served.outputs(f"after-{name}") == plain.outputs
    assert served.wait_for(lambda: served.recorded(f"after-{name}") == plain.outputs), "recording did not resume"
    assert len(said) <= 1, said  # one in ten minutes: the fault before this one may have had it
    assert "eagletrace: cannot write" in served.log


def test_a_hanging_disk(disk: Served, plain: Plain) -> None:
    start, since = time.time(), len(disk.log)
    disk.call("hang_disk", HANG_S)
    serves(disk, plain, "hang", HANG_S - 1.0)
    assert disk.wait_for(lambda: disk.recorded("hang-0") == plain.outputs), "what waited for the disk is lost"
    assert disk.wait_for(lambda: {"recording_stopped", "recording_resumed"} <= events(disk, start))
    assert len(warnings(disk, since)) == 1


@contextlib.contextmanager
def no_files_left(pid: int) -> Generator[None]:
    """The process may open no more files: the limit is the lowest number that is free."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = set[int](range(4096))
    for _ in range(50):  # not those of files that are being written at the moment
        used &= {int(p.name) for p in Path(f"/proc/{pid}/fd").iterdir()}
        time.sleep(0.02)
    free = next(number for number in itertools.count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files(disk: Served, plain: Plain) -> None:
    survives(disk, plain, "files", no_files_left(disk.scheduler))


@contextlib.contextmanager
def full(folder: Path) -> Generator[None]:
    """Not one more byte fits."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    try:
        yield
    finally:
        filler.unlink()


def test_a_full_disk(disk: Served, plain: Plain, small_disk: Path) -> None:
    needs_mount(small_disk)
    survives(disk, plain, "full", full(small_disk))


@contextlib.contextmanager
def read_only(folder: Path) -> Generator[None]:
    """A remount fails while a file is open for writing: try until none is."""
    while not mount("remount,ro", folder):
        time.sleep(0.01)
    try:
        yield
    finally:
        assert mount("remount,rw", folder)


def test_a_disk_that_becomes_read_only(disk: Served, plain: Plain, small_disk: Path) -> None:
    needs_mount(small_disk)
    survives(disk, plain, "read-only", read_only(small_disk))


def test_an_engine_that_dies_of_its_own_exception(disk: Served, plain: Plain) -> None:
    streams, died, seconds = break_under_load(disk)
    assert check_run(disk.run, streams.requests, died) > 0
    assert engine_error(disk.log) == plain.error
    assert "During handling" not in disk.log
    assert seconds <= plain.seconds + 2.0
    with open_run(disk.run) as run:
        (crash,) = run.rows("SELECT detail->>'message' AS message FROM events WHERE kind = 'engine_exception'")
    assert crash["message"] == "the engine broke"


# -- a redacted run of a server that is not as expected, whose hooks then break -----------------------


@pytest.fixture(scope="module")
def hooked(plain: Plain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A redacted run; one target moved, another changed its signature, a tool came first, and hooks break at load."""
    start = ("moved_target", "changed_signature", "other_tool_first", "break_load_hooks")
    with Served(tmp_path_factory.mktemp("hooked"), start=start, EAGLETRACE_REDACT="1") as served:
        yield served


def test_moved_and_changed_targets(hooked: Served, plain: Plain) -> None:
    assert hooked.outputs("moved") == plain.outputs

    def status(path: str) -> str:
        with open_run(hooked.run) as run:
            (row,) = run.rows(f"SELECT status, detail FROM hooks WHERE target = '{path}'")
        return row["status"]

    assert status(f"{V2}:EagleDraftWorker._draft_extend_for_decode") == "missing"
    changed = "sglang.kernels.ops.speculative.spec_tree:verify_tree_greedy_func"
    assert hooked.wait_for(lambda: status(changed) in ("missing", "disabled_after_errors"))
    assert hooked.call("hooks")["runner.load_model"]["raised"] == 1
    assert hooked.wait_for(lambda: [len(ids) for ids in hooked.recorded("moved")] == [24] * len(PROMPTS))


def test_no_prompt_is_stored_and_no_token_of_a_redacted_run(hooked: Served, disk: Served, plain: Plain) -> None:
    hooked.generate(PROMPT_WITH_MARKER, 48, "marker-0")
    prompt = hooked.server.post("/tokenize", {"model": "lab", "prompt": PROMPT_WITH_MARKER}).body["tokens"]
    assert hooked.wait_for(lambda: [len(ids) for ids in hooked.recorded("marker")] == [48])
    plain_run, redacted = disk.run, hooked.run
    for run_dir in (plain_run, redacted):
        assert holding(run_dir, MARKER.encode(), *windows(prompt)) == set()
        assert "requests.request_id" in holding(run_dir, b"marker-0")  # text can be found
    answers = [needle for ids in plain.outputs for needle in windows(ids)]
    assert "verifies.draft_token" in holding(plain_run, *answers)  # there it can be found
    assert holding(redacted, *answers) == set()
    with open_run(redacted) as run:
        for table, column in (("verifies", "draft_token"), ("verifies", "expected_token"),
                              ("verifies", "target_token"), ("drafts", "token")):  # fmt: skip
            (row,) = run.rows(
                f"SELECT count({column}) AS n, count(*) FILTER (abs({column}) < 1000000) AS readable "
                f"FROM all_ranks.{table}"
            )
            assert row["n"] > 0 and row["readable"] == 0, column
        assert run.rows("SELECT count(draft_vocab_id) AS n FROM all_ranks.drafts") == [{"n": 0}]


def test_only_the_owner_may_read_a_run(hooked: Served) -> None:
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in [hooked.run, *hooked.run.rglob("*")]}
    assert {oct(m) for p, m in modes.items() if p.is_dir()} == {"0o700"}
    assert {oct(m) for p, m in modes.items() if p.is_file()} == {"0o600"}


def test_a_run_that_is_deleted_while_it_is_written(hooked: Served, plain: Plain) -> None:
    since = len(hooked.log)
    shutil.rmtree(hooked.run)
    serves(hooked, plain, "deleted")
    assert len([w for w in warnings(hooked, since) if "cannot write" in w]) == 1
    # What is written from here on can be read, or nothing is written.
    assert hooked.wait_for(lambda: hooked.recorded("deleted") != [] if list(hooked.runs.glob("*/")) else True)


def test_what_broken_hooks_raise_never_reaches_the_engine(hooked: Served, plain: Plain) -> None:
    names = [name for name, hook in hooked.call("hooks").items() if hook["enabled"]]
    for name in names:
        hooked.call("break_hook", name, 0, 0, 1)
    paths = [hook["path"] for hook in hooked.call("hooks").values()]
    raised = hooked.call("call_with_nonsense", paths)
    assert len(raised) == len(paths)
    same = [path for path in paths if not path.endswith("verify_tree_greedy_func")]  # that one was changed
    assert {path: raised[path] for path in same} == {path: plain.nonsense[path] for path in same}
    broke = {name for name, hook in hooked.call("hooks").items() if hook["raised"]}
    assert {"v2.generate", "v2.extend_prefill", "scheduler.results"} <= broke


def test_each_hook_in_turn_breaks_and_switches_itself_off(hooked: Served, plain: Plain) -> None:
    for name, hook in hooked.call("hooks").items():
        if not hook["enabled"] or ".load_" in name:  # models are loaded already
            continue
        hooked.call("break_hook", name, 2, 20)
        assert hooked.outputs() == plain.outputs, name
        now = hooked.call("hooks")[name]
        if now["calls"] == hook["calls"]:
            continue  # replaced by another that does its work here
        assert not now["enabled"] and now["errors"] in (5, 6), name  # the last call may break twice
        assert hooked.log.count(f"hook on {hook['path']} switched itself off") == 1


def test_another_tool_keeps_its_wrappers(hooked: Served, plain: Plain) -> None:
    hooked.call("wrap_as_other_tool", DRAFT)  # before us: VERIFY and RESULTS
    assert hooked.outputs() == plain.outputs
    before = hooked.call("other_tool_calls")
    assert set(before) == {VERIFY, RESULTS, DRAFT}
    assert hooked.call("targets", [VERIFY, RESULTS, DRAFT]) == {VERIFY: "ours", RESULTS: "ours", DRAFT: "theirs"}
    installed = [hook["path"] for hook in hooked.call("hooks").values()]
    hooked.call("uninstrument")
    whose = hooked.call("targets", installed)
    assert whose == {p: "theirs" if p in (VERIFY, RESULTS, DRAFT) else "engine" for p in installed}
    assert hooked.outputs() == plain.outputs
    assert all(count > before[path] for path, count in hooked.call("other_tool_calls").items())
