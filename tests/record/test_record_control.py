"""The control file: read whole or not at all, followed once, and refused with a reason."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagletrace.format import control
from eagletrace.format.control import Control
from eagletrace.record import control as module
from eagletrace.record.control import ControlWatch


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert control.read(tmp_path) is None
    asked = Control("contract", 0.25, True, "somebody", 7)
    control.write(tmp_path, asked)
    assert control.read(tmp_path) == asked
    assert [p.name for p in tmp_path.iterdir()] == ["control.json"]
    assert (tmp_path / "control.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"), ("{", "not JSON"), ("[1]", "not a JSON object"), ("[" * 50_000, "not JSON"),
        ('{"level": "loud"}', "contract, tokens, tensors"), ('{"sample": 2}', "0 to 1"), ('{"sample": true}', "0 to 1"),
        ('{"sample": NaN}', "0 to 1"), ('{"paused": "yes"}', "true or false"), (" " * (1 << 17), "larger than"),
        ('{"level": ["tokens"]}', "not one of"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "control.json").write_text(text)
    with pytest.raises(ValueError, match=reason):
        control.read(tmp_path)


def test_a_watch_follows_each_change_once(tmp_path: Path) -> None:
    followed, refused = list[Control](), list[str]()
    watch = ControlWatch(tmp_path, followed.append, refused.append)
    watch.start()
    control.write(tmp_path, Control(paused=True, time_unix_nano=1))
    until(lambda: len(followed) == 1)
    (tmp_path / "control.json").write_text("nonsense")
    until(lambda: len(refused) == 1)
    control.write(tmp_path, Control("contract", time_unix_nano=2))
    until(lambda: len(followed) == 2)
    (tmp_path / "control.json").unlink()
    until(lambda: len(followed) == 3)
    time.sleep(0.1)
    watch.stop()
    assert [(c.level, c.paused) for c in followed] == [(None, True), ("contract", False), (None, False)]
    assert len(refused) == 1


def test_a_control_file_from_before_the_start_holds(tmp_path: Path) -> None:
    control.write(tmp_path, Control(paused=True))
    followed: list[Control] = []
    watch = ControlWatch(tmp_path, followed.append, lambda _: None)
    watch.start()
    watch.stop()
    assert [c.paused for c in followed] == [True]


def test_an_error_in_following_does_not_end_the_watch(tmp_path: Path) -> None:
    calls: list[Control] = []

    def broken(asked: Control) -> None:
        calls.append(asked)
        raise RuntimeError("cannot")

    watch = ControlWatch(tmp_path, broken, lambda _: None)
    watch.start()
    for number in range(2):
        control.write(tmp_path, Control(time_unix_nano=number))
        until(lambda number=number: len(calls) == number + 1)
    watch.stop()


@pytest.mark.parametrize("name", ["control.json", "control-node-1.json"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(outside)
    (run / f".{name}.{os.getpid()}.tmp").symlink_to(outside)
    with pytest.raises(OSError):
        control.write_answer(run / name, {"paused": True})
    assert outside.read_text() == "mine"
    (run / f".{name}.{os.getpid()}.tmp").unlink()
    control.write_answer(run / name, {"paused": True})
    assert outside.read_text() == "mine" and json.loads((run / name).read_text()) == {"paused": True}


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    path: Any = control.answer_path(tmp_path, "node", 1)
    assert control.read_answer(path) == {}
    path.write_text(text)
    assert control.read_answer(path) == {}
