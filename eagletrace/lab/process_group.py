"""A child process in a group of its own that cannot outlive this process, however this process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

KILL_TIMEOUT_S = 5.0
"""Bound on waiting for killed processes to go."""
_GUARD = 'read _; kill -s KILL -- "-$1"; test -z "$2" || rm -f -- "$2"'
"""Run by sh: `read` returns when this process, which holds the other end, is gone."""


class ProcessGroup:
    """A process and its descendants, as one group.

    A guard process waits for the end of this one and then kills the group: the descendants of a server
    that is killed while they still start would otherwise be left. `remove` is a file to delete with it.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], output: IO[Any], remove: Path | None = None
    ) -> None:
        self.leader = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "lab-guard", str(self.leader.pid), str(remove or "")],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int | None:
        """Exit status of the leader; None while it runs."""
        return self.leader.poll()

    def terminate(self, grace_s: float) -> None:
        """SIGTERM to the leader, and wait that long for its end."""
        if self.leader.poll() is None:
            self.leader.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.leader.wait(grace_s)

    def kill(self) -> None:
        """SIGKILL to every process of the group; returns when they are gone."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while self._signal(signal.SIGKILL) and _any_alive(self.leader.pid) and time.monotonic() < deadline:
            self.leader.poll()
            time.sleep(0.02)
        self.leader.wait()
        self._guard.kill()
        self._guard.communicate()

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal to the group; False when nothing is left in it."""
        try:
            os.killpg(self.leader.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _any_alive(group: int) -> bool:
    """Whether a process of the group still runs; zombies that nobody reaps do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            state, _parent, of_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                return True
    return False
