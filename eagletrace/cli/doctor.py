"""`eagletrace doctor`: would tracing attach to the SGLang that is installed here?"""

from __future__ import annotations

import argparse
import json
from typing import Any, cast

from eagletrace.cli.output import plain, print_json
from eagletrace.cli.parsers import Subparsers

EXIT_MISSING = 3
ABSENT = ("missing", "changed", "shut_out")
HOOK_COLUMNS = ("status", "required", "target", "detail")
LABELS = {
    "EAGLETRACE": "tracing",
    "way": "starts through",
    "shut_out": "shut out",
    "workers_traced": "speculative workers traced",
    "settings_ignored": "ignored",
}  # what --json calls them, in words


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


def _words(value: Any) -> list[str]:
    """A fact of the activation in words; nothing for what is absent."""
    if value is None:
        return []
    if isinstance(value, list):
        return [str(v).removeprefix("eagletrace: ") for v in cast("list[Any]", value)]
    return [value if isinstance(value, str) else json.dumps(value)]


def _print(found: dict[str, Any], missing: list[dict[str, Any]]) -> None:
    from eagletrace.report.tables import print_rows
    from eagletrace.report.text import safe

    print(f"SGLang: {safe(found['sglang'] or 'not installed in this environment')}")
    for key, value in cast("dict[str, Any]", plain(found["activation"])).items():
        for words in _words(value):
            print(f"{safe(LABELS.get(key, key))}: {safe(words)}")
    shown = [h for h in found["hooks"] if h["required"] or h["status"] not in ABSENT]
    if shown:
        print()
        print_rows([{**h, "required": "yes" if h["required"] else "no"} for h in shown], HOOK_COLUMNS)
    if len(shown) < len(found["hooks"]):
        print(f"{len(found['hooks']) - len(shown)} optional targets are missing or belong to other releases (--json).")
    print()
    print(_conclusion(found, missing))


def _conclusion(found: dict[str, Any], missing: list[dict[str, Any]]) -> str:
    if not found["sglang"]:
        return "No SGLang here: run `eagletrace doctor` with the Python that starts the server."
    if any(h["status"] == "shut_out" for h in missing):
        return "Tracing is shut out: this server would not be traced."
    if missing:
        gone = "missing or changed" if any(h["status"] == "changed" for h in missing) else "missing"
        return f"{len(missing)} required hook targets are {gone}: this SGLang would be traced in part or not at all."
    return "All required hook targets were found."
