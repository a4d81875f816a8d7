"""Attaches to one scheduler process of SGLang, and detaches."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import eagletrace
from eagletrace.instrumentations.patching import Hook, Patch, Target, install
from eagletrace.instrumentations.sglang import capture, facts, launch, load, results, sharing, verdict, vocabulary
from eagletrace.instrumentations.sglang.forward import RunnerForward, watch_fusion
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.targets import TARGETS
from eagletrace.record import run_folder
from eagletrace.record.recorder import Recorder
from eagletrace.settings import LEVELS, Settings

logger = logging.getLogger("eagletrace")
HOOK_ROWS_EVERY_S = 2.0
SECRET = re.compile(r"(api_key|password|secret|auth_token)$")

HOOKS: dict[str, Callable[[Target, Session], Hook]] = {
    "scheduler.results": results.Results,
    "runner.load_model": load.LoadModel,
    "loader.load_weights": load.LoadWeights,
    "runner.forward": RunnerForward,
    "v2.generate": launch.Generate,
    "v2.draft": launch.Draft,
    "v2.draft_forward": launch.DraftForward,
    "v2.extend_prefill": launch.ExtendPrefill,
    "v2.extend_decode": launch.ExtendDecodeV2,
    "v2.verify": launch.Verify,
    "v1.generate": launch.Generate,
    "v1.draft": launch.Draft,
    "v1.draft_forward": launch.DraftForward,
    "v1.extend_prefill": launch.ExtendPrefill,
    "v1.extend_decode": launch.ExtendDecodeV1,
    "v1.verify": launch.Verify,
    "v1.verify_tokens": results.VerifyTokens,
    "verify.greedy": verdict.Greedy,
    "verify.greedy_utils": verdict.Greedy,
    "verify.sample": verdict.Sample,
    "verify.sample_mixin": verdict.Sample,
}


class Attachment:
    """The hooks and the recorder of one scheduler process."""

    def __init__(self, settings: Settings, server_args: Any, ranks: dict[str, int | None]) -> None:
        process = {"host": socket.gethostname(), "pid": os.getpid(), **ranks}
        version = engine_version()
        folder = run_folder.create(settings, _run_facts(server_args, version), process)
        resource = {
            "service.name": "sglang", "service.version": version, "host.name": process["host"],
            "process.pid": process["pid"], "telemetry.sdk.language": "python",
            "eagletrace.version": eagletrace.__version__,
        }  # fmt: skip
        self.recorder = Recorder(folder, settings, process, resource)
        self.session = Session(self.recorder, version, server_args)
        self.patches: list[Patch] = []
        self.missing: dict[str, str] = {}
        self._reported = 0.0
        self._steps = 0
        self.recorder.on_flush = self._report

    def attach(self) -> None:
        """Start the recorder and wrap the targets; a missing target is a `hooks` row, never an error."""
        self.recorder.start()
        for bad in self.recorder.settings.bad:
            self.recorder.event(
                "setting_ignored", variable=bad.variable, value=bad.value, allowed=bad.allowed, used=bad.used
            )
        facts.server(self.session)
        level = LEVELS.index(self.recorder.settings.level)
        for target in TARGETS:
            factory = HOOKS.get(target.name)
            if factory is None or LEVELS.index(target.level) > level:
                continue
            try:
                patch = install(factory(target, self.session), ours=[p.wrapper for p in self.patches])
            except (ImportError, AttributeError) as error:
                self.missing[target.name] = str(error)
                continue
            if patch is not None:
                self.patches.append(patch)
        self._hook_rows()

    def ready(self, scheduler: Any) -> None:
        """The scheduler is built: record what it will serve with, before its first forward."""
        session = self.session
        session.worker = getattr(scheduler, "draft_worker", None)
        self._scheduler_facts(scheduler)
        self.recorder.fact("server.worker", type(session.worker).__name__ if session.worker is not None else None)
        if session.draft_runner is not None and session.worker is not None:
            model, facts_of = session.draft_runner.model, session.draft_facts
            self._try("params", load.write_params, session, model, "serving")
            self._try("sharing", sharing.served_facts, session)
            self._try("vocabulary", vocabulary.served_facts, session)
            config, eagle3 = facts_of.get("config", {}), facts_of.get("eagle3", False)
            self._try("capture", capture.served_facts, session, config, eagle3)
            self._try("fc", watch_fusion, session)
            session.softmax_chains = not _fills_ones(session.worker)
            session.serving = True
        self.recorder.event("serving")
        self._hook_rows()
        self.recorder.flush()

    def _try(self, what: str, step: Callable[..., None], *args: Any) -> None:
        """Facts that cannot be had of some model must not cost the rounds."""
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001
            logger.warning("eagletrace: facts of %s are missing: %r; serving is not affected", what, error)
            self.recorder.event("hook_error", target=what, error=repr(error))

    def _scheduler_facts(self, scheduler: Any) -> None:
        """What the scheduler decided, whatever its arguments said."""
        recorder = self.recorder
        recorder.fact("server.overlap_schedule", bool(getattr(scheduler, "enable_overlap", False)), source="Scheduler")
        recorder.fact("server.page_size", getattr(scheduler, "page_size", None), source="Scheduler")
        try:
            self.session.learn_warmup(getattr(scheduler, "tokenizer", None))
        except Exception as error:  # noqa: BLE001 - any tokenizer may be behind it
            logger.debug("eagletrace: cannot encode the warm-up's text: %s", error)

    def detach(self) -> None:
        """Unwrap everything and stop recording; wrapped objects are the originals again."""
        for undo in reversed(self.session.undo):
            undo()
        self.session.undo.clear()
        for patch in reversed(self.patches):
            patch.undo()
        self.session.serving = False
        self._hook_rows()
        self.recorder.stop()

    def _report(self) -> None:
        """On the recorder's thread, now and then: how often each hook fired."""
        calls = sum(p.hook.calls for p in self.patches)
        if calls != self._steps and time.monotonic() - self._reported > HOOK_ROWS_EVERY_S:
            self._steps, self._reported = calls, time.monotonic()
            self._hook_rows()

    def _hook_rows(self) -> None:
        now = time.time_ns()
        version = self.session.engine_version
        for patch in self.patches:
            hook, target = patch.hook, patch.hook.target
            self.recorder.row(
                "hooks", target=target.path, engine_version=version, status=self._status(patch), calls=hook.calls,
                errors=hook.errors, detail=hook.last_error or target.doc, required=self._required(target),
                time_unix_nano=now,
            )  # fmt: skip
        for name, reason in self.missing.items():
            target = next(t for t in TARGETS if t.name == name)
            self.recorder.row(
                "hooks", target=target.path, engine_version=version, status="missing", calls=0, errors=0,
                detail=reason, required=self._required(target), time_unix_nano=now,
            )  # fmt: skip

    def _status(self, patch: Patch) -> str:
        if not patch.hook.enabled:
            return "disabled_after_errors"
        if not patch.in_place() and not patch.hook.calls and self.session.serving:
            return "shut_out"
        return "never_fired" if self.session.launches > 0 and not patch.hook.calls else "installed"

    def _required(self, target: Target) -> bool:
        """Required, unless one of its alternatives does the work here."""
        if not target.required or self.session.worker is None:
            return target.required and not any(n not in self.missing for n in target.alternatives)
        fired = {p.hook.target.name for p in self.patches if p.hook.calls}
        return target.name in fired or not any(n in fired for n in target.alternatives)


