"""`eagletrace repair RUN`: removes temporaries, merges, reports rows lost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from eagletrace.cli.output import print_json
from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import EagletraceError


class CannotRepairError(EagletraceError):
    """A run that cannot be changed now, or not by this user."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "repair",
        help="remove what killed processes left half done, and merge a run's files",
        description="Remove the temporaries of processes that were killed, merge small files into large ones, and "
        "report the rows that were not recorded. Files of a process that is still recording stay as they are, and so "
        "does every file that is not named as eagletrace names its files.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or a trace folder: its newest run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=repair)


def repair(options: argparse.Namespace) -> int:
    """Repair one run."""
    from eagletrace.cli.output import warn
    from eagletrace.store.folder import find_run, user_path

    info, warnings = find_run(user_path(options.run))
    warn(warnings)
    report = _repair(info.path)
    if options.json:
        print_json({"run": {"id": info.id, "path": str(info.path)}, **report})
    else:
        _print(info.path, report)
    return 0


def _repair(path: Path) -> dict[str, Any]:
    from eagletrace.record.repair import BusyError
    from eagletrace.record.repair import repair as mend

    try:
        return mend(path)
    except BusyError as error:
        raise CannotRepairError(str(error)) from None
    except PermissionError as error:
        raise CannotRepairError(
            f"cannot change {error.filename or path}: {error.strerror}; repair a run as the user who recorded it"
        ) from None


def _print(path: Path, report: dict[str, Any]) -> None:
    from eagletrace.report.text import safe

    print(f"{safe(str(path))}: {report['files_before']} files, now {report['files_after']}")
    removed, covered = report["temporaries_removed"], report["covered_files_removed"]
    if removed or covered:
        print(f"removed: {removed} temporaries, {covered} files whose rows are in a merged one")
    for writer in report["live_writers"]:
        print(f"left alone: {safe(writer)} is recording")
    for name in report["unreadable"]:
        print(f"left alone: {safe(name)} cannot be read, or has other columns than this release writes")
    lost = report["rows_lost"]
    print(f"rows not recorded: {sum(lost.values())}" if lost else "no row was lost, as far as the totals say")
    for reason, rows in lost.items():
        print(f"  {rows} {safe(reason)}")
