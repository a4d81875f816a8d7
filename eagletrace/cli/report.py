"""`eagletrace report RUN [RUN_B]`: one HTML file that shows a run, or two and what differs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import warn
from eagletrace.cli.parsers import RUN_HELP, Subparsers
from eagletrace.cli.replaying import add_arguments, check_arguments, models_of_each, replayed_each

if TYPE_CHECKING:
    from eagletrace.diff.result import Diff
    from eagletrace.report.html import Shown, TokenNames

MAX_NAME = 100


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "report",
        help="a run, or what differs between two, as one HTML file",
        description="Write one HTML file that needs no network: verdict and fix, causes with evidence, charts of "
        "acceptance, sampled rounds token by token, contract, weights, hooks. With RUN_B also what differs.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("run_b", metavar="RUN_B", nargs="?", help="a second run to compare with")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="the file, replaced if it exists; default: RUN's id with .html, in the current folder",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer", type=Path, metavar="PATH", help="tokenizer.json of the target, or its folder: tokens as text"
    )
    add_arguments(parser, required=False, runs=True)
    parser.set_defaults(handler=report)


def report(options: argparse.Namespace) -> int:
    """Write the file and print its name."""
    check_arguments(options)
    from eagletrace.report.html import load_tokenizer, render

    names = load_tokenizer(options.tokenizer) if options.tokenizer is not None else None
    runs, diff = _one(options, names) if options.run_b is None else _two(options, names)
    for shown in runs:
        warn(shown.report.notes)
    name = "-vs-".join(_file_name(shown.report.info.id) for shown in runs)
    _write(options.output or Path(f"{name}.html"), render(runs, diff))
    return 0


def _one(options: argparse.Namespace, names: TokenNames | None) -> tuple[list[Shown], None]:
    from eagletrace.report.html import Origin, Shown, gather
    from eagletrace.store import open_run

    with many_files(), open_run(options.run) as run:
        ((proof, notes),) = replayed_each([run], options)
        with _progress() as tell:
            found = gather(run, names, proof, tuple(notes), progress=tell)
    (models,) = models_of_each(options, 1)
    return [Shown(found, Origin(options.run, *models, options.tokenizer))], None


def _two(options: argparse.Namespace, names: TokenNames | None) -> tuple[list[Shown], Diff]:
    from eagletrace.diff.engine import MEMORY, compare, read
    from eagletrace.report.html import Origin, Shown, gather
    from eagletrace.store import open_run

    paths = (options.run, options.run_b)
    with (
        many_files(),
        open_run(paths[0], memory=MEMORY) as a,
        open_run(paths[1], memory=MEMORY) as b,
    ):
        replays = replayed_each((a, b), options)
        with _progress() as tell:
            tell("comparing")
            digests = [read(run, proof) for run, (proof, _) in zip((a, b), replays, strict=True)]
            diff = compare(a, digests[0], b, digests[1])
            found = [
                gather(run, names, proof, tuple(notes), digest.diagnosis, progress=tell)
                for run, (proof, notes), digest in zip((a, b), replays, digests, strict=True)
            ]
    return [
        Shown(one, Origin(path, *models, options.tokenizer), f"{letter.lower()}-", f"Run {letter}")
        for one, path, models, letter in zip(found, paths, models_of_each(options, 2), "AB", strict=True)
    ], diff


def _file_name(run_id: str) -> str:
    """A file name that a run id gives: ids of foreign traces may hold anything."""
    kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in run_id).lstrip(".")
    return kept[:MAX_NAME] or "report"


def _write(path: Path, page: str) -> None:
    from eagletrace.report.replace import replacing
    from eagletrace.report.text import safe

    with replacing(path) as file:
        file.write(page.encode())
    print(safe(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)"))


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """Says on stderr what is done now, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield status.update
