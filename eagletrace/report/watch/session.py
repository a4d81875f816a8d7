"""What is watched: the newest run of a folder or the one that was chosen, what it says now, and its diagnosis."""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from eagletrace.errors import EagletraceError
from eagletrace.report.diagnoser import Diagnosed, Diagnoser
from eagletrace.store.folder import RunInfo, list_runs
from eagletrace.store.live import Counts, LiveRun

NOW_S = 10.0  # what "now" means
WINDOWS_S = (
    30.0,
    60.0,
    120.0,
    180.0,
    300.0,
    600.0,
)  # and how far back the course is shown: the first that the run fits into
PART_S = 2.0  # totals come about once a second: shorter parts of a course would have gaps
BEHIND_S = 3.0  # totals come about once a second; when none came for so long, nothing happens
LIST_EVERY_S = 5.0
MAX_TURNED = 100


@dataclass(frozen=True)
class Turned:
    """A check that changed from one diagnosis to the next."""

    at: float
    check: str
    before: str
    after: str
    reason: str


class Session:
    """Follows one folder. `refresh` reads what is new and never raises for what a server or a user does there."""

    def __init__(self, folder: Path, diagnoser: Diagnoser | None = None) -> None:
        self.folder = folder
        self.diagnoser = diagnoser
        self.runs: list[RunInfo] = []
        self.run: LiveRun | None = None
        self.pinned: Path | None = None
        self.waiting_for = ""
        self.turned: deque[Turned] = deque(maxlen=MAX_TURNED)
        self._listed = float("-inf")
        self._folder_changed = 0.0
        self._known: Diagnosed | None = None
        self._rounds_diagnosed = -1

    # -- runs -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look for new runs, switch to the newest unless one was chosen, and read what is new in it."""
        try:
            self._list()
            path = self._wanted()
            if path is None:
                return
            if self.run is None or self.run.path != path:
                self._open(path)
            if self.run is not None:
                self.run.poll()
                self.waiting_for = ""
        except (EagletraceError, OSError) as error:  # a folder that is deleted, or not readable yet
            self.run = None
            self._listed = float("-inf")
            self.waiting_for = str(error)
        self._note_turned()

    def _list(self) -> None:
        """Read the list of runs when the folder changed, and now and then: `run.json` comes after its folder."""
        try:
            changed = self.folder.stat().st_mtime
        except FileNotFoundError:
            self.runs, self.run = [], None
            self.waiting_for = f"{self.folder} does not exist yet: it is made by a server that is started with "
            self.waiting_for += f"EAGLETRACE=1 EAGLETRACE_DIR={self.folder}"
            return
        now = time.monotonic()
        if changed == self._folder_changed and self.runs and now - self._listed < LIST_EVERY_S:
            return
        self.runs, warnings = list_runs(self.folder)
        self._folder_changed, self._listed = changed, now
        if not self.runs:
            self.run = None
            self.waiting_for = "; ".join(warnings) or (
                f"no run in {self.folder} yet: start a server with EAGLETRACE=1 EAGLETRACE_DIR={self.folder}"
            )

    def _wanted(self) -> Path | None:
        paths = [info.path for info in self.runs]
        if self.pinned in paths:
            return self.pinned
        self.pinned = None
        return paths[-1] if paths else None

    def _open(self, path: Path) -> None:
        self.run = LiveRun(path)
        self.turned.clear()
        self._known, self._rounds_diagnosed = None, -1
        if self.diagnoser is not None:
            self.diagnoser.follow(path, self._changed)

    def _changed(self) -> bool:
        """Whether rounds or events came since the last diagnosis."""
        run = self.run
        mark = (run.counts.rounds + len(run.events)) if run is not None else 0
        changed, self._rounds_diagnosed = mark != self._rounds_diagnosed, mark
        return changed

    @property
    def index(self) -> int:
        """Place of the run that is shown in `runs`; -1 for none."""
        paths = [info.path for info in self.runs]
        return paths.index(self.run.path) if self.run is not None and self.run.path in paths else -1

    def choose(self, step: int) -> None:
        """Show the run so many places later; past the newest one the newest is followed again."""
        if not self.runs:
            return
        place = self.index + step
        self.pinned = self.runs[max(0, place)].path if place < len(self.runs) - 1 else None

    def follow_newest(self) -> None:
        """Show the newest run, and every newer one."""
        self.pinned = None

    # -- now --------------------------------------------------------------------------------------

    @property
    def end_ns(self) -> int:
        """The moment that "now" ends at: that of the newest counts, or the present where a live run stands still."""
        run = self.run
        if run is None or not run.course:
            return time.time_ns() if run is None or run.state == "live" else run.latest
        latest, present = run.course[-1][0], time.time_ns()
        here = run.info.host in (None, socket.gethostname())
        if run.state == "live" and here and present - latest > BEHIND_S * 1e9:
            return present
        return latest

    def now(self) -> Counts:
        """Counts of the last seconds."""
        return self.run.last(NOW_S, self.end_ns) if self.run is not None else Counts()

    def seconds_of(self, window_s: float) -> float:
        """How much of a window the run has existed for, at least one second."""
        if self.run is None:
            return window_s
        age = (self.end_ns - self.run.info.start_time_unix_nano) / 1e9
        return min(window_s, max(1.0, age))

    @property
    def window_s(self) -> float:
        """How far back the course is shown."""
        age = self.seconds_of(WINDOWS_S[-1])
        return next(window for window in WINDOWS_S if age <= window)

    def course(self, columns: int) -> list[Counts]:
        """Counts of the last minutes for so many columns, oldest first; neighbours may share a part."""
        parts = [Counts() for _ in range(max(1, min(columns, int(self.window_s / PART_S))))]
        if self.run is not None:
            end, width = self.end_ns, self.window_s * 1e9 / len(parts)
            for time_ns, counts in reversed(self.run.course):
                back = int((end - time_ns) / width)
                if back >= len(parts):
                    break
                if back >= 0:
                    parts[-1 - back].add(counts)
        return [parts[column * len(parts) // columns] for column in range(max(1, columns))]

    def recent(self) -> Counts:
        """Counts of all of the window."""
        return self.run.last(self.window_s, self.end_ns) if self.run is not None else Counts()

    # -- diagnosis --------------------------------------------------------------------------------

    @property
    def diagnosed(self) -> Diagnosed | None:
        """The newest diagnosis of the run that is shown."""
        newest = self.diagnoser.newest if self.diagnoser is not None else None
        return newest if newest is not None and self.run is not None and newest.path == self.run.path else None

    def _note_turned(self) -> None:
        newest = self.diagnosed
        if newest is None or newest is self._known or newest.diagnosis is None:
            return
        before = self._known.diagnosis.checks if self._known is not None and self._known.diagnosis is not None else ()
        known = {check.id: check.status for check in before}
        for check in newest.diagnosis.checks:
            if known.get(check.id, check.status) != check.status:
                self.turned.appendleft(Turned(newest.at, check.id, known[check.id], check.status, check.reason))
        self._known = newest
