"""`eagletrace doctor`: would tracing attach to the SGLang that is installed here?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
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
        epilog="Exit status: 0 all required hook targets found (and the target can be asked for aux hidden states), "
        "3 some missing.",
    )
    parser.add_argument(
        "--target", type=Path, metavar="PATH", help="a target's folder: can EAGLE-3 be served with its class here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=doctor)


def doctor(options: argparse.Namespace) -> int:
    """Report on the environment of this Python."""
    from eagletrace.instrumentations.sglang.doctor import inspect_environment

    found: dict[str, Any] = inspect_environment()
    missing = [h for h in found["hooks"] if h["required"] and h["status"] in ABSENT]
    target = _target(options.target, found["sglang"]) if options.target else None
    if options.json:
        print_json(found | ({"target": target} if target else {}))
    else:
        _print(found, missing)
        if target:
            print(target["detail"])
    unfit = target is not None and target["captures_aux_hidden_states"] is False
    return EXIT_MISSING if missing or unfit or not found["sglang"] else 0


def _target(folder: Path, version: str | None) -> dict[str, Any]:
    """`{architecture, captures_aux_hidden_states, detail}` of a target's class in the SGLang installed here.

    `captures_aux_hidden_states` is None where it is not known. CheckpointError for a folder that holds no model.
    """
    from eagletrace.checkpoint import config as configs
    from eagletrace.checkpoint import open_checkpoint
    from eagletrace.checkpoint.engines import release

    name = configs.architecture(open_checkpoint(folder).config)
    meaning = release(version).id_meaning(name) if version else "unknown"
    captures = None if meaning == "unknown" else meaning is not None
    detail = {
        True: f"{name} can be asked for aux hidden states: EAGLE-3 drafts can be served with it.",
        False: f"{name} has no set_eagle3_layers_to_capture in SGLang {version}: a server with an EAGLE-3 draft ends "
        "with an error. Use a release whose class for this target has it.",
        None: f"Whether {name} can be asked for aux hidden states is not known here.",
    }[captures]
    return {"architecture": name, "captures_aux_hidden_states": captures, "detail": detail}


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
