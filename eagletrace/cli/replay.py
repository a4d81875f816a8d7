"""`eagletrace replay RUN --draft PATH --target PATH`: recompute the drafts from recorded states, stage by stage."""

from __future__ import annotations

import argparse

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import print_json, warn
from eagletrace.cli.parsers import RUN_HELP, Subparsers
from eagletrace.cli.replaying import add_arguments, replayed

EXIT_AGREES, EXIT_DIFFERS = 0, 1


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "replay",
        help="recompute the drafts with a reference: does the server draft what its checkpoint says?",
        description="Recompute a run's drafts from its recorded hidden states (EAGLETRACE_LEVEL=tensors) with a "
        "reference EAGLE, compare stage by stage, and search for the change that explains what was served.",
        epilog="Exit status: 0 agrees with what was served; 1 differs; 2 bad input; 3 nothing recorded to replay.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_arguments(parser, required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=replay)


def replay(options: argparse.Namespace) -> int:
    """Replay one run and print what was found."""
    from eagletrace.report.replay import print_replay
    from eagletrace.store import open_run

    with many_files(), open_run(options.run) as run:
        result = replayed(run, options.draft, options.target, options.positions)
        warnings = run.warnings_so_far
    warn([*warnings, *result.notes])
    if options.json:
        print_json(result.to_json())
    else:
        print_replay(result)
    return EXIT_AGREES if result.agrees else EXIT_DIFFERS
