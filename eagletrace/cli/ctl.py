"""`eagletrace ctl RUN`: changes a live recording, without a restart of the server."""

from __future__ import annotations

import argparse
import getpass
import os
import time
from pathlib import Path
from typing import Any

from eagletrace.cli.output import print_json
from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import EagletraceError
from eagletrace.settings import LEVELS

ANSWER_TIMEOUT_S = 10.0


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "ctl",
        help="change a live recording: level, sampling, pause, resume",
        description="Change a live recording. What is not named stays; the server goes on serving. "
        "While paused no wrapper of eagletrace is in the engine.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or a trace folder (then its newest run)")
    parser.add_argument("--level", choices=LEVELS, help="how much is recorded from now on")
    parser.add_argument("--sample", type=_share, metavar="S", help="share of requests recorded in detail, 0 to 1")
    pausing = parser.add_mutually_exclusive_group()
    pausing.add_argument("--pause", action="store_true", help="stop recording, and take the wrappers away")
    pausing.add_argument("--resume", action="store_true", help="go on recording")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=ctl)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def ctl(options: argparse.Namespace) -> int:
    """Write the control file and wait until every live process has followed it."""
    from eagletrace.store.folder import find_run, user_path

    if options.level is None and options.sample is None and not options.pause and not options.resume:
        raise EagletraceError("say what to change: --level, --sample, --pause or --resume")
    run = find_run(user_path(options.run))[0].path
    writers = live_processes(run)
    if not writers:
        raise EagletraceError(
            f"no process records into {run} any more (or they are on another host): there is nothing to control"
        )
    asked = change(run, level=options.level, sample=options.sample, pause=options.pause, resume=options.resume)
    answers = wait_for(run, writers, asked)
    refused = [answer["refused"] for answer in answers.values() if answer.get("refused")]
    if options.json:
        print_json({"run": str(run), "asked_time_unix_nano": asked, "processes": answers})
    if refused:
        raise EagletraceError(f"the recording did not follow: {refused[0]}")
    silent = sorted(set(writers) - set(answers))
    if silent:
        raise EagletraceError(
            f"written, but {', '.join(silent)} did not answer in {ANSWER_TIMEOUT_S:.0f} s: a server that has just "
            "started follows once it serves; one that hangs does not"
        )
    if not options.json:
        for name, answer in answers.items():
            state = "paused" if answer.get("paused") else "recording"
            print(f"{name}: {state}, level {answer.get('level')}, sample {answer.get('sample')}")
    return 0


def live_processes(run: Path) -> list[str]:
    """`<host>-<pid>` of the processes that record into a run on this host."""
    from eagletrace.record.liveness import if_dead

    found: list[str] = []
    for path in sorted(run.glob("process-*.json")):
        stem = path.stem.removeprefix("process-")
        with if_dead(run, stem, 0.0) as dead:
            if not dead:
                found.append(stem)
    return found


def change(run: Path, *, level: str | None, sample: float | None, pause: bool, resume: bool) -> int:
    """Write the control file: what it said, with these changes. Returns its time stamp."""
    from dataclasses import replace

    from eagletrace.format import control

    try:
        now = control.read(run) or control.Control()
    except ValueError:  # whatever is in there, it is replaced by something that can be read
        now = control.Control()
    stamp = time.time_ns()
    control.write(
        run,
        replace(
            now, level=level or now.level, sample=now.sample if sample is None else sample,
            paused=pause or (now.paused and not resume), by=f"{_user()}, process {os.getpid()}", time_unix_nano=stamp,
        ),
    )  # fmt: skip
    return stamp


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"


def wait_for(run: Path, writers: list[str], asked: int, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """Answers of those processes that have followed what was asked at `asked`."""
    from eagletrace.format import control

    answers: dict[str, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(answers) < len(writers) and time.monotonic() < deadline:
        for stem in writers:
            host, _, pid = stem.rpartition("-")
            answer = control.read_answer(control.answer_path(run, host, int(pid)))
            if answer.get("time_unix_nano", 0) >= asked:
                answers[stem] = answer
        time.sleep(0.02)
    return answers
