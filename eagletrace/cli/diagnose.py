"""`eagletrace diagnose RUN`: acceptance, and the causes of its loss, ranked, with evidence and fix."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import print_json, warn
from eagletrace.cli.parsers import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "diagnose",
        help="why drafts are rejected: causes, evidence, fix",
        description="Acceptance of a run and the causes of its loss, ranked, each with evidence and a fix.",
        epilog="Exit status: 0 healthy; 1 fault or weak draft; 2 bad input; 3 inconclusive or no speculation.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or trace folder (then its newest run)")
    parser.add_argument("--draft", type=Path, metavar="PATH", help="draft checkpoint, for proof by replay: not yet")
    parser.add_argument("--target", type=Path, metavar="PATH", help="target checkpoint, for proof by replay: not yet")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=diagnose)


def diagnose(options: argparse.Namespace) -> int:
    """Diagnose one run."""
    if options.draft or options.target:
        print(
            "eagletrace: note: proof by replay (--draft, --target) is not part of this release; "
            "the causes below rest on the trace alone",
            file=sys.stderr,
        )
    return diagnose_path(options.run, as_json=options.json)


def diagnose_path(path: str, *, as_json: bool) -> int:
    """Diagnose the run at `path` and print the result; returns the exit status of the verdict."""
    from eagletrace.diagnose import diagnose as judge
    from eagletrace.report.terminal import print_diagnosis
    from eagletrace.store import open_run

    with many_files(), open_run(path) as run:
        result = judge(run)
        warnings = run.warnings_so_far
    warn(warnings)
    if as_json:
        print_json({**result.to_json(), **({"warnings": warnings} if warnings else {})})
    else:
        print_diagnosis(result, warnings)
    return result.exit_code
