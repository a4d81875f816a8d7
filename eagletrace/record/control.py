"""Watches a run's control file: level, sampling and pauses change while the server runs.

A thread of its own, because the writer's may hang on a disk. It looks at the file's stamp four times a second and does
nothing else while that stays the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from eagletrace.format import control as format_control
from eagletrace.format.control import Control

logger = logging.getLogger("eagletrace")
INTERVAL_S = 0.25


class ControlWatch:
    """Calls `apply` when the control file changes; `refuse` says what is wrong with it."""

    def __init__(self, folder: Path, apply: Callable[[Control], None], refuse: Callable[[str], None]) -> None:
        self._folder, self._apply, self._refuse = folder, apply, refuse
        self._stop = threading.Event()
        self._stamp = self._look()
        self._thread = threading.Thread(target=self._run, name="eagletrace-control", daemon=True)

    def start(self) -> None:
        """Start watching; what a control file asked before the start holds from now on."""
        if self._stamp is not None:
            self._change()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._change()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = (self._folder / format_control.NAME).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _change(self) -> None:
        try:
            control = format_control.read(self._folder)
        except (OSError, ValueError) as error:
            self._refuse(str(error))
            return
        try:
            self._apply(control or Control(by="control file removed", time_unix_nano=time.time_ns()))
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            logger.warning("eagletrace: cannot follow the control file: %r; serving is not affected", error)
