"""Results on the host: tokens kept, requests finished. Nothing here waits for the device."""

from __future__ import annotations

import time
from typing import Any

from eagletrace.instrumentations.sglang.launch import SessionHook, correct_drafts
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.record.requests import RequestState


def kept(req: Any) -> int:
    """Output tokens of a request up to its stop."""
    total, cut = len(req.output_ids), getattr(req, "finished_len", None)
    return total if cut is None else min(total, int(cut))


def close(session: Session, req: Any, state: RequestState, reason: str | None) -> None:
    """A request has ended: write what came of it, and forget what only its next round would have needed."""
    state.end_ns, state.output_tokens, state.finish_reason = time.time_ns(), kept(req), reason
    state.engine_rounds = getattr(req, "spec_verify_ct", None)
    state.engine_accepted = next(
        (getattr(req, n) for n in ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
         if hasattr(req, n)), None,
    )  # fmt: skip
    session.recorder.request(state)
    session.carried.pop(state.seq, None)
    if session.tensors is not None:
        session.tensors.forget(state.seq)
    session.done.append(req.rid)
    if len(session.done) > 4096:  # a ghost round may still follow a finish; long after, none does
        session.forget(session.done.popleft())


class VerifyTokens(SessionHook):
    """`EagleVerifyInput.verify(batch, ...)` of the first worker, which keeps tokens itself."""

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
        """Output lengths before."""
        launch = self.session.launch
        return [kept(req) for req in launch.reqs] if launch is not None else None

    def after(self, token: list[int] | None, result: Any, instance: Any, args: Any, kwargs: Any) -> None:
        """Tokens kept by each request."""
        launch = self.session.launch
        if launch is None or token is None:
            return
        launch.packet.committed = [kept(req) - n for req, n in zip(launch.reqs, token, strict=True)]
        launch.packet.counted = [True] * len(token)


class Results(SessionHook):
    """`Scheduler.process_batch_result(batch, result)`."""

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Output lengths before, and which requests had already gone."""
        result = args[1] if len(args) > 1 else kwargs["result"]
        launch: Launch | None = getattr(result, "_eagletrace", None)
        if launch is not None:
            reqs = launch.reqs
        else:
            batch = args[0] if args else kwargs["batch"]
            reqs = list(batch.reqs or ())
        goes_on = [req.finished_reason is None and not getattr(req, "is_retracted", False) for req in reqs]
        if launch is None:
            return None, result, reqs, goes_on, None
        return launch, result, reqs, goes_on, [len(req.output_ids) for req in reqs]

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Close the launch; write requests that finished."""
        launch, batch_result, reqs, goes_on, lengths = token
        session = self.session
        if not session.serving:
            return
        if launch is not None:
            self._close(launch, batch_result, goes_on, lengths)
        elif session.counts_only:
            self._count(batch_result, reqs, goes_on)
        finished = [req for req in reqs if req.finished_reason is not None]
        for req in finished:
            self._finish(req, launch is None)
        if finished:
            session.deferred.compute()  # no further launch may follow

    def _close(self, launch: Launch, result: Any, goes_on: list[bool], lengths: list[int]) -> None:
        packet = launch.packet
        if packet.committed is None:
            before = zip(launch.reqs, lengths, goes_on, strict=True)
            packet.committed = [kept(req) - n if on else 0 for req, n, on in before]
            packet.counted = goes_on
        packet.engine_accepted = correct_drafts(result, len(launch.reqs))
        if launch.tensors is not None:
            if packet.graph and self.session.aux_layers is not None:
                self.session.aux_layers.hidden += 1
            kept_now = zip(launch.reqs, packet.committed, strict=True)
            launch.tensors.close([len(req.origin_input_ids) + kept(req) - n - 1 for req, n in kept_now])
        self.session.recorder.launch(packet)

    def _count(self, result: Any, reqs: list[Any], goes_on: list[bool]) -> None:
        """A chain at level `contract`: the verdict's lengths, which the engine has copied to the host by now."""
        correct = correct_drafts(result, len(reqs))
        if correct is not None:
            session = self.session
            session.recorder.counts(session.requests_of(reqs).states, correct, goes_on, session.chain_steps)

    def _finish(self, req: Any, in_prefill: bool) -> None:
        session = self.session
        state = session.requests.get(req.rid)
        if state is None or not req.finished() or state.end_ns is not None:
            return
        if in_prefill and kept(req):
            session.prefilled(req, state)
        reason: Any = getattr(req, "finished_reason", None)
        close(session, req, state, reason.to_json().get("type") if hasattr(reason, "to_json") else str(reason))

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        """The engine is dying: write what is known before it is gone."""
        if token is not None and token[0] is not None:
            self.session.recorder.launch(token[0].packet)
        self.session.crashed("process_batch_result", error, "results")
