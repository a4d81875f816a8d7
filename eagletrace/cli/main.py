"""The `eagletrace` command: parses arguments, runs a command, turns user errors into exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
from collections.abc import Callable, Sequence

import eagletrace
from eagletrace.cli import (
    check,
    ctl,
    demo,
    diagnose,
    diff,
    doctor,
    explain,
    export,
    lab,
    metrics,
    queries,
    query,
    repair,
    replay,
    report,
    run,
    runs,
    watch,
)
from eagletrace.cli.output import prepare_streams, warn_error
from eagletrace.errors import EagletraceError, UnknownNameError

COMMANDS = (
    doctor,
    run,
    runs,
    ctl,
    diagnose,
    check,
    replay,
    diff,
    report,
    queries,
    query,
    explain,
    export,
    metrics,
    watch,
    repair,
    demo,
    lab,
)
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
OPEN_FILES = 8_192
"""A run has up to 2,000 files, each opened three times at most while it is read."""

Handler = Callable[[argparse.Namespace], int]


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of all commands; `argv` decides whether the lab's own options are loaded."""
    parser = argparse.ArgumentParser(
        prog="eagletrace",
        description="Tells why speculative decoding rejects its drafts: trace a server, then diagnose the run.",
        epilog="Start: EAGLETRACE=1 in the server's environment, a few requests, then "
        "`eagletrace diagnose eagletrace-runs`.",
    )
    parser.add_argument("--version", action="version", version=f"eagletrace {eagletrace.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        if command is lab:
            lab.add_parser(subparsers, load=list(argv[:1]) == ["lab"])
        else:
            command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. No traceback for what a user caused."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    if arguments[:1] not in (["run"], ["lab"]):  # what they start has its own limits
        _allow_many_files()
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except EagletraceError as error:
        warn_error(str(error))
        return error.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:  # a full disk under stdout, a folder that vanished
        _silence_stdout()
        where = f" ({error.filename})" if error.filename else ""
        warn_error(f"cannot read or write: {error.strerror or error}{where}")
        return EagletraceError.exit_code
    except KeyboardInterrupt:
        print("eagletrace: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return status


def _allow_many_files() -> None:
    """Raise the soft limit of open files, which is often 1,024: a run may have two thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run(arguments: list[str]) -> int:
    parser = build_parser(arguments)
    _check_command(arguments)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed help, the version or what is wrong
        return stop.code if isinstance(stop.code, int) else 2
    handler: Handler | None = getattr(options, "handler", None) or getattr(options, "func", None)
    if handler is None:
        parser.print_help(sys.stderr)
        return 2
    return handler(options)


def _check_command(arguments: list[str]) -> None:
    """Suggest the nearest command; argparse would only list them all."""
    known = [c.__name__.rpartition(".")[2] for c in COMMANDS]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
        raise UnknownNameError("command", arguments[0], known)


def _silence_stdout() -> None:
    """Keep Python's exit from complaining about the pipe that its reader has closed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
