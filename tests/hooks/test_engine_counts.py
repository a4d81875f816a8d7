"""Level `contract` where the engine counts: what is read of requests, and when they are closed."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from eagletrace.instrumentations.patching import Target
from eagletrace.instrumentations.sglang.aborts import aborted
from eagletrace.instrumentations.sglang.attach import Attachment
from eagletrace.instrumentations.sglang.engine_counts import EngineCounts, has_engine_counts
from eagletrace.instrumentations.sglang.event_loop import watch_event_loops
from eagletrace.instrumentations.sglang.hooks import HOOKS, Hooks
from eagletrace.instrumentations.sglang.launch import ExtendPrefill
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.targets import BY_NAME
from eagletrace.record.totals import Totals

STEPS = 3


class Req:
    """A request of an engine that counts (`schedule_batch.py`, 0.5.12 and later)."""

    def __init__(self, rid: str, max_new_tokens: int = 9) -> None:
        self.rid, self.origin_input_ids = rid, [1, 2]
        self.output_ids: list[int] = []
        self.finished_reason: Any = None
        self.sampling_params = SimpleNamespace(temperature=1.0, top_k=1, max_new_tokens=max_new_tokens)
        self.spec_verify_ct = self.spec_num_correct_drafts = 0
        self.spec_correct_drafts_histogram: list[int] = []

    def finished(self) -> bool:
        return self.finished_reason is not None

    def update_spec_correct_drafts_histogram(self, correct: int) -> None:
        grown = correct + 1 - len(self.spec_correct_drafts_histogram)
        self.spec_correct_drafts_histogram.extend([0] * grown)
        self.spec_correct_drafts_histogram[correct] += 1

    def rounds(self, *correct: int) -> None:
        for count in correct:
            self.spec_verify_ct += 1
            self.spec_num_correct_drafts += count
            self.output_ids += [7] * (count + 1)
            self.update_spec_correct_drafts_histogram(count)


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(level="contract", sample=1.0, hidden_every=1)
        self.totals = Totals()
        self.rows: dict[str, Any] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def chains(self, histogram: list[int], steps: int) -> None:
        assert steps == STEPS
        self.totals.add_chains(histogram, steps)

    def request(self, state: Any) -> None:
        self.rows[state.rid] = state

    def event(self, kind: str, **detail: Any) -> None:
        self.events.append((kind, detail))

    def prefilled(self, *_: Any) -> None:
        """A prefill's last token."""

    def fact(self, *_: Any) -> None:
        """A fact of the first prefill."""

    def flush(self, _: float) -> bool:
        return True


