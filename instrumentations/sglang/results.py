"""Results on the host: tokens kept, requests finished. Nothing here waits for the device."""

from __future__ import annotations

import time
from typing import Any

from eagletrace.instrumentations.sglang.launch import CORRECT_DRAFTS, InRound, SessionHook, correct_drafts
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import Batch, Session
from eagletrace.instrumentations.sglang.steady import Noted, understand
from eagletrace.record.requests import RequestState


def kept(req: Any) -> int:
    """Output tokens of a request up to its stop."""
    total, cut = len(req.output_ids), getattr(req, "finished_len", None)
    return total if cut is None else min(total, int(cut))


def gone(req: Any) -> bool:
    """Whether a request has finished."""
    return req.finished_reason is not None


def retracted(req: Any) -> bool:
    """Whether a request gave up its place, and what runs for it is thrown away."""
    return bool(getattr(req, "is_retracted", False))


def finish_reason(req: Any) -> str:
    """Why a request finished, by the engine's name."""
    reason: Any = getattr(req, "finished_reason", None)
    return reason.to_json().get("type") if hasattr(reason, "to_json") else str(reason)


def close(session: Session, req: Any, state: RequestState, reason: str | None, end_ns: int | None = None) -> None:
    """A request has ended, now or at `end_ns`: write what came of it, and forget what only a next round would need."""
    state.end_ns, state.output_tokens, state.finish_reason = end_ns or time.time_ns(), kept(req), reason
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


def _ending(batch: Batch, before: list[int]) -> tuple[list[int], list[bool]]:
    """Tokens kept by each request of a batch in which some have ended or were retracted, and whose the result was: not
    that of a request that had gone before. `before` are the lengths of outputs then."""
    committed: list[int] = []
    counted: list[bool] = []
    for req, length, went_on in zip(batch.reqs, before, batch.goes_on, strict=True):
        on = went_on and not retracted(req) and (len(req.output_ids) > length or not gone(req))
        committed.append((kept(req) if gone(req) else len(req.output_ids)) - length if on else 0)
        counted.append(on)
    batch.goes_on = [went_on and not gone(req) for req, went_on in zip(batch.reqs, batch.goes_on, strict=True)]
    return committed, counted


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


