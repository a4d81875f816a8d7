"""`eagletrace check DRAFT`: the faults that a draft's files hold, before anybody starts a server."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagletrace.cli.output import print_json
from eagletrace.cli.parsers import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "check",
        help="faults in a draft's files, before it is served",
        description="Checks a draft's files as a release of SGLang would read them: names, shapes, vocabulary map, aux "
        "layers, norms, values; with --target also what has to fit the target. Nothing is served and no GPU is needed.",
        epilog="Exit status: 0 healthy; 1 fault; 2 bad input.",
    )
    parser.add_argument("draft", metavar="DRAFT", type=Path, help="the draft's folder")
    parser.add_argument("--target", metavar="TARGET", type=Path, help="the target's folder")
    parser.add_argument(
        "--engine", metavar="sglang==X", help="whose rules to use (default: the SGLang installed here, else the newest)"
    )
    parser.add_argument("--fix", metavar="OUT", type=Path, help="write a repaired copy, where the repair is certain")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=check)


def check(options: argparse.Namespace) -> int:
    """Check one draft."""
    from eagletrace.check import check as check_files

    result = check_files(options.draft, options.target, options.engine, fix=options.fix)
    if options.json:
        print_json(result.to_json())
    else:
        from eagletrace.report.check import print_check

        print_check(result)
    return result.exit_code
