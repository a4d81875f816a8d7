"""`eagletrace run -- CMD …`: starts a command with tracing switched on."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import EagletraceError
from eagletrace.settings import LEVELS

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "run",
        help="start a server with tracing switched on",
        description="Start CMD with EAGLETRACE=1 and the given settings; the exit status is CMD's.",
        usage="eagletrace run [-h] [--dir D] [--level L] -- CMD ...",
    )
    parser.add_argument(
        "--dir", metavar="D", help="where runs are written (default: EAGLETRACE_DIR or ./eagletrace-runs)"
    )
    parser.add_argument("--level", choices=LEVELS, help="how much is recorded (default: EAGLETRACE_LEVEL or tokens)")
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments")
    parser.set_defaults(handler=run)


def _absolute(text: str) -> str:
    """The trace folder as an absolute path; CMD may change its working directory."""
    try:
        if not text:
            raise ValueError("it is empty")
        return str(Path(text).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise EagletraceError(f"--dir {text}: not a folder that can be written to ({error})") from None


def run(options: argparse.Namespace) -> int:
    """Replace this process by the command, so that signals and exit status are its own."""
    command: list[str] = options.cmd
    if command and command[0] == "--":
        command = command[1:]
    if not command or not command[0]:
        raise EagletraceError("no command given: eagletrace run -- python -m sglang.launch_server ...")
    environ = {**os.environ, "EAGLETRACE": "1"}
    if options.dir is not None:
        environ["EAGLETRACE_DIR"] = _absolute(options.dir)
    if options.level is not None:
        environ["EAGLETRACE_LEVEL"] = options.level
    if shutil.which(command[0]) is None:
        exists = Path(command[0]).exists()
        print(f"eagletrace: {command[0]}: {'cannot be executed' if exists else 'command not found'}", file=sys.stderr)
        return EXIT_NOT_EXECUTABLE if exists else EXIT_NOT_FOUND
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(f"eagletrace: {command[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_EXECUTABLE
