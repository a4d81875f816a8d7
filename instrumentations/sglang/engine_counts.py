"""Level `contract` where the engine counts for itself: nothing of ours runs in a round.

A request says in how many of its rounds how many drafts were correct (`Req.spec_correct_drafts_histogram`, 0.5.12 and
later), and what runs on for it after its end or while it is retracted is not among them. The recorder's thread reads
that at every flush.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from eagletrace.instrumentations.sglang.results import close, finish_reason, gone
from eagletrace.instrumentations.sglang.session import MAX_REQUESTS, Session
from eagletrace.record.requests import RequestState

# Where a scheduler has the requests that run; which of them it has depends on the release.
BATCHES = ("running_batch", "last_batch", "cur_batch", "cur_batch_for_debug")


@dataclass(slots=True)
class _Running:
    req: Any
    state: RequestState
    read: list[int]  # the histogram as far as it is counted


class EngineCounts:
    """Reads the counts of requests from their prefill to their end."""

    def __init__(self, session: Session, scheduler: Any) -> None:
        self._session, self._scheduler = session, scheduler
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()  # between control and recorder; the engine's thread takes it never
        self._reads = False

    def begin(self) -> None:
        """From now on; of requests that run already only what follows."""
        with self._lock:
            self._running, self._reads = {}, True
            for batch in (getattr(self._scheduler, name, None) for name in BATCHES):
                for req in list(getattr(batch, "reqs", None) or ()):
                    if not gone(req):
                        self.follow(req, self._session.request(req))

    def end(self) -> None:
        """Count what was not read yet, and no more."""
        with self._lock:
            if self._reads:
                self._read()
            self._running, self._reads = {}, False

    def follow(self, req: Any, state: RequestState) -> None:
        """A request is about to run. It may be one that was retracted."""
        if state.seq in self._running:
            return
        state.start_ns = _unix_ns(req, "forward_entry_time") or state.start_ns
        self._running[state.seq] = _Running(req, state, list(req.spec_correct_drafts_histogram))
        if len(self._running) > MAX_REQUESTS:
            self._running.pop(next(iter(self._running)), None)

    def read(self) -> None:
        """Count what has come since the last time, and close requests that have finished."""
        with self._lock:
            if self._reads:
                self._read()

    def _read(self) -> None:
        session, gained = self._session, list[int]()
        for seq, running in self._running.copy().items():
            req, ended = running.req, gone(running.req) or running.state.end_ns is not None
            # A round is counted before its request finishes: of one that has, this is all.
            histogram = list(req.spec_correct_drafts_histogram)
            before = running.read + [0] * (len(histogram) - len(running.read))
            if histogram != before and running.state.kind == "user":
                gained += [0] * (len(histogram) - len(gained))
                for correct, rounds in enumerate(histogram):
                    gained[correct] += rounds - before[correct]
            running.read = histogram
            if ended:
                self._running.pop(seq, None)
                if running.state.end_ns is None:
                    close(session, req, running.state, finish_reason(req), _unix_ns(req, "completion_time"))
        if gained:
            session.recorder.chains(gained, session.chain_steps)


def has_engine_counts(session: Session) -> bool:
    """Whether the requests that run here are counted by the engine itself, and each begins with a prefill here.

    The first worker (to 0.5.12) is left out: a request finishes there before its last round is counted.
    """
    request = getattr(sys.modules.get("sglang.srt.managers.schedule_batch"), "Req", None)
    alone = getattr(session.server_args, "disaggregation_mode", "null") in (None, "null")
    return alone and not session.cuts_in_verify and hasattr(request, "update_spec_correct_drafts_histogram")


def _unix_ns(req: Any, name: str) -> int | None:
    """A time that the engine noted of a request (`ReqTimeStats`, by `time.perf_counter`); None where it did not."""
    seconds = getattr(getattr(req, "time_stats", None), name, None)
    if not isinstance(seconds, float) or seconds <= 0:
        return None
    return time.time_ns() - int((time.perf_counter() - seconds) * 1e9)