class Server:
    """A scheduler at level `contract`."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        recorder: Any = self.recorder
        self.session = session = Session(recorder, "0", SimpleNamespace(disaggregation_mode="null"))
        session.serving, session.counts_only, session.chain_steps = True, True, STEPS
        self.scheduler = SimpleNamespace(running_batch=None, cur_batch=None)
        self.counts = session.engine_counts = EngineCounts(session, self.scheduler)
        self.counts.begin()
        self.hook = ExtendPrefill(Target("t", "a:b", True, ""), session)
        self._prefill = self.hook.wrapper(lambda *_: "drafted", method=True)

    def prefill(self, *reqs: Req) -> None:
        assert self._prefill(None, SimpleNamespace(reqs=list(reqs)), None, None) == "drafted"
        assert self.hook.last_error is None

    @property
    def found(self) -> tuple[int, int, list[int]]:
        self.counts.read()
        totals = self.recorder.totals
        return totals.rounds, totals.accepted, totals.histogram


@pytest.fixture
def server() -> Server:
    return Server()


def test_rounds_count_once_however_often_they_are_read(server: Server) -> None:
    a, b = Req("a"), Req("b")
    server.prefill(a, b)
    assert server.found == (0, 0, [])
    a.rounds(0, 2)
    assert server.found == server.found == (2, 2, [1, 0, 1, 0])
    b.rounds(3)
    a.rounds(2)
    assert server.found == (4, 7, [1, 0, 2, 1])
    totals = server.recorder.totals
    assert totals.drafted == 4 * STEPS
    assert totals.reached_by_depth == [4, 3, 3] and totals.accepted_by_depth == [3, 3, 1]


def test_a_finished_request_is_closed_with_all_of_its_rounds(server: Server) -> None:
    a = Req("a")
    server.prefill(a)
    a.rounds(1, 1)
    a.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
    assert server.found == (2, 2, [0, 2, 0, 0])
    row = server.recorder.rows["a"]
    assert (row.finish_reason, row.output_tokens, row.engine_rounds, row.engine_accepted) == ("length", 4, 2, 2)
    a.rounds(3)  # nothing looks at it any more
    assert server.found == (2, 2, [0, 2, 0, 0])


def test_its_end_is_when_the_engine_says(server: Server) -> None:
    a, b = Req("a"), Req("b")
    now = time.perf_counter()
    a.time_stats = SimpleNamespace(forward_entry_time=now - 9, completion_time=now - 5)  # type: ignore[attr-defined]
    server.prefill(a, b)
    a.finished_reason = b.finished_reason = "abort"
    server.counts.read()
    ended, begun = server.recorder.rows["a"].end_ns, server.recorder.rows["a"].start_ns
    assert 4 < (time.time_ns() - ended) / 1e9 < 7 and abs((ended - begun) / 1e9 - 4) < 0.5
    assert 0 <= (time.time_ns() - server.recorder.rows["b"].end_ns) / 1e9 < 2  # it does not say: now


def test_the_servers_own_requests_do_not_count(server: Server) -> None:
    warmup, health = Req("w", max_new_tokens=8), Req("HEALTH_CHECK_1")
    warmup.origin_input_ids = [10, 11, 12]
    server.prefill(warmup, health)
    warmup.rounds(2)
    health.rounds(1)
    warmup.finished_reason = health.finished_reason = "length"
    assert server.found == (0, 0, [])
    assert [server.recorder.rows[rid].kind for rid in ("w", "HEALTH_CHECK_1")] == ["warmup", "health"]
    assert server.recorder.rows["w"].end_ns is not None


def test_a_retracted_request_goes_on_where_it_was(server: Server) -> None:
    a = Req("a")
    server.prefill(a)
    a.rounds(2)
    server.counts.read()
    a.rounds(1)
    server.prefill(a)  # once more, with what it has
    a.rounds(0)
    assert server.found == (3, 3, [1, 1, 1, 0])
    assert server.recorder.rows["a"].retractions == 1
    assert [kind for kind, _ in server.recorder.events] == ["retraction"]


def test_an_aborted_request_is_counted_to_its_end(server: Server) -> None:
    a = Req("a")
    server.prefill(a)
    a.rounds(2)
    aborted(server.session, a)
    assert server.found == (1, 2, [0, 0, 1, 0])
    assert server.recorder.rows["a"].finish_reason == "abort"
    a.rounds(2)
    assert server.found == (1, 2, [0, 0, 1, 0])


def test_of_what_runs_when_recording_begins_only_the_rest_counts(server: Server) -> None:
    a, b, gone = Req("a"), Req("b"), Req("gone")
    for req in (a, b, gone):
        req.rounds(3, 3)
    gone.finished_reason = "length"
    server.counts.end()
    server.scheduler.running_batch = SimpleNamespace(reqs=[a])
    server.scheduler.cur_batch = SimpleNamespace(reqs=[a, b, gone])
    server.counts.begin()
    a.rounds(1)
    b.rounds(0)
    assert server.found == (2, 1, [1, 1, 0, 0])
    a.rounds(2)
    server.counts.end()
    b.rounds(3)  # recording is paused
    assert server.found == (3, 3, [1, 1, 1, 0])


def test_a_request_that_never_ends_does_not_pile_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagletrace.instrumentations.sglang import engine_counts

    monkeypatch.setattr(engine_counts, "MAX_REQUESTS", 3)
    reqs = [Req(str(n)) for n in range(5)]
    for req in reqs:
        server.prefill(req)
        req.rounds(1)
    assert server.found == (3, 3, [0, 3, 0, 0])


@pytest.mark.parametrize(
    ("mode", "first_worker", "counts", "expected"),
    [("null", False, True, True), (None, False, True, True), ("decode", False, True, False),
     ("null", True, True, False), ("null", False, False, False)],
)  # fmt: skip
def test_where_the_engine_counts(
    monkeypatch: pytest.MonkeyPatch, mode: str | None, first_worker: bool, counts: bool, expected: bool
) -> None:
    recorder: Any = Recorder()
    session = Session(recorder, "0", SimpleNamespace(disaggregation_mode=mode))
    session.cuts_in_verify = first_worker
    engine: Any = SimpleNamespace(Req=Req if counts else object)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.schedule_batch", engine)
    assert has_engine_counts(session) is expected


def test_no_hook_of_a_round_is_wanted(server: Server) -> None:
    hooks = Hooks(server.session)

    def wanted() -> set[str]:
        return {name for name in HOOKS if name in BY_NAME and hooks.wants(BY_NAME[name])}

    workers = ("v1", "v2", "multi_layer")
    begins = {"scheduler.abort", "scheduler.abort_output", *(f"{worker}.extend_prefill" for worker in workers)}
    server.session.first_extend_seen = False
    at_first = {name for name in wanted() if "update" not in name and "load" not in name and "updater" not in name}
    assert at_first == begins | {"runner.forward"}
    server.session.first_extend_seen = True
    assert {n for n in wanted() if n.startswith((*workers, "verify", "graph", "scheduler", "runner.f"))} == begins


def test_what_ends_the_event_loop_is_recorded_and_passes(server: Server) -> None:
    error = ValueError("the engine's")

    class Scheduler:
        event_loop_ports = 3  # not a loop

        def event_loop_overlap(self, turns: int) -> str:
            if not turns:
                raise error
            return "stopped"

    scheduler, session = Scheduler(), server.session
    watch_event_loops(session, scheduler)
    assert scheduler.event_loop_overlap(1) == "stopped" and not server.recorder.events
    with pytest.raises(ValueError, match="the engine's") as caught:
        scheduler.event_loop_overlap(0)
    assert caught.value is error
    ((kind, detail),) = server.recorder.events
    assert kind == "engine_exception"
    assert (detail["where"], detail["phase"], detail["message"]) == (
        "event_loop_overlap", "event_loop", "the engine's",
    )  # fmt: skip
    for undo in session.undo:
        undo()
    assert "event_loop_overlap" not in vars(scheduler)


def test_a_target_of_another_release_is_not_missed_where_no_hook_is_called(server: Server) -> None:
    attachment = Attachment.__new__(Attachment)
    attachment.session, attachment.hooks = server.session, Hooks(server.session)
    server.session.worker = object()
    attachment.hooks.missing = {"v1.verify": "no such module"}
    assert not attachment.required(BY_NAME["v1.verify"])
    attachment.hooks.missing |= {"v2.verify": "another signature"}
    assert attachment.required(BY_NAME["v1.verify"]) and attachment.required(BY_NAME["v2.verify"])
    del attachment.hooks.missing["v2.verify"]
    server.session.counts_only = False  # hooks are called in a round, and neither was
    assert attachment.required(BY_NAME["v1.verify"])
