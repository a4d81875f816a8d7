"""What `replay` and the `--draft` and `--target` of `diagnose`, `diff` and `report` share: arguments, progress, and
the message where torch is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eagletrace.errors import EagletraceError
from eagletrace.report.text import safe

if TYPE_CHECKING:
    from eagletrace.replay.result import Replay
    from eagletrace.store import Run

TORCH = "a replay needs torch: pip install 'eagletrace[replay]' (any build of torch will do; it runs on the CPU)"


def add_arguments(parser: argparse.ArgumentParser, *, required: bool, runs: bool = False) -> None:
    """`--draft`, `--target` and `--positions`; of a command on several `runs` the first two may be given for each."""
    action, each = ("append", "; once for all runs, or once for each in their order") if runs else ("store", "")
    parser.add_argument(
        "--draft", type=Path, metavar="PATH", required=required, action=action,
        help=f"draft checkpoint that was served{each}",
    )  # fmt: skip
    parser.add_argument(
        "--target", type=Path, metavar="PATH", required=required, action=action, help=f"target checkpoint{each}"
    )
    parser.add_argument(
        "--positions", type=_positive, default=None, metavar="N", help="replay at most N recorded positions"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return value


def replayed(run: Run, draft: Path, target: Path, positions: int | None) -> Replay:
    """Replay a run from its two checkpoints; progress goes to stderr where that is a terminal."""
    try:
        from eagletrace.replay.engine import replay
        from eagletrace.replay.recorded import MAX_POSITIONS
    except ImportError as error:
        raise EagletraceError(f"{TORCH} ({error})") from None
    with _progress() as told:
        return replay(run, draft, target, max_positions=positions or MAX_POSITIONS, progress=told)


def check_arguments(options: argparse.Namespace) -> None:
    """EagletraceError where only one of `--draft` and `--target` is given."""
    if bool(options.draft) != bool(options.target):
        given, other = ("--draft", "--target") if options.draft else ("--target", "--draft")
        raise EagletraceError(f"{given} alone proves nothing: a replay needs {other} too")


def replayed_if_possible(run: Run, draft: Path, target: Path, positions: int | None) -> tuple[Replay | None, list[str]]:
    """The replay of a run, and what is to be said of it.

    None where nothing was recorded to be replayed, or the reference has no such draft.
    """
    from eagletrace.replay.result import NotRecordedError, UnknownDraftError

    try:
        proof = replayed(run, draft, target, positions)
    except (NotRecordedError, UnknownDraftError) as error:
        return None, [f"no proof by replay: {error}"]
    return proof, list(proof.notes)


def models_of_each(options: argparse.Namespace, runs: int) -> list[tuple[Path | None, Path | None]]:
    """Draft and target of each run, None where none were given.

    EagletraceError where `--draft` or `--target` were given neither once nor as often as there are runs.
    """
    if not options.draft:
        return [(None, None)] * runs
    drafts, targets = (_each(f"--{name}", getattr(options, name), runs) for name in ("draft", "target"))
    return list(zip(drafts, targets, strict=True))


def replayed_each(runs: Sequence[Run], options: argparse.Namespace) -> list[tuple[Replay | None, list[str]]]:
    """The replay of each run, and what is to be said of it; nothing where no checkpoints were given."""
    return [
        replayed_if_possible(run, draft, target, options.positions) if draft and target else (None, [])
        for run, (draft, target) in zip(runs, models_of_each(options, len(runs)), strict=True)
    ]


def _each(name: str, given: Sequence[Path], runs: int) -> Sequence[Path]:
    """A path for each run."""
    if len(given) not in (1, runs):
        many = "one run: give it once" if runs == 1 else f"{runs} runs: give it once, or once for each run"
        raise EagletraceError(f"{name} is given {len(given)} times for {many}")
    return list(given) * runs if len(given) == 1 else given


@contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield lambda _: None
        return
    with console.status("replaying") as status:
        yield lambda text: status.update(f"replaying: {safe(text)}")
