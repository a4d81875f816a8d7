"""`eagletrace demo`: diagnoses the small recorded run that ships with the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagletrace.cli.diagnose import diagnose_path
from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import EagletraceError

DEMO_RUN = Path(__file__).resolve().parent.parent / "data" / "demo-run"


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "demo",
        help="diagnose a small recorded run that ships with the package",
        description="Diagnose the recorded run that ships with the package. Exit status as `diagnose`.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=demo)


def demo(options: argparse.Namespace) -> int:
    """Diagnose the recorded run."""
    if not DEMO_RUN.exists():
        raise EagletraceError(
            f"this installation has no recorded run ({DEMO_RUN} is missing): install eagletrace again"
        )
    return diagnose_path(str(DEMO_RUN), as_json=options.json)
