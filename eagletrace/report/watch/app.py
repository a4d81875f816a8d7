"""Runs the live view: reads the folder about once a second, draws, and does what the keys say."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from eagletrace.errors import EagletraceError
from eagletrace.report.console import is_fancy, make_console, print_parts
from eagletrace.report.diagnoser import Diagnoser
from eagletrace.report.watch.frame import VIEWS, Shown, frame
from eagletrace.report.watch.session import Session
from eagletrace.report.watch.terminal import Terminal

PAGE = 10  # lines
FIRST_DIAGNOSIS_S = 120.0
LONGEST_LINE = 10_000


class App:
    """The view and what the keyboard does to it."""

    def __init__(self, session: Session, console: Console, interval_s: float) -> None:
        self.session, self.shown = session, Shown()
        self._console, self._interval_s = console, interval_s
        self.quit = False

    def render(self) -> RenderableType:
        """The frame for the terminal as large as it is now."""
        width, height = self._console.size
        return frame(self.session, self.shown, width, height, fancy=is_fancy(self._console))

    def press(self, key: str) -> None:
        """Do what a key says; others do nothing."""
        shown, step = self.shown, {"up": -1, "down": 1, "page-up": -PAGE, "page-down": PAGE, "k": -1, "j": 1}
        if key in ("q", "Q"):
            self.quit = True
        elif key in ("p", "space"):
            shown.paused = not shown.paused
        elif key in ("h", "?"):
            shown.help = not shown.help
        elif key == "escape":
            shown.help = False
        elif key in ("tab", "shift-tab"):
            self._view((shown.view + (1 if key == "tab" else -1)) % len(VIEWS))
        elif len(key) == 1 and key.isdigit() and 0 < int(key) <= len(VIEWS):
            self._view(int(key) - 1)
        elif key in ("left", "right"):
            self.session.choose(-1 if key == "left" else 1)
            self.session.refresh()
        elif key == "n":
            self.session.follow_newest()
            self.session.refresh()
        elif key in step:
            shown.scroll = max(0, shown.scroll + step[key])
        elif key == "home":
            shown.scroll = 0

    def _view(self, view: int) -> None:
        self.shown.view, self.shown.scroll, self.shown.help = view, 0, False

    def run(self) -> None:
        """Show until a key or a signal ends it."""
        with Terminal() as terminal:
            live = self._live()
            due = 0.0
            try:
                while not (self.quit or terminal.ended):
                    if not self.shown.paused and time.monotonic() >= due:
                        self.session.refresh()
                        due = time.monotonic() + self._interval_s
                    live.update(self.render(), refresh=True)
                    wait = self._interval_s if self.shown.paused else due - time.monotonic()
                    for key in terminal.wait(wait):
                        self.press(key)
                    if terminal.suspended:
                        live.stop()
                        terminal.stop_here()
                        live = self._live()
            finally:
                live.stop()

    def _live(self) -> Live:
        live = Live(self.render(), console=self._console, screen=True, auto_refresh=False, redirect_stdout=False,
                    redirect_stderr=False, vertical_overflow="crop")  # fmt: skip
        live.start()
        return live


def watch(folder: Path, *, once: bool = False, interval_s: float = 1.0) -> int:
    """Show the folder's newest run until it is ended, or one frame; returns the exit status."""
    if folder.exists() and not folder.is_dir():
        raise EagletraceError(f"{folder} is a file, not a run folder or a folder of runs")
    # COLUMNS and LINES, where they are exported, are the size of a window that may have changed since.
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, _environ=variables)
    diagnoser = Diagnoser()
    session = Session(folder, diagnoser)
    diagnoser.start()
    try:
        if once or not is_fancy(console):
            return _print_once(session)
        App(session, console, interval_s).run()
    finally:
        diagnoser.stop()
    return 0


def _print_once(session: Session) -> int:
    session.refresh()
    if session.run is None:
        raise EagletraceError(session.waiting_for or f"no run in {session.folder}")
    until = time.monotonic() + FIRST_DIAGNOSIS_S
    while session.diagnosed is None and time.monotonic() < until:
        time.sleep(0.05)
    console = make_console()
    width, fancy = console.width, is_fancy(console)
    if not fancy:  # lines that grep reads: laid out as for this width, and never cut
        console.width = LONGEST_LINE
    print_parts(console, [frame(session, Shown(), width, None, fancy=fancy)])
    return 0
