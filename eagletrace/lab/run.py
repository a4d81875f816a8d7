"""`eagletrace lab run`: serve a case, send requests, and tell where the run lies and what the engine reported."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from eagletrace.errors import EagletraceError
from eagletrace.lab.load import Answer, LoadOptions, LoadResult, accept_length, send_load
from eagletrace.lab.options import ServeOptions, Serving, serving
from eagletrace.lab.server import LabServer, ServerFailedError

SCHEMA_VERSION = 1
PROMPTS = 64
"""Different prompts of a run; sent again from the start when more rounds are wanted."""
HEADS, HEAD_TEXTS = 2, 3
"""With shared prefixes: so many different ones, of so many prompts each."""
FLUSH_S = 1.5
"""How long a recorder may take to write its last rows (one flush interval, and a margin)."""


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
    options, load = options or ServeOptions(), load or LoadOptions()
    plan = serving(options)
    load = load_of(plan, load)
    before = _runs(plan.dir)
    outcome = _serve_and_load(plan, load, prompts_of(plan, load, options.seed))
    return LabResult(
        run=_newest(_runs(plan.dir) - before) if options.tracing != "off" else None,
        accept_length=accept_length(outcome.answers),
        rounds=sum(answer.rounds for answer in outcome.answers),
        engine_died=outcome.engine_died,
        answers=outcome.answers,
        reason=outcome.reason,
        draft=plan.draft,
        target=plan.target,
    )


def _serve_and_load(plan: Serving, load: LoadOptions, prompts: list[str]) -> LoadResult:
    server = LabServer(plan.engine, plan.flags, plan.env)
    try:
        with server:
            outcome = send_load(server, load, prompts)
            time.sleep(FLUSH_S)
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
    """Make the server load the weights of a folder; EagletraceError when it refuses."""
    answer = server.post("/update_weights_from_disk", {"model_path": str(folder)})
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
