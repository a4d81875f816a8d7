"""Results on the host: tokens kept, requests finished. Nothing here waits for the device."""

from __future__ import annotations

import time
from typing import Any

from eagletrace.instrumentations.sglang.launch import SessionHook
from eagletrace.instrumentations.sglang.launch_state import Launch


def kept(req: Any) -> int:
    """Output tokens of a request up to its stop."""
    total, cut = len(req.output_ids), getattr(req, "finished_len", None)
    return total if cut is None else min(total, int(cut))


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
        batch = args[0] if args else kwargs["batch"]
        result = args[1] if len(args) > 1 else kwargs["result"]
        launch: Launch | None = getattr(result, "_eagletrace", None)
        reqs = launch.reqs if launch is not None else list(batch.reqs or [])
        gone = [req.finished() or bool(getattr(req, "is_retracted", False)) for req in reqs]
        return launch, result, reqs, gone, [kept(req) for req in reqs]

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Close the launch; write requests that finished."""
        launch, batch_result, reqs, gone, lengths = token
        if launch is not None:
            self._close(launch, batch_result, gone, lengths)
        if self.session.serving:
            for req in reqs:
                self._finish(req, launch is None)

    def _close(self, launch: Launch, result: Any, gone: list[bool], lengths: list[int]) -> None:
        packet = launch.packet
        if packet.committed is None:
            packet.committed = [kept(req) - n for req, n in zip(launch.reqs, lengths, strict=True)]
            packet.counted = [not g for g in gone]
        for name in ("num_correct_drafts_per_req_cpu", "accept_length_per_req_cpu"):
            values = getattr(result, name, None)
            if values is not None and len(values) == len(launch.reqs):
                packet.engine_accepted = [int(v) for v in values]
                break
        self.session.recorder.launch(packet)

    def _finish(self, req: Any, in_prefill: bool) -> None:
        session = self.session
        state = session.requests.get(req.rid)
        if state is None or not req.finished() or state.end_ns is not None:
            return
        state.end_ns, state.output_tokens = time.time_ns(), kept(req)
        if in_prefill and state.output_tokens:
            session.prefilled(req, state)
        reason: Any = getattr(req, "finished_reason", None)
        state.finish_reason = reason.to_json().get("type") if hasattr(reason, "to_json") else str(reason)
        state.engine_rounds = getattr(req, "spec_verify_ct", None)
        state.engine_accepted = next(
            (getattr(req, n) for n in ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
             if hasattr(req, n)), None,
        )  # fmt: skip
        session.recorder.request(state)
        session.carried.pop(state.rid, None)
        session.done.append(req.rid)
        if len(session.done) > 4096:  # a ghost round may still follow a finish; long after, none does
            session.forget(session.done.popleft())

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        """The engine is dying: write what is known before it is gone."""
        if token is not None and token[0] is not None:
            self.session.recorder.launch(token[0].packet)
        self.session.crashed("process_batch_result", error, "results")
