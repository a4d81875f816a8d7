"""`eagletrace diagnose RUN`: acceptance, and the causes of its loss, ranked, with evidence and fix."""

from __future__ import annotations

import argparse

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import print_json, warn
from eagletrace.cli.parsers import RUN_HELP, Subparsers
from eagletrace.cli.replaying import add_arguments, check_arguments, replayed_if_possible


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "diagnose",
        help="why drafts are rejected: causes, evidence, fix",
        description="Acceptance of a run and the causes of its loss, ranked, each with evidence and a fix.",
        epilog="Exit status: 0 healthy; 1 fault or weak draft; 2 bad input; 3 inconclusive or no speculation.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_arguments(parser, required=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=diagnose)


def diagnose(options: argparse.Namespace) -> int:
    """Diagnose one run; with `--draft` and `--target`, with proof by replay."""
    check_arguments(options)
    return diagnose_path(options.run, as_json=options.json, options=options if options.draft else None)


def diagnose_path(path: str, *, as_json: bool, options: argparse.Namespace | None = None) -> int:
    """Diagnose the run at `path` and print the result; returns the exit status of the verdict.

    With `options` (`draft`, `target`, `positions`) the run is replayed first. A run that holds nothing to replay,
    or whose draft the reference does not have, is diagnosed from its other tables, with a note.
    """
    from eagletrace.diagnose import diagnose as judge
    from eagletrace.report.terminal import print_diagnosis
    from eagletrace.store import open_run

    with many_files(), open_run(path) as run:
        proof, notes = None, list[str]()
        if options is not None:
            proof, notes = replayed_if_possible(run, options.draft, options.target, options.positions)
        result = judge(run, proof)
        warnings = [*run.warnings_so_far, *notes]
    warn(warnings)
    if as_json:
        print_json({**result.to_json(), **({"warnings": warnings} if warnings else {})})
    else:
        print_diagnosis(result, warnings)
    return result.exit_code
