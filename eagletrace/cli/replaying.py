"""What `replay` and `diagnose --draft --target` share: arguments, progress, and the message where torch is missing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eagletrace.errors import EagletraceError
from eagletrace.report.text import safe

if TYPE_CHECKING:
    from eagletrace.replay.result import Replay
    from eagletrace.store import Run

TORCH = "a replay needs torch: pip install 'eagletrace[replay]' (any build of torch will do; it runs on the CPU)"


def add_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """`--draft`, `--target` and `--positions`."""
    parser.add_argument(
        "--draft", type=Path, metavar="PATH", required=required, help="draft checkpoint that was served"
    )
    parser.add_argument("--target", type=Path, metavar="PATH", required=required, help="target checkpoint")
    parser.add_argument(
        "--positions", type=_positive, default=None, metavar="N", help="replay at most N recorded positions"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return value


def replayed(run: Run, options: argparse.Namespace) -> Replay:
    """Replay a run as the arguments say; progress goes to stderr where that is a terminal."""
    try:
        from eagletrace.replay.engine import replay
        from eagletrace.replay.recorded import MAX_POSITIONS
    except ImportError as error:
        raise EagletraceError(f"{TORCH} ({error})") from None
    with _progress() as told:
        positions = options.positions or MAX_POSITIONS
        return replay(run, options.draft, options.target, max_positions=positions, progress=told)


def check_arguments(options: argparse.Namespace) -> None:
    """EagletraceError where only one of `--draft` and `--target` is given."""
    if bool(options.draft) != bool(options.target):
        given, other = ("--draft", "--target") if options.draft else ("--target", "--draft")
        raise EagletraceError(f"{given} alone proves nothing: a replay needs {other} too")


def replayed_if_recorded(run: Run, options: argparse.Namespace) -> tuple[Replay | None, list[str]]:
    """The replay of a run, and what is to be said of it; None where there is nothing to replay."""
    from eagletrace.replay.result import NotRecordedError

    try:
        proof = replayed(run, options)
    except NotRecordedError as error:
        return None, [f"no proof by replay: {error}"]
    return proof, list(proof.notes)


@contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield lambda _: None
        return
    with console.status("replaying") as status:
        yield lambda text: status.update(f"replaying: {safe(text)}")
