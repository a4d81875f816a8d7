"""Requests that end outside the stream of results: aborted while they wait again, or between two chunks.

A running request that is aborted ends with its next result, as any other.
"""

from __future__ import annotations

from typing import Any

from eagletrace.instrumentations.sglang.launch import SessionHook
from eagletrace.instrumentations.sglang.results import close
from eagletrace.instrumentations.sglang.session import Session


class AbortRequest(SessionHook):
    """`Scheduler.abort_request(recv_req)`, which takes requests out of the waiting queue."""

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Requests that wait, and had begun."""
        return [req for req in instance.waiting_queue if req.rid in self.session.requests]

    def after(self, token: list[Any], result: Any, instance: Any, args: Any, kwargs: Any) -> None:
        """Close those that wait no longer."""
        if token:
            left = {id(req) for req in instance.waiting_queue}
            for req in token:
                if id(req) not in left:
                    aborted(self.session, req)


class AbortOutput(SessionHook):
    """`Scheduler.send_abort_output(abort_req, req)` (0.5.23), called wherever a request ends without a result."""

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Close the request."""
        aborted(self.session, args[1] if len(args) > 1 else kwargs["req"])


def aborted(session: Session, req: Any) -> None:
    """Close a request that had begun and is not closed yet."""
    state = session.requests.get(req.rid)
    if state is not None and state.end_ns is None:
        close(session, req, state, "abort")
