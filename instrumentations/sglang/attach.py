"""Attaches to one scheduler process of SGLang, and detaches."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import eagletrace
from eagletrace.format import control as control_file
from eagletrace.format.control import Control
from eagletrace.instrumentations.patching import Patch, Target
from eagletrace.instrumentations.sglang import (
    aux_layers,
    capture,
    facts,
    graphs,
    load,
    sharing,
    tensors,
    vocabulary,
)
from eagletrace.instrumentations.sglang.arguments import decided
from eagletrace.instrumentations.sglang.draft_models import drafts
from eagletrace.instrumentations.sglang.engine_counts import EngineCounts, has_engine_counts
from eagletrace.instrumentations.sglang.event_loop import watch_event_loops
from eagletrace.instrumentations.sglang.forward import watch_fusion
from eagletrace.instrumentations.sglang.hooks import GREEDY, OF_PHASES, Hooks, chain_steps
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.steady import understand
from eagletrace.instrumentations.sglang.targets import BY_NAME, stand_ins
from eagletrace.instrumentations.sglang.workers import unhooked
from eagletrace.record import run_folder
from eagletrace.record.control import ControlWatch
from eagletrace.record.recorder import Recorder
from eagletrace.record.writer import safe_host
from eagletrace.settings import Settings

logger = logging.getLogger("eagletrace")
HOOK_ROWS_EVERY_S = 2.0
SECRET = re.compile(r"(api_key|password|secret|auth_token)$")


class Attachment:
    """The hooks and the recorder of one scheduler process."""

    def __init__(self, settings: Settings, server_args: Any, ranks: dict[str, int | None]) -> None:
        host, pid = socket.gethostname(), os.getpid()
        process = {"host": host, "pid": pid, **ranks}
        version = engine_version()
        folder = run_folder.create(settings, _run_facts(server_args, version), process)
        resource = {
            "service.name": "sglang", "service.version": version, "host.name": process["host"],
            "process.pid": process["pid"], "telemetry.sdk.language": "python",
            "eagletrace.version": eagletrace.__version__, "eagletrace.run.id": folder.name,
            "service.instance.id": f"{folder.name}/{host}-{pid}",
        }  # fmt: skip
        self.recorder = Recorder(folder, settings, process, resource)
        self.session = Session(self.recorder, version, decided(server_args))
        self._start = settings
        self.hooks = Hooks(self.session)
        self._lock = threading.RLock()  # live control and attaching run on different threads
        self._answer = control_file.answer_path(folder, safe_host(host), pid)
        self._watch = ControlWatch(folder, self.follow, self._refuse)
        self._reported = 0.0
        self._steps = 0
        self._phases_seen = True  # by what runs in them, as far as is known
        self.session.on_sampling, self.session.on_unseen = self._sampling, self._unseen
        self.recorder.on_flush = self._report
        self.session.deferred.hands_over = True

    def attach(self) -> None:
        """Start the recorder and wrap the targets; a missing target is a `hooks` row, never an error."""
        self.recorder.start()
        for bad in self.recorder.settings.bad:
            self.recorder.event(
                "setting_ignored", variable=bad.variable, value=bad.value, allowed=bad.allowed, used=bad.used
            )
        facts.server(self.session)
        with self._lock:
            self.hooks.follow()
        self._hook_rows()

    def ready(self, scheduler: Any) -> None:
        """The scheduler is built: record what it will serve with, before its first forward."""
        session = self.session
        session.worker = getattr(scheduler, "draft_worker", None)
        with self._lock:
            self.hooks.follow()  # those of a worker that was imported to be built
        self._scheduler_facts(scheduler)
        self.recorder.fact("server.worker", type(session.worker).__name__ if session.worker is not None else None)
        if session.draft_runner is not None and session.worker is not None:
            facts_of = session.draft_facts
            self._try("params", load.write_params, session, drafts(session), "serving")
            self._try("sharing", sharing.served_facts, session)
            self._try("vocabulary", vocabulary.served_facts, session)
            config, eagle3 = facts_of.get("config", {}), facts_of.get("eagle3", False)
            self._try("capture", capture.served_facts, session, config, eagle3)
            self._try("fc", watch_fusion, session)
            self._try("graphs", graphs.captured, session)
            session.softmax_chains = not _fills_ones(session.worker)
            session.chain_steps = chain_steps(session.server_args)
            if not hasattr(session.worker, "draft_worker"):  # the first worker cuts the path where a request ends
                session.cuts_in_verify = True
                session.deferred.distrust()
            if session.chain_steps and has_engine_counts(session):
                session.engine_counts = EngineCounts(session, scheduler)
            self._try("tensors", tensors.follow, session)
            session.serving = True
        self._try("worker", self._unhooked_rows)
        self._try("event loop", watch_event_loops, session, scheduler)
        self.recorder.event("serving")
        with self._lock:
            self._recount()
            self.hooks.follow()
        self._hook_rows()
        self.recorder.flush()
        self._watch.start()

    def follow(self, asked: Control) -> None:
        """Make a live recording what a control file asks for. Runs on a thread of its own."""
        session, settings = self.session, self.recorder.settings
        level, sample = asked.level or self._start.level, asked.sample
        if level == "tensors" and settings.redact:
            self._refuse("level tensors is refused in a redacted trace")
            return
        with self._lock:
            if session.draft_runner is None or session.worker is None:
                return
            before = (session.serving, session.counts_only)
            self.hooks.paused = asked.paused
            self.recorder.settings = dataclasses.replace(
                settings, level=level, sample=self._start.sample if sample is None else sample
            )
            session.serving = False  # no launch may begin with half of the hooks
            if session.engine_counts is not None:
                session.engine_counts.end()
            self._recount(paused=asked.paused)
            self.hooks.follow()
            watch_fusion(session, on=not asked.paused and not self._counted_only())
            tensors.follow(session, paused=asked.paused)
            if before != (not asked.paused, session.counts_only):
                session.forget_launches()
            session.serving = not asked.paused
        done = {"level": level, "sample": self.recorder.settings.sample, "paused": asked.paused}
        self.recorder.event("control", **done, by=asked.by, asked_time_unix_nano=asked.time_unix_nano)
        self._reply(done | {"asked_time_unix_nano": asked.time_unix_nano})

    def _recount(self, *, paused: bool = False) -> None:
        session = self.session
        session.counts_only = session.chain_steps > 0 and self.recorder.settings.level == "contract"
        session.lean = (
            session.chain_steps > 0 and self.recorder.settings.level == "tokens" and self._phases_seen
            and not session.cuts_in_verify and not session.later_runners
        )  # fmt: skip
        one = None if session.later_runners or session.lean else session.draft_runner
        self.hooks.observe_only("runner.forward", one)
        if session.rounds_pass and not paused:
            session.engine_counts.begin()

    def _sampling(self) -> None:
        with self._lock:
            self.session.samples = True
            self.hooks.follow()

    def _unseen(self) -> None:
        with self._lock:
            self._phases_seen = False
            self._recount()
            self.hooks.follow()

    def _counted_only(self) -> bool:
        """Whether the counts of chains are all that is still asked for."""
        return self.session.counts_only and self.session.first_extend_seen

    def _refuse(self, reason: str) -> None:
        logger.warning("eagletrace: control file ignored: %s", reason)
        self.recorder.event("control", refused=reason)
        self._reply({"refused": reason})

    def _reply(self, answer: dict[str, Any]) -> None:
        try:
            control_file.write_answer(self._answer, answer | {"time_unix_nano": time.time_ns()})
        except OSError as error:
            logger.warning("eagletrace: cannot answer the control file: %s", error)

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
        self._watch.stop()
        with self._lock:
            self.session.serving = False
            watch_fusion(self.session, on=False)
            tensors.follow(self.session, paused=True)
            for undo in reversed(self.session.undo):
                undo()
            self.session.undo.clear()
            self.hooks.undo()
        self._hook_rows()
        self.recorder.stop()

    def _report(self) -> None:
        """On the recorder's thread, now and then: how often each hook fired."""
        session = self.session
        try:
            understand(session)
        finally:
            session.deferred.compute()  # the engine's thread may have no next round
        if session.samples is None and session.lean and self.hooks.fired() & GREEDY:
            with self._lock:
                if session.samples is None:
                    session.samples = False
                    self.hooks.follow()
        if session.engine_counts is not None:
            session.engine_counts.read()
        if self._counted_only() and self.hooks.stands("runner.forward"):
            with self._lock:
                self.hooks.follow()
                watch_fusion(session, on=False)
        calls = self.hooks.calls()
        if calls != self._steps and time.monotonic() - self._reported > HOOK_ROWS_EVERY_S:
            self._steps, self._reported = calls, time.monotonic()
            self._hook_rows()

    def _hook_rows(self) -> None:
        now = time.time_ns()
        version = self.session.engine_version
        for name, patch in list(self.hooks.patches.items()):
            hook, target = patch.hook, patch.hook.target
            status, hidden = self._status(name, patch), graphs.hidden_detail(self.session, name)
            self.recorder.row(
                "hooks", target=target.path, engine_version=version,
                status="graph_hidden" if hidden and status in ("installed", "never_fired") else status,
                calls=hook.calls, errors=hook.errors, detail=hook.last_error or hidden or target.doc,
                required=self.required(target), time_unix_nano=now,
            )  # fmt: skip
        fusion = graphs.fusion_row(self.session)
        if fusion is not None:
            self.recorder.row("hooks", engine_version=version, **fusion, time_unix_nano=now)
        layers = aux_layers.row(self.session)
        if layers is not None:
            self.recorder.row("hooks", engine_version=version, **layers, time_unix_nano=now)
        for name, reason in list(self.hooks.missing.items()):
            target = BY_NAME[name]
            self.recorder.row(
                "hooks", target=target.path, engine_version=version, status="missing", calls=0, errors=0,
                detail=reason, required=self.required(target), time_unix_nano=now,
            )  # fmt: skip

    def _unhooked_rows(self) -> None:
        """Parts of the speculative worker that no hook sees: rows of required targets that are missing."""
        for part in unhooked(self.session.worker, self.hooks.paths()):
            logger.warning("eagletrace: %s", part.detail)
            self.recorder.row(
                "hooks", target=part.target, engine_version=self.session.engine_version, status="missing", calls=0,
                errors=0, detail=part.detail, required=True, time_unix_nano=time.time_ns(),
            )  # fmt: skip

    def _status(self, name: str, patch: Patch) -> str:
        if not patch.hook.enabled:
            return "disabled_after_errors"
        if not self.hooks.stands(name):
            return "installed"  # taken away on purpose: by level, by a pause, or because it is not needed any more
        if not patch.in_place() and not patch.hook.calls and self.session.serving:
            return "shut_out"
        return "never_fired" if self.session.launches > 0 and not patch.hook.calls else "installed"

    def required(self, target: Target) -> bool:
        """Required, unless one of its alternatives does the work here, or what runs in a phase tells of it."""
        missing = self.hooks.missing
        if self.session.lean and any(name in OF_PHASES for name in (target.name, *target.alternatives)):
            return False
        unseen = self.session.worker is None or self.session.rounds_pass
        if not target.required or unseen:  # no hook of a round is called: what there is may stand in
            return target.required and not any(n not in missing for n in target.alternatives)
        fired = self.hooks.fired()
        return target.name in fired or not any(n in fired for n in (*target.alternatives, *stand_ins(target.name)))


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
        "draft": getattr(decided(server_args), "speculative_draft_model_path", None),
        "server_args": arguments,
    }  # fmt: skip
