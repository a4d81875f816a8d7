"""A request that ends without a result is closed all the same, once, and nothing of it is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from eagletrace.instrumentations.patching import Target
from eagletrace.instrumentations.sglang.aborts import AbortOutput, AbortRequest
from eagletrace.instrumentations.sglang.session import Extend, ForwardFacts, Session
from eagletrace.record.requests import RequestState

TARGET = Target("scheduler.abort", "m:f", required=False, doc="")


class Request:
    """As SGLang's `Req`."""

    def __init__(self, rid: str, outputs: int = 0) -> None:
        self.rid, self.output_ids, self.origin_input_ids = rid, [7] * outputs, [1, 2]
        self.spec_verify_ct, self.spec_num_correct_drafts = outputs, 0

    def finished(self) -> bool:
        return False


class Scheduler:
    """As SGLang's: an abort takes waiting requests out of the queue."""

    def __init__(self, *waiting: Request) -> None:
        self.waiting_queue = list(waiting)

    def abort_request(self, recv_req: Any) -> None:
        self.waiting_queue = [
            req for req in self.waiting_queue if not (recv_req.abort_all or req.rid.startswith(recv_req.rid))
        ]


def serving() -> tuple[Session, list[RequestState]]:
    written: list[RequestState] = []
    recorder: Any = SimpleNamespace(settings=SimpleNamespace(sample=1.0, hidden_every=1), request=written.append)
    return Session(recorder, "0", SimpleNamespace()), written


def abort(session: Session, scheduler: Scheduler, rid: str, *, abort_all: bool = False) -> None:
    hook = AbortRequest(TARGET, session)
    request = SimpleNamespace(rid=rid, abort_all=abort_all)
    hook(scheduler.abort_request, scheduler, (request,), {})
    assert hook.errors == 0


def test_a_request_that_waits_again_is_closed_by_its_abort() -> None:
    session, written = serving()
    one, other, unseen = Request("a", 5), Request("b", 3), Request("a-never-ran")
    states = [session.request(req) for req in (one, other)]
    session.keep(Extend(states, None, ForwardFacts()))
    scheduler = Scheduler(one, other, unseen)
    abort(session, scheduler, "a")
    assert [(s.rid, s.finish_reason, s.output_tokens, s.engine_rounds) for s in written] == [("a", "abort", 5, 5)]
    assert states[0].end_ns is not None and states[1].end_ns is None
    assert list(session.carried) == [states[1].seq]
    assert session.done == type(session.done)(["a"])  # forgotten when its turn comes
    abort(session, scheduler, "", abort_all=True)
    assert [s.rid for s in written] == ["a", "b"]


def test_a_running_request_is_left_to_its_result() -> None:
    session, written = serving()
    session.request(Request("runs", 4))
    abort(session, Scheduler(), "runs")
    assert written == []


@pytest.mark.parametrize("by_name", [False, True])
def test_whatever_ends_without_a_result_is_closed_once(by_name: bool) -> None:
    session, written = serving()
    req = Request("chunked")
    state = session.request(req)
    hook = AbortOutput(TARGET, session)

    def send(abort_req: Any, req: Any) -> None:
        """As `Scheduler.send_abort_output`."""

    for _ in range(2):
        hook(send, None, (None,) if by_name else (None, req), {"req": req} if by_name else {})
    hook(send, None, (None, Request("never-ran")), {})
    assert (hook.errors, written) == (0, [state])
    assert (state.finish_reason, state.output_tokens) == ("abort", 0)
