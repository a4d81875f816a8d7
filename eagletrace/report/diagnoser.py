"""Diagnoses a run again and again while it is recorded, on a thread of its own that takes little of the machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagletrace.diagnose import Diagnosis, diagnose
from eagletrace.errors import EagletraceError
from eagletrace.store import Run, open_run

EVERY_S = 10.0
REST = 10  # a diagnosis that takes long is made so much more rarely: at most one part in eleven of a core
NICE = 10  # the server comes first
STOP_S = 20.0  # Python must not end while a thread is in DuckDB; it takes a fraction of a second


@dataclass(frozen=True)
class Diagnosed:
    """The newest diagnosis of a run: what it says or why there is none, when (unix seconds) and what it took."""

    path: Path
    diagnosis: Diagnosis | None
    error: str
    at: float
    seconds: float


class Diagnoser:
    """Diagnoses the run that it was last given, and again every `every_s` seconds while `worth_it` says so."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._path: Path | None = None
        self._again: Callable[[], bool] = lambda: True
        self._wake, self._stop = threading.Event(), False
        self._run: Run | None = None
        self._lock = threading.Lock()
        self.newest: Diagnosed | None = None
        self._thread = threading.Thread(target=self._work, name="eagletrace-diagnose", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self, path: Path, again: Callable[[], bool] = lambda: True) -> None:
        """Diagnose this run from now on, at once, and again while `again` says that there is something new."""
        if path != self._path:
            with self._lock:
                self._path, self._again, self.newest = path, again, None
                self._interrupt()
            self._wake.set()

    def stop(self) -> None:
        """End the thread, and what it does now."""
        self._stop = True
        self._wake.set()
        until = time.monotonic() + STOP_S
        while self._thread.is_alive() and time.monotonic() < until:  # a diagnosis is many queries
            with self._lock:
                self._interrupt()
            self._thread.join(0.05)

    def _interrupt(self) -> None:
        if self._run is not None:
            self._run.interrupt()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread and those that DuckDB starts from it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        due, done = 0.0, None
        while not self._stop:
            self._wake.wait(0.5)
            self._wake.clear()
            path, now = self._path, time.monotonic()
            if self._stop or path is None or (path == done and (now < due or not self._again())):
                continue
            found = self._diagnose(path)
            done, due = path, time.monotonic() + max(self._every_s, REST * found.seconds)
            with self._lock:
                if path == self._path:
                    self.newest = found

    def _diagnose(self, path: Path) -> Diagnosed:
        began = time.monotonic()
        diagnosis, error = None, ""
        try:
            with open_run(path) as run:
                with self._lock:
                    self._run = run
                try:
                    if path == self._path and not self._stop:
                        diagnosis = diagnose(run)
                finally:
                    with self._lock:
                        self._run = None
        except EagletraceError as caught:
            error = str(caught)
        except Exception as caught:  # noqa: BLE001 - a view that shows why is worth more than one that ends
            error = f"{type(caught).__name__}: {caught}"
        return Diagnosed(path, diagnosis, error, time.time(), time.monotonic() - began)
