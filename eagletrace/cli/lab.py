"""`eagletrace lab …`: the tiny pair on SGLang's own engine on the CPU; its options are loaded only when asked for."""

from __future__ import annotations

import argparse

from eagletrace.cli.parsers import Subparsers
from eagletrace.errors import EagletraceError

HELP = "serve a tiny trained pair on SGLang's own engine on the CPU, healthy or with a fault"


def add_parser(subparsers: Subparsers, *, load: bool) -> None:
    """Register the command; `load` imports the lab, which needs torch and sglang for most of what it does."""
    if load:
        try:
            from eagletrace.lab.cli import add_parser as add_lab_parser
        except ImportError as error:
            _add_placeholder(subparsers, str(error))
        else:
            add_lab_parser(subparsers)
    else:
        subparsers.add_parser("lab", help=HELP)


def _add_placeholder(subparsers: Subparsers, reason: str) -> None:
    def handler(_: argparse.Namespace) -> int:
        raise EagletraceError(f"the lab is not installed here ({reason}); `make setup` in a clone installs it")

    parser = subparsers.add_parser("lab", help=HELP)
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    parser.set_defaults(handler=handler)
