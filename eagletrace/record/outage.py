"""Whether the disk takes rows at present, and when to try again."""

from __future__ import annotations

import time
from collections import Counter

RETRY_S, RETRY_AT_MOST_S = 1.0, 30.0
SETTLED_S = 60.0  # a disk that failed again within this time is left alone for longer
STALL_S = 5.0  # a flush that took longer stood still


class Outage:
    """The state of the disk. `over` and `failed` say when it changes; between two tries nothing is written."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.lost: Counter[str] = Counter()  # rows of detail that were dropped in this outage, by table
        self._delay = RETRY_S
        self._next_try = self._ended = float("-inf")

    def failed(self) -> bool:
        """A write failed; True if that is the beginning of an outage."""
        now = time.monotonic()
        first = self.began is None
        if first:
            self.began = now
            self.lost.clear()
            self._delay = min(self._delay * 2, RETRY_AT_MOST_S) if now - self._ended < SETTLED_S else RETRY_S
        elif now >= self._next_try:
            self._delay = min(self._delay * 2, RETRY_AT_MOST_S)
        self._next_try = now + self._delay
        return first

    def may_try(self) -> bool:
        """Whether a write may be tried now."""
        return self.began is None or time.monotonic() >= self._next_try

    def over(self) -> float:
        """The disk takes rows again; returns for how many seconds it did not."""
        now = time.monotonic()
        seconds = now - (self.began if self.began is not None else now)
        self.began, self._ended = None, now
        return seconds
