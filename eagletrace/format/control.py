"""The control file of a run: what a live recording is asked to do. Written by `eagletrace ctl`, read by every process.

`control.json` says what holds now; each process answers in `control-<host>-<pid>.json` once it has done so. Standard
library only: the server reads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagletrace.settings import LEVELS

NAME = "control.json"
MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class Control:
    """What is asked: a level or a sample of None is that of the server's start."""

    level: str | None = None
    sample: float | None = None
    paused: bool = False
    by: str = ""
    time_unix_nano: int = 0


def read(folder: Path) -> Control | None:
    """The control file of a run folder; None if there is none. Raises ValueError with what is wrong with it."""
    try:
        with (folder / NAME).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(text) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return _checked(found)


def _checked(found: dict[str, Any]) -> Control:
    level, sample, paused = found.get("level"), found.get("sample"), found.get("paused", False)
    if level is not None and level not in LEVELS:
        raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)}")
    number = isinstance(sample, (int, float)) and not isinstance(sample, bool)
    if sample is not None and not (number and 0 <= sample <= 1):
        raise ValueError(f"sample {sample!r} is not a number from 0 to 1")
    if not isinstance(paused, bool):
        raise ValueError(f"paused {paused!r} is not true or false")
    time = found.get("time_unix_nano", 0)
    return Control(
        level, None if sample is None else float(sample), paused, str(found.get("by", ""))[:200],
        time if isinstance(time, int) else 0,
    )  # fmt: skip


def write(folder: Path, control: Control) -> None:
    """Replace the control file of a run folder, so that a reader sees the old one or the new one."""
    _replace(folder / NAME, asdict(control))


def answer_path(folder: Path, host: str, pid: int) -> Path:
    """Where a process says what it has done; `host` as it stands in file names."""
    return folder / f"control-{host}-{pid}.json"


def write_answer(path: Path, answer: dict[str, Any]) -> None:
    """Replace a process's answer."""
    _replace(path, answer)


def read_answer(path: Path) -> dict[str, Any]:
    """A process's last answer; empty if it has given none."""
    try:
        found = json.loads(path.read_bytes()[:MAX_BYTES])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _replace(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)
