"""`eagletrace watch DIR`: a live terminal view of a running server, from its run folder alone."""

from __future__ import annotations

import argparse

from eagletrace.cli.limits import many_files
from eagletrace.cli.parsers import Subparsers

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 3600.0


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "watch",
        help="a live terminal view of a running server",
        description="Show the newest run of a trace folder while it is recorded: accept length, acceptance by depth, "
        "throughput, phases, checks, hooks and drops. A server that restarts is followed. h lists the keys.",
    )
    parser.add_argument("dir", metavar="DIR", help="trace folder (the server's EAGLETRACE_DIR), or one run folder")
    parser.add_argument("--once", action="store_true", help="print one frame; so it is where stdout is no terminal")
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="SECONDS",
                        help="how often the folder is read; default: 1")  # fmt: skip
    parser.set_defaults(handler=watch)


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not MIN_INTERVAL_S <= value <= MAX_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {MIN_INTERVAL_S} to 3600")
    return value


def watch(options: argparse.Namespace) -> int:
    """Show one folder."""
    from eagletrace.report.watch.app import watch as show
    from eagletrace.store.folder import user_path

    with many_files():
        return show(user_path(options.dir), once=options.once, interval_s=options.interval)
