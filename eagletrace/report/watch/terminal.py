"""The terminal of the live view: keys without Enter, signals, and everything put back as it stood."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import FrameType

ESCAPES = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
    "[Z": "shift-tab", "[5~": "page-up", "[6~": "page-down", "[H": "home", "[F": "end", "[1~": "home", "[4~": "end",
}  # fmt: skip
NAMES = {"\t": "tab", " ": "space", "\x1b": "escape", "\r": "enter", "\n": "enter", "\x0c": "redraw"}


def parse_keys(text: str) -> list[str]:
    """Names of the keys in what a terminal sent; sequences that are not known are left out."""
    keys: list[str] = []
    place = 0
    while place < len(text):
        if text[place] == "\x1b" and text[place + 1 : place + 2] in ("[", "O"):
            end = place + 2
            while end < len(text) and not ("@" <= text[end] <= "~"):
                end += 1
            name = ESCAPES.get(text[place + 1 : end + 1])
            keys += [name] if name else []
            place = end + 1
        else:
            keys.append(NAMES.get(text[place], text[place]))
            place += 1
    return keys


class Terminal:
    """Keys from stdin if it is a terminal; a context manager. `ended` and `suspended` say which signals came."""

    def __init__(self) -> None:
        self.ended = self.suspended = False
        self._keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None  # pyright: ignore[reportUnnecessaryComparison]
        self._before: list[object] | None = None
        self._signals: dict[int, object] = {}
        self._wake: tuple[int, int] = (-1, -1)

    def __enter__(self) -> Terminal:
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: self._end, signal.SIGHUP: self._end, signal.SIGINT: self._end,
            signal.SIGWINCH: self._nothing, signal.SIGTSTP: self._suspend,
        }  # fmt: skip
        for number, handler in handlers.items():
            self._signals[number] = signal.signal(number, handler)
        self.raw()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        signal.set_wakeup_fd(-1)
        for number, handler in self._signals.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        for end in self._wake:
            os.close(end)

    def raw(self) -> None:
        """Give keys one by one, and do not show them."""
        if self._keyboard is not None:
            with contextlib.suppress(termios.error):
                self._before = termios.tcgetattr(self._keyboard)
                tty.setcbreak(self._keyboard, termios.TCSADRAIN)  # what was typed ahead stays

    def restore(self) -> None:
        """Make the keyboard what it was."""
        if self._keyboard is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)  # pyright: ignore[reportArgumentType]

    def wait(self, timeout_s: float) -> list[str]:
        """Keys that were pressed; returns early for a key, a signal and a new size of the window."""
        sources = [self._wake[0], *([self._keyboard] if self._keyboard is not None else [])]
        with contextlib.suppress(InterruptedError):
            ready, _, _ = select.select(sources, [], [], max(0.0, timeout_s))
            if self._wake[0] in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], 4096)
            if self._keyboard is not None and self._keyboard in ready:
                return self._read(self._keyboard)
        return []

    def _read(self, keyboard: int) -> list[str]:
        try:
            data = os.read(keyboard, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self.ended, self._keyboard = True, None
        return parse_keys(data.decode("utf-8", "replace"))

    def stop_here(self) -> None:
        """Stop as Ctrl-Z asks for; returns when the shell lets this go on."""
        self.suspended = False
        self.restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.raw()

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        self.ended = True

    def _suspend(self, _signal: int, _frame: FrameType | None) -> None:
        self.suspended = True

    @staticmethod
    def _nothing(_signal: int, _frame: FrameType | None) -> None:
        pass