class Results(InRound):
    """`Scheduler.process_batch_result(batch, result)`."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch | Noted | Batch | list[Any]:
        """Output lengths before, and which requests had already gone."""
        session = self.session
        batch = args[1] if len(args) > 1 else kwargs["batch"]
        if session.counts_only:
            return self._chains(batch)
        launch: Launch | Noted | None = getattr(args[2] if len(args) > 2 else kwargs["result"], "_eagletrace", None)
        if type(launch) is Noted:
            known = launch.batch
            if known.lengths is None:
                known.lengths = [len(req.output_ids) for req in known.reqs]
                known.goes_on = [not gone(req) for req in known.reqs]
            return launch
        if not isinstance(launch, Launch):
            return list(batch.reqs or ())
        launch.batch.lengths = None  # for the next that is only noted
        goes_on: list[bool] = []
        lengths: list[int] = []
        launch.goes_on, launch.lengths = goes_on, lengths
        for req in launch.reqs:
            goes_on.append(req.finished_reason is None and not getattr(req, "is_retracted", False))
            lengths.append(len(req.output_ids))
        return launch

    def after(
        self, token: Launch | Noted | Batch | list[Any] | None, result: Any, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        """Close the launch; write requests that finished."""
        session = self.session
        if type(token) is Noted:
            finished = self._noted(token, args[2] if len(args) > 2 else kwargs["result"])
        elif token is None or not session.serving:
            return
        elif type(token) is Launch:
            finished = self._closed(token, args[2] if len(args) > 2 else kwargs["result"])
            if token.tensors is not None:
                self._recorded(token)
            session.recorder.launch(token.packet)
        elif type(token) is Batch:
            finished = self._count(token, args[2] if len(args) > 2 else kwargs["result"])
        else:
            finished = False
        if finished or isinstance(token, list):
            self._finished(token if isinstance(token, list) else token.reqs, isinstance(token, list))

    def _finished(self, reqs: list[Any], in_prefill: bool) -> None:
        found = [req for req in reqs if gone(req)]
        for req in found:
            self._finish(req, in_prefill)
        if found:
            self.session.deferred.close()  # no further launch may follow

    def _noted(self, noted: Noted, result: Any) -> bool:
        """Close a launch that is only noted; whether a request has finished."""
        session, batch = self.session, noted.batch
        before, batch.lengths = batch.lengths, None  # looked at again where this does not come to its end
        if before is None or not session.serving:
            return False
        committed: list[int] = []
        lengths: list[int] = []
        ends = False
        for req, length in zip(batch.reqs, before, strict=True):
            total = len(req.output_ids)
            lengths.append(total)
            committed.append(total - length)
            if req.finished_reason is not None or getattr(req, "is_retracted", False):
                ends = True
        correct: Any = getattr(result, CORRECT_DRAFTS[0], None)
        if correct is None or len(correct) != len(lengths):
            correct = correct_drafts(result, len(lengths))
        if ends:
            committed, counted = _ending(batch, before)
            noted.processed(committed, counted, correct)
        else:
            noted.processed(committed, batch.goes_on, correct)
        if session.batch is batch:  # else looked at again, should another launch of it be on its way
            batch.lengths = lengths
        session.noted.append(noted)
        if len(session.noted) >= batch.most:
            understand(session)
        return ends

    def _closed(self, launch: Launch, result: Any) -> bool:
        """Complete what was found of a launch; whether a request has finished."""
        reqs, packet = launch.reqs, launch.packet
        committed: list[int] = []
        finished = False
        for req, before, on in zip(reqs, launch.lengths, launch.goes_on, strict=True):
            if req.finished_reason is None:
                committed.append(len(req.output_ids) - before if on else 0)
            else:
                committed.append(kept(req) - before if on else 0)
                finished = True
        if packet.committed is None:
            packet.committed, packet.counted = committed, launch.goes_on
        packet.engine_accepted = correct_drafts(result, len(reqs))
        return finished

    def _recorded(self, launch: Launch) -> None:
        """Level `tensors`: close what is stored of a launch."""
        packet = launch.packet
        if packet.graph and self.session.aux_layers is not None:
            self.session.aux_layers.hidden += 1
        kept_now = zip(launch.reqs, packet.committed or (), strict=True)
        launch.tensors.close([len(req.origin_input_ids) + kept(req) - n - 1 for req, n in kept_now])

    def _chains(self, batch: Any) -> Batch | list[Any]:
        """Level `contract`: the batch of a launch of chains, with which of its requests had already gone; of a prefill
        its requests.

        A request that runs finishes where its results are processed (in the first worker before, and there every result
        counts): what the batch of the launch before came to holds for the same batch again.
        """
        session, reqs, mode = self.session, batch.reqs, batch.forward_mode
        if mode is not session.decoding and mode.is_extend():
            return list(reqs or ())
        known = session.batch
        if reqs != known.reqs:
            known = session.requests_of(list(reqs or ()))
            known.counted = [session.cuts_in_verify or not (gone(req) or retracted(req)) for req in known.reqs]
        return known

    def _count(self, batch: Batch, result: Any) -> bool:
        """The verdict's lengths, which the engine has copied to the host by now. Whether a request has finished."""
        session = self.session
        finished = any(gone(req) for req in batch.reqs)
        correct = correct_drafts(result, len(batch.states))
        if correct is None:
            return finished
        for req in batch.reqs:
            if req.finished_reason is not None or getattr(req, "is_retracted", False):
                counted = [on and not retracted(req) for req, on in zip(batch.reqs, batch.counted, strict=True)]
                batch.counted = [on and not gone(req) for req, on in zip(batch.reqs, batch.counted, strict=True)]
                break
        else:
            counted = batch.counted
        session.recorder.counts(batch.states, correct, counted, session.chain_steps)
        return finished

    def _finish(self, req: Any, in_prefill: bool) -> None:
        session = self.session
        state = session.requests.get(req.rid)
        if state is None or not req.finished() or state.end_ns is not None:
            return
        if in_prefill and kept(req):
            session.prefilled(req, state)
        close(session, req, state, finish_reason(req))

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        """The engine is dying: write what is known before it is gone."""
        if isinstance(token, Noted):
            token.processed(None, None, None)
            self.session.noted.append(token)
        elif isinstance(token, Launch):
            self.session.recorder.launch(token.packet)
        self.session.crashed("process_batch_result", error, "results")
