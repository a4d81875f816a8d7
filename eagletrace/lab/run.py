"""`eagletrace lab run`: serve a case, send requests, and tell where the run lies and what the engine reported."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagletrace.lab.load import Answer, LoadOptions, LoadResult, accept_length, send_load
from eagletrace.lab.options import ServeOptions, Serving, serving
from eagletrace.lab.server import LabServer, ServerFailedError

SCHEMA_VERSION = 1
PROMPTS = 64
"""Different prompts of a run; sent again from the start when more rounds are wanted."""
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
    before = _runs(plan.dir)
    outcome = _serve_and_load(plan, load, _prompts(options, load))
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


def _prompts(options: ServeOptions, load: LoadOptions) -> list[str]:
    if load.prompts is not None:
        return list(load.prompts)
    from eagletrace.lab.pair import prompts

    return prompts(PROMPTS, options.seed)


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
