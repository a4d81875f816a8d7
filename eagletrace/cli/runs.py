"""`eagletrace runs DIR`: lists the runs of a trace folder."""

from __future__ import annotations

import argparse

from eagletrace.cli.output import print_json, warn
from eagletrace.cli.parsers import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "runs", help="list the runs of a trace folder", description="List the runs of a trace folder, oldest first."
    )
    parser.add_argument(
        "dir", metavar="DIR", help="trace folder (the server's EAGLETRACE_DIR), or data set by path or URL"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=runs)


def runs(options: argparse.Namespace) -> int:
    """List the runs."""
    from eagletrace.report.tables import print_rows
    from eagletrace.report.text import safe
    from eagletrace.store.dataset.layout import is_dataset
    from eagletrace.store.folder import user_path
    from eagletrace.store.summary import summarize_dataset, summarize_runs

    given = options.dir
    rows, warnings = summarize_dataset(given) if is_dataset(given) else summarize_runs(user_path(given))
    warn(warnings)
    if options.json:
        print_json({"runs": rows})
    elif rows:
        print_rows([{k: v for k, v in row.items() if k != "path"} for row in rows])
    else:
        print(f"no runs in {safe(options.dir)}")
    return 0
