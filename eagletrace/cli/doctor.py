"""`eagletrace doctor`: would tracing attach to the SGLang that is installed here?"""

from __future__ import annotations

import argparse
import json
from typing import Any, cast

from eagletrace.cli.output import plain, print_json
from eagletrace.cli.parsers import Subparsers

EXIT_MISSING = 3
ABSENT = ("missing", "shut_out")


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="would tracing attach to the SGLang that is installed here",
        description="Which SGLang is installed, which hook targets it has, and what shuts tracing out.",
        epilog="Exit status: 0 all required hook targets found, 3 some missing.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=doctor)


def doctor(options: argparse.Namespace) -> int:
    """Report on the environment of this Python."""
    from eagletrace.instrumentations.sglang.doctor import inspect_environment

    found: dict[str, Any] = inspect_environment()
    missing = [h for h in found["hooks"] if h["required"] and h["status"] in ABSENT]
    if options.json:
        print_json(found)
    else:
        _print(found, missing)
    return EXIT_MISSING if missing or not found["sglang"] else 0


def _words(value: Any) -> str:
    """A fact of the activation in words."""
    if value is None or value == []:
        return "no"
    if isinstance(value, list):
        return "; ".join(str(v) for v in cast("list[Any]", value))
    return value if isinstance(value, str) else json.dumps(value)


def _print(found: dict[str, Any], missing: list[dict[str, Any]]) -> None:
    from eagletrace.report.tables import print_rows
    from eagletrace.report.text import safe

    print(f"SGLang: {safe(found['sglang'] or 'not installed in this environment')}")
    activation = plain(found["activation"])
    if isinstance(activation, dict):
        for key, value in cast("dict[str, Any]", activation).items():
            print(f"{safe(key.replace('_', ' '))}: {safe(_words(value))}")
    else:
        print(f"activation: {safe(activation)}")
    if found["hooks"]:
        print()
        print_rows(
            [
                {
                    "status": h["status"],
                    "target": h["target"],
                    "required": "required" if h["required"] else "optional",
                    "detail": h["detail"],
                }
                for h in found["hooks"]
            ]
        )
    print()
    if not found["sglang"]:
        print("No SGLang here: run `eagletrace doctor` with the Python that starts the server.")
    elif missing:
        print(f"{len(missing)} required hook targets are missing: this SGLang would be traced in part or not at all.")
    else:
        print("All required hook targets were found.")
