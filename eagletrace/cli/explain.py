"""`eagletrace explain CAUSE`: what it is, how it kills acceptance, what shows it, how to fix it, public cases."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from eagletrace.cli.output import print_json
from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import UnknownNameError

if TYPE_CHECKING:
    from eagletrace.diagnose import CauseInfo


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "explain",
        help="what a cause is, what shows it, how to fix it",
        description="Explain a cause; without CAUSE list all of them.",
    )
    parser.add_argument("cause", nargs="?", metavar="CAUSE", help="cause id, such as weights.not_loaded")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=explain)


def explain(options: argparse.Namespace) -> int:
    """Print one cause, or the list of them."""
    from eagletrace.diagnose import CAUSES
    from eagletrace.report.page import print_page
    from eagletrace.report.tables import print_rows

    if options.cause is not None and options.cause not in CAUSES:
        raise UnknownNameError("cause", options.cause, CAUSES)
    if options.json:
        chosen = [CAUSES[options.cause]] if options.cause else list(CAUSES.values())
        print_json({"causes": [_as_dict(c) for c in chosen]})
    elif options.cause:
        print_page(CAUSES[options.cause])
    else:
        print_rows([{"cause": c.id, "title": c.title} for c in CAUSES.values()])
    return 0


def _as_dict(cause: CauseInfo) -> dict[str, Any]:
    return {
        "id": cause.id, "stage": cause.stage, "title": cause.title, "what": cause.what, "why": cause.why,
        "shows": cause.shows, "fix": cause.fix, "cases": list(cause.cases), "needs": cause.needs or None,
    }  # fmt: skip
