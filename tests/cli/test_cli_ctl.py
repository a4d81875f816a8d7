"""`eagletrace ctl` without a server: what cannot be done is said, and nothing is written."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import eagletrace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema_version": 1, "run_id": "one", "start_time_unix_nano": 1}))
    return folder


@pytest.fixture
def recording(run: Path) -> Iterator[Path]:
    """A process that holds its lock and never answers: this one."""
    path = run / f"process-{socket.gethostname()}-{os.getpid()}.json"
    path.write_text('{"lock": "flock"}')
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to change"),
        (["--level", "loud"], "invalid choice"),
        (["--sample", "2"], "not a number from 0 to 1"),
        (["--sample", "nan"], "not a number from 0 to 1"),
        (["--pause", "--resume"], "not allowed with"),
        (["--pause"], "no process records into"),
    ],
)
def test_what_cannot_be_done_is_said(run: Path, arguments: list[str], said: str) -> None:
    answer = eagletrace("ctl", run, *arguments)
    assert answer.returncode == 2 and said in answer.stderr and "Traceback" not in answer.stderr
    assert not (run / "control.json").exists()


def test_no_such_run(tmp_path: Path) -> None:
    answer = eagletrace("ctl", tmp_path / "none", "--pause")
    assert answer.returncode == 2 and "Traceback" not in answer.stderr


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_named(recording: Path) -> None:
    answer = eagletrace("ctl", recording.parent, "--level", "contract", "--sample", "0.5")
    assert answer.returncode == 2 and f"-{os.getpid()} did not answer" in answer.stderr
    asked = json.loads((recording / "control.json").read_text())
    assert (asked["level"], asked["sample"], asked["paused"]) == ("contract", 0.5, False)
    assert str(asked["time_unix_nano"]) and "process" in asked["by"]
