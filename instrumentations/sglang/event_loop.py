"""The scheduler's event loop: an exception that ends it is recorded wherever it comes from."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from eagletrace.instrumentations.patching import replace_on
from eagletrace.instrumentations.sglang.session import Session

logger = logging.getLogger("eagletrace")


def watch_event_loops(session: Session, scheduler: Any) -> None:
    """Stand around the loops of this scheduler (`Scheduler.event_loop_*`, all releases); it will call one of them."""
    for name in dir(type(scheduler)):
        loop = getattr(scheduler, name) if name.startswith("event_loop") else None
        if callable(loop):
            session.undo.append(replace_on(scheduler, name, _watched(session, name, loop)))


def _watched(session: Session, name: str, loop: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(loop)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            return loop(*args, **kwargs)
        except BaseException as error:
            try:
                session.crashed(name, error, session.phase or "event_loop")
            except Exception:
                logger.debug("eagletrace: the end of the event loop is not recorded", exc_info=True)
            raise

    return observed
