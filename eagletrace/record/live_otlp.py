"""Sends spans to an OpenTelemetry collector while the server serves, where the standard OTEL_* variables ask for it.

The recorder's thread hands over the columns that it writes anyway, and never waits: what does not fit the bounded queue
pushes out the oldest. A thread of its own makes spans of them and sends them through the SDK's exporter, few at a time
with a pause between, so that the engine's thread never waits long for the GIL. A collector that is slow or dead costs
spans there, and nothing here; the trace on disk has them all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import eagletrace
from eagletrace.format import otel
from eagletrace.format.otel_log import Reason
from eagletrace.record.columns import to_list

logger = logging.getLogger("eagletrace")

QUEUE_SPANS = 16_384  # OTEL_BSP_MAX_QUEUE_SIZE; a span that waits holds about half a kilobyte
BATCH_SPANS = 64  # OTEL_BSP_MAX_EXPORT_BATCH_SIZE; making and encoding so many takes a millisecond or two
PAUSE_S = 0.002
STOP_S = 0.3  # what sending the last spans may delay an exit by
REPORT_AGAIN_S = 60.0  # an event while it goes on failing
Columns = Mapping[str, Any]
Report = Callable[..., None]


def start(report: Report, environ: Mapping[str, str] = os.environ) -> LiveOtlp | None:
    """Begin to send if the variables ask for it; None, and one warning, where that is not possible.

    `report` is given the kind `otlp` and `state` (`sending` or `failing`), `sent`, `dropped` and `reason`, from that
    thread, when the state changes.
    """
    if not otel.asked_for(environ):
        return None
    live = LiveOtlp(report, environ)
    live.start()
    return live


class LiveOtlp:
    """A bounded queue of spans, and the thread that sends them."""

    def __init__(self, report: Report, environ: Mapping[str, str] = os.environ) -> None:
        self._report, self._environ = report, environ
        self.limit = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SPANS)
        self.batch = min(self.limit, _number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_SPANS))
        self._queue: deque[tuple[Columns, int]] = deque()
        self._put = self._taken = 0  # spans, each counted by one thread alone
        self.sent = self.dropped = 0
        self._pushed_out = 0
        self._state, self._reported = "", 0.0
        self._wake, self._stop = threading.Event(), False
        self._exporter: Any = None
        self._thread = threading.Thread(target=self._run, name="eagletrace-otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, columns: Columns, spans: int) -> None:
        """Hand over columns of the `spans` table, which nobody changes any more. Never waits."""
        if not spans or not self._thread.is_alive():
            return
        if spans > self.limit:  # of one flush: the newest of them
            self._pushed_out += spans - self.limit
            self._put += spans - self.limit
            columns, spans = {name: values[-self.limit :] for name, values in columns.items()}, self.limit
        self._queue.append((columns, spans))
        self._put += spans
        while self._put - self._taken - self._pushed_out > self.limit:
            try:
                _, gone = self._queue.popleft()
            except IndexError:  # the other thread has just taken it
                break
            self._pushed_out += gone
        self._wake.set()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Send what waits, for at most so long."""
        self._stop = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._exporter is not None:
            self._exporter.shutdown()  # ends the wait before another try

    def forget(self) -> None:
        """In a fork: the thread is the parent's."""
        self._queue.clear()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        try:
            self._exporter = otel.make_exporter(environ=self._environ)
        except Exception as error:  # noqa: BLE001 - a server serves without telemetry
            logger.warning("eagletrace: spans are recorded, and not sent: %s", error)
            self._say("failing", str(error))
            return
        with Reason(thread=threading.get_ident()) as reason:
            for columns in self._parts():
                self._send(columns, reason)

    def _parts(self) -> Iterator[Columns]:
        """What waits, a few spans at a time, until the end."""
        while True:
            while self._queue:
                try:
                    columns, spans = self._queue.popleft()
                except IndexError:  # pushed out meanwhile
                    break
                self._taken += spans
                for start in range(0, spans, self.batch):
                    yield {name: to_list(values[start : start + self.batch]) for name, values in columns.items()}
                    time.sleep(PAUSE_S)
            if self._stop:
                return
            self._wake.wait()
            self._wake.clear()

    def _send(self, columns: Columns, reason: Reason) -> None:
        from opentelemetry.context import attach, detach, set_value
        from opentelemetry.sdk.trace.export import SpanExportResult

        count = len(columns["name"])
        spans: list[Any] = []
        token = attach(set_value("suppress_instrumentation", True))  # the request is no part of the server's work
        try:
            spans = otel.readable_spans(columns, eagletrace.__version__)
            good = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - as above
            good, reason.text = False, f"{type(error).__name__}: {error}"
        finally:
            detach(token)
        if good:
            self.sent += len(spans)
            self.dropped += count - len(spans)
            self._say("sending", "")
        else:
            self.dropped += count
            self._say("failing", reason.text)
            reason.text = ""

    def _say(self, state: str, why: str) -> None:
        """Report a change, and now and then that it goes on."""
        now = time.monotonic()
        if state == self._state and (state != "failing" or now - self._reported < REPORT_AGAIN_S):
            return
        if state == "failing" and self._exporter is not None:
            why = why or otel.unreachable(otel.where_to(self._environ)) or "no answer in time"
        if state == "failing" and self._state != "failing" and self._exporter is not None:
            logger.warning("eagletrace: the OpenTelemetry collector takes no spans: %s; the trace has them all", why)
        self._state, self._reported = state, now
        dropped = self.dropped + self._pushed_out
        self._report("otlp", state=state, sent=self.sent, dropped=dropped, reason=why or None)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(environ.get(name, ""))
    except ValueError:
        return default
    return value if value > 0 else default
