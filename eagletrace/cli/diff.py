"""`eagletrace diff RUN_A RUN_B [RUN_C ...]`: what changed, and what it did to acceptance."""

from __future__ import annotations

import argparse
import contextlib
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import print_json, warn
from eagletrace.cli.parsers import Subparsers
from eagletrace.cli.replaying import add_arguments, check_arguments, replayed_each
from eagletrace.errors import EagletraceError

if TYPE_CHECKING:
    from eagletrace.diff import Diff


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "diff",
        help="what changed between runs, and what it did to acceptance",
        description="Compares load-time facts, behaviour (with intervals), the first divergence and the causes of two "
        "runs; of more runs each with the first. With --draft and --target the runs are replayed first: causes that "
        "only a replay names come and go too, and what explains a change is proved.",
        epilog="Exit status: 0 no significant change; 1 changed; 2 bad input.",
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN",
        help="run folder, trace folder (then its newest run), run of a data set by path or URL, or a pattern such as "
        "'eagletrace-runs/*'",
    )  # fmt: skip
    add_arguments(parser, required=False, runs=True)
    parser.add_argument("--all", action="store_true", help="show every fact and every comparison")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=diff)


def diff(options: argparse.Namespace) -> int:
    """Compare runs; with `--draft` and `--target`, with proof by replay."""
    check_arguments(options)
    from eagletrace.diff import diff_many
    from eagletrace.diff.engine import MEMORY
    from eagletrace.report.diff import print_diff, print_table
    from eagletrace.store import open_run

    paths = _paths(options.runs)
    with many_files(), contextlib.ExitStack() as stack:
        runs = [stack.enter_context(open_run(path, memory=MEMORY)) for path in paths]
        replays = replayed_each(runs, options)
        diffs = diff_many(runs, [proof for proof, _ in replays])
        warnings = [w for run in runs for w in run.warnings_so_far]
        warnings += [
            f"run {run.info.id}: {note}" for run, (_, said) in zip(runs, replays, strict=True) for note in said
        ]
    warn(warnings)
    if options.json:
        said = {"warnings": warnings} if warnings else {}
        print_json({**(diffs[0].to_json() if len(diffs) == 1 else _many(diffs)), **said})
    elif len(diffs) == 1:
        print_diff(diffs[0], everything=options.all)
    else:
        print_table(diffs)
        for number, one in enumerate(diffs if options.all else (), 1):
            print_diff(one, everything=True, names=("A", chr(ord("A") + number)))
    return max(one.exit_code for one in diffs)


def _many(diffs: Sequence[Diff]) -> dict[str, object]:
    """The JSON of several runs against the first."""
    verdict = "changed" if any(one.verdict == "changed" for one in diffs) else "same"
    return {"verdict": verdict, "first": diffs[0].a.to_json(), "diffs": [one.to_json() for one in diffs]}


def _paths(given: Sequence[str]) -> list[str]:
    """The runs that were named, patterns expanded; EagletraceError where they are not at least two."""
    from eagletrace.store.dataset.layout import is_url

    paths: list[str] = []
    for path in given:
        pattern = glob.has_magic(path) and not is_url(path) and not Path(path).expanduser().exists()
        found = sorted(glob.glob(str(Path(path).expanduser()))) if pattern else [path]  # noqa: PTH207 - a path of any root
        if not found:
            raise EagletraceError(f"no run fits the pattern {path}")
        # A pattern such as `runs/*` also fits what lies beside the runs.
        paths += [p for p in found if not pattern or (Path(p) / "run.json").exists()] or found
    if len(paths) < 2:
        raise EagletraceError(f"a diff needs two runs, and {paths[0]} is one: name another run after it")
    return paths
