"""`eagletrace runs DIR`: lists the runs of a trace folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagletrace.cli.output import print_json, warn
from eagletrace.cli.parsers import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "runs", help="list runs", description="List the runs of a trace folder, oldest first."
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="trace folder (the server's EAGLETRACE_DIR)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=runs)


def runs(options: argparse.Namespace) -> int:
    """List the runs."""
    from eagletrace.report.tables import print_rows
    from eagletrace.store.summary import summarize_runs

    rows, warnings = summarize_runs(options.dir.expanduser())
    warn(warnings)
    if options.json:
        print_json({"runs": rows})
    elif rows:
        print_rows([{k: v for k, v in row.items() if k != "path"} for row in rows])
    else:
        print(f"no runs in {options.dir}")
    return 0
