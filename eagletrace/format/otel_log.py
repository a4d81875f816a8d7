"""What the SDK's exporter logs when a collector does not take spans, kept for a message of our own."""

from __future__ import annotations

import logging
import re

_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
)
_ERRNO = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")


class Reason(logging.Filter):
    """Keeps the reason of a failed export in `text`, and keeps it out of the log; of one thread's exports if given."""

    def __init__(self, thread: int | None = None) -> None:
        super().__init__()
        self.text = ""
        self._thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is somebody else's, and is logged."""
        if self._thread is not None and record.thread != self._thread:
            return True
        text = record.getMessage()
        errno = _ERRNO.search(text)
        if errno is not None:
            self.text = errno[1]
        elif "due to timeout" not in text:
            self.text = text.splitlines()[0][:300]
        return False

    def __enter__(self) -> Reason:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)
