"""`eagletrace lab run`: serve a case, send requests, and tell where the run lies and what the engine reported."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from eagletrace.errors import EagletraceError
from eagletrace.lab.load import Answer, LoadOptions, LoadResult, accept_length, send_load
from eagletrace.lab.options import ServeOptions, Serving, serving
from eagletrace.lab.server import LabServer, ServerFailedError
from eagletrace.store.summary import counted_rounds

SCHEMA_VERSION = 1
PROMPTS = 64
"""Different prompts of a run; sent again from the start when more rounds are wanted."""
HEADS, HEAD_TEXTS = 2, 3
"""With shared prefixes: so many different ones, of so many prompts each."""
FLUSH_S = 1.5
"""How often a recorder that has rows writes some (one flush interval, and a margin)."""
WRITTEN_S = 20.0
"""How long it is waited for on a busy machine until a recorder has written all its rows."""
UPDATE_S = 20.0
"""How long a server may go on refusing new weights because requests still run."""
COPIES = 5
SHORT = [12] * 8 + [24] * 8
"""Tokens of the first answers, where a wave of full ones would give more rounds than are to be looked at."""


@dataclass(frozen=True)
class LabResult:
    """What one lab run gave. `run` is None when it was not traced (or the tracer wrote nothing)."""

    run: Path | None
    accept_length: float | None
    rounds: int
    engine_died: bool
    answers: list[Answer]
    reason: str = ""
    draft: Path = field(default=Path())
    target: Path = field(default=Path())

    def public(self) -> dict[str, Any]:
        """The object of `lab run --json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run": None if self.run is None else str(self.run),
            "accept_length": self.accept_length,
            "rounds": self.rounds,
            "engine_died": self.engine_died,
            "requests": [answer.public() for answer in self.answers],
        }


def lab_run(options: ServeOptions | None = None, load: LoadOptions | None = None) -> LabResult:
    """Serve in a child process, send the requests, stop the server.

    A server that dies, at its first request or later, is a result (`engine_died`), not an error.
    EagletraceError: bad options, no such environment, a server that is not ready in time.
    """
    load = load or LoadOptions()
    return lab_run_at(options, load, [load.rounds])[load.rounds]


def lab_run_at(options: ServeOptions | None, load: LoadOptions, rounds: Sequence[int]) -> dict[int, LabResult]:
    """As `lab_run`, with what there was after each of some numbers of rounds: the run folder as it was then is copied.

    A case that changes weights half-way is served once for each number. Errors as `lab_run`.
    """
    options = options or ServeOptions()
    plan = serving(options)
    if plan.update is not None and len(rounds) > 1:
        return {number: lab_run(options, replace(load, rounds=number)) for number in rounds}
    load = _short_at_first(load_of(plan, replace(load, rounds=max(rounds))), min(rounds))
    before = _runs(plan.dir)
    found: dict[int, LabResult] = {}

    def run() -> Path | None:
        return _newest(_runs(plan.dir) - before) if options.tracing != "off" else None

    def take(number: int, outcome: LoadResult) -> None:
        _wait_until_written(run(), outcome)
        whole = run()
        copy = None if whole is None else _copied(whole, plan.dir / f"after-{number}" / whole.name)
        found[number] = _result(plan, copy, outcome)

    load = replace(load, marks=sorted(rounds)[:-1], at_mark=take)
    outcome = _serve_and_load(plan, load, prompts_of(plan, load, options.seed), run)
    last = _result(plan, run(), outcome)
    return {number: found.get(number, last) for number in rounds}


def _short_at_first(load: LoadOptions, rounds: int) -> LoadOptions:
    """With few rounds to look at, the first answers are short; how short does not hang on how many are accepted."""
    limit = load.max_new_tokens
    if not isinstance(limit, int) or rounds >= load.concurrency * limit:
        return load
    return replace(load, max_new_tokens=[*(min(limit, short) for short in SHORT), *[limit] * load.rounds])


def _result(plan: Serving, run: Path | None, outcome: LoadResult) -> LabResult:
    return LabResult(
        run=run,
        accept_length=accept_length(outcome.answers),
        rounds=outcome.rounds,
        engine_died=outcome.engine_died,
        answers=list(outcome.answers),
        reason=outcome.reason,
        draft=plan.draft,
        target=plan.target,
    )


def _wait_until_written(run: Path | None, outcome: LoadResult) -> None:
    """Until the run counts every round that the engine reported and no file has come for a flush interval."""
    if outcome.engine_died or run is None:
        time.sleep(FLUSH_S)
        return
    deadline = time.monotonic() + WRITTEN_S
    seen, files = None, _files(run)
    while time.monotonic() < deadline and (seen != files or counted_rounds(run) < outcome.rounds):
        time.sleep(FLUSH_S)
        seen, files = files, _files(run)


def _files(run: Path) -> set[str]:
    return {str(path) for path in run.rglob("*.parquet")}


def _copied(run: Path, to: Path) -> Path:
    """A copy of a run that is still being recorded; files that are merged meanwhile make it start again."""
    for _attempt in range(COPIES):
        with contextlib.suppress(shutil.Error):
            shutil.copytree(run, to)
            return to
        shutil.rmtree(to)
    raise EagletraceError(f"{run} changed while it was copied, {COPIES} times in a row")


def _serve_and_load(plan: Serving, load: LoadOptions, prompts: list[str], run: Callable[[], Path | None]) -> LoadResult:
    server = LabServer(plan.engine, plan.flags, plan.env)
    try:
        with server:
            outcome = send_load(server, load, prompts)
            _wait_until_written(run(), outcome)
            server.kill()  # everything is written; a graceful stop would only wait
            if outcome.engine_died:
                outcome.reason += f"; its log ends:\n{server.log_tail()}"
            return outcome
    except ServerFailedError as error:
        if not server.died:
            raise
        return LoadResult([], engine_died=True, reason=str(error))


def load_of(plan: Serving, load: LoadOptions) -> LoadOptions:
    """What was asked for, with what the case needs."""
    own = plan.case.load
    if own.max_new_tokens is not None:
        load = replace(load, max_new_tokens=own.max_new_tokens)
    if own.concurrency is not None:
        load = replace(load, concurrency=own.concurrency)
    if plan.update is not None:
        load = replace(load, midway=partial(_send_update, plan.update))
    return load


def _send_update(folder: Path, server: LabServer) -> None:
    """Make the server load the weights of a folder; EagletraceError when it refuses.

    It cannot flush its cache before the batch of the last answer is through, a moment after the answer was sent.
    """
    deadline = time.monotonic() + UPDATE_S
    while True:
        answer = server.post("/update_weights_from_disk", {"model_path": str(folder)})
        if "not flushed" not in str(answer.body) or time.monotonic() > deadline:
            break
        time.sleep(0.25)
    if answer.status != 200:
        raise EagletraceError(f"the lab server refused new weights ({answer.status}): {answer.body}")


def prompts_of(plan: Serving, load: LoadOptions, seed: int) -> list[str]:
    """The prompts of a run: given ones, or so many of the lab's, with the prefixes that the case needs."""
    if load.prompts is not None:
        return list(load.prompts)
    from eagletrace.lab.pair import prompts

    own = prompts(PROMPTS, seed)
    if plan.case.load.prompts == "own":
        return own
    heads = ["".join(own[number :: len(own) // HEAD_TEXTS][:HEAD_TEXTS]) for number in range(HEADS)]
    return [text if number % 2 else heads[number // 2 % HEADS] + text for number, text in enumerate(own)]


def _runs(folder: Path) -> set[Path]:
    return {found.parent for found in folder.glob("*/run.json")}


def _newest(runs: set[Path]) -> Path | None:
    return max(runs, key=lambda run: (run / "run.json").stat().st_mtime_ns, default=None)


def serve_until_signal(options: ServeOptions, port: int | None) -> None:
    """`eagletrace lab serve`: traced as the EAGLETRACE variables say; the server's output goes to stderr."""
    plan = serving(options)
    with LabServer(plan.engine, plan.flags, plan.env, port=port, show_output=True) as server:
        print(f"ready: {server.url}  (stop with Ctrl-C)", file=sys.stderr, flush=True)
        while server.alive:
            time.sleep(0.5)
        raise ServerFailedError(f"the server ended with status {server.exit_code}")
