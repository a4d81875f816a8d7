"""A terminal for tests: `eagletrace watch` in a pseudo-terminal, its screen kept by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import environ

pyte = pytest.importorskip("pyte")


class Screen:
    """A program on a terminal of so many columns and lines; a context manager that ends it."""

    def __init__(self, *arguments: str | Path, columns: int = 80, lines: int = 24, **variables: str) -> None:
        self.leader, self.follower = pty.openpty()
        self.before = termios.tcgetattr(self.follower)
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._set_size(columns, lines)
        command = [sys.executable, "-m", "eagletrace.cli", "watch", *map(str, arguments)]
        given = environ(TERM="xterm-256color", PYTHONUTF8="1", **variables)
        given.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            command, stdin=self.follower, stdout=self.follower, stderr=self.follower, env=given,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        """Give the window another size; the kernel tells the program."""
        self._screen.resize(lines, columns)
        self._screen.reset()
        self._set_size(columns, lines)

    def read(self, seconds: float = 0.05) -> None:
        """Take what the program writes."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.leader in select.select([self.leader], [], [], left)[0]:
                try:
                    data = os.read(self.leader, 1 << 16)
                except OSError:  # the program has closed it
                    return
                self.raw += data
                self._stream.feed(data)

    @property
    def text(self) -> list[str]:
        """The lines of the screen."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def whole(self) -> str:
        """All of it."""
        return "\n".join(self.text)

    def wait_for(self, condition: str | Callable[[str], bool], timeout_s: float = 30.0) -> str:
        """The screen once it shows a text, or a condition on it holds."""
        until = time.monotonic() + timeout_s
        while True:
            self.read()
            shown = self.whole
            if (condition in shown) if isinstance(condition, str) else condition(shown):
                return shown
            assert time.monotonic() < until, f"not shown: {condition}\n{shown}"
            assert self.process.poll() is None, f"ended with {self.process.returncode}\n{shown}"

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self.leader, keys.encode())

    def ended(self, timeout_s: float = 30.0) -> int:
        """Its exit status."""
        until = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < until, self.whole
            self.read()
        self.read(0.1)
        return self.process.returncode

    @property
    def restored(self) -> bool:
        """Whether the keyboard is as it was, the cursor is shown, and the screen from before is back."""
        now = termios.tcgetattr(self.follower)
        return (
            now == self.before
            and self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l") > 0
            and self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")
        )

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
        os.close(self.leader)
        os.close(self.follower)