def _fills_ones(worker: Any) -> bool:
    """Whether the engine fills 1.0 for the probabilities of chains (draft_topk1_postprocess, 0.5.13 and later)."""
    import sys

    return hasattr(sys.modules.get(type(worker).__module__), "draft_topk1_postprocess")


def engine_version() -> str:
    """Version of the installed SGLang."""
    import importlib.metadata

    return importlib.metadata.version("sglang")


def _run_facts(server_args: Any, version: str) -> dict[str, Any]:
    import importlib.metadata

    # A dataclass in 0.5.9, a record without a `__dict__` of its fields in 0.5.23: both annotate them.
    names = [n for n in getattr(type(server_args), "__annotations__", vars(server_args)) if not n.startswith("_")]
    given: dict[str, Any] = {n: getattr(server_args, n, None) for n in names}
    arguments = {k: v for k, v in given.items() if isinstance(v, (str, int, float, bool, type(None)))}
    for name in arguments:
        if arguments[name] and SECRET.search(name):
            arguments[name] = "set, not recorded"
    return {
        "engine": "sglang", "sglang": version, "torch": importlib.metadata.version("torch"),
        "target": getattr(server_args, "model_path", None),
        "draft": getattr(server_args, "speculative_draft_model_path", None),
        "server_args": arguments,
    }  # fmt: skip
