"""A real SGLang server in a child process: started on a free port, waited for, stopped for sure."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from eagletrace.errors import EagletraceError
from eagletrace.lab.engines import Engine, engine_python

START_TIMEOUT_S = 300.0
"""A start takes 10 to 30 s alone on two cores; a busy machine needs far more."""
STOP_GRACE_S = 25.0
"""SGLang polls for SIGTERM every 5 s and gives its schedulers 15 s."""
KILL_TIMEOUT_S = 5.0
DEATH_TIMEOUT_S = 20.0
"""From a scheduler's exception to the end of the main process."""
LOG_TAIL_LINES = 30
_PR_SET_PDEATHSIG = 1


class ServerFailedError(EagletraceError):
    """The server did not come up; the message ends with the tail of its log."""


class EngineDiedError(EagletraceError):
    """The server was up and is gone."""


@dataclass(frozen=True)
class Exchange:
    """One HTTP answer: `status` and the decoded JSON (or text)."""

    status: int
    body: Any


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> Callable[[], None]:
    """What the child runs before exec: the kernel kills it when its parent dies, however that happens."""
    libc = ctypes.CDLL(None, use_errno=True)

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return arm


def command(engine: Engine, flags: Mapping[str, str | int | float | bool | None]) -> list[str]:
    """The command line; a flag that is True is a switch, one that is None or False is left out."""
    line = [str(engine_python(engine.version)), "-m", engine.module]
    for name, value in flags.items():
        if value is None or value is False:
            continue
        line.append(f"--{name}")
        if value is not True:
            line.append(str(value))
    return line


class LabServer:
    """One server process group, as a context manager.

    `env` is added to the caller's environment: the tracer is told what to do by nothing else than its
    own variables there. With `log` None the output goes to a temporary file, removed at the end.
    """

    def __init__(
        self,
        engine: Engine,
        flags: Mapping[str, str | int | float | bool | None],
        env: Mapping[str, str],
        *,
        port: int | None = None,
        log: Path | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.engine = engine
        self.port = port or free_port()
        self.flags = {**flags, "host": "127.0.0.1", "port": self.port}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("EAGLETRACE")} | {**env}
        self.start_timeout_s = start_timeout_s
        self._log, self._own_log = log, log is None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_words = ""
        self._died = False

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server's main process (also its process group)."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the main process still runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the main process; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def died(self) -> bool:
        """Whether the main process ended by itself (and was not stopped from here)."""
        return self._died

    def settles_alive(self, timeout_s: float = DEATH_TIMEOUT_S) -> bool:
        """Whether the server still answers once a crash, if it is in one, had time to finish."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.alive:
            with contextlib.suppress(EngineDiedError):
                if self.get("/health", timeout_s=5.0).status == 200:
                    return True
            time.sleep(0.25)
        return False

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines that the server wrote."""
        if self._log is None or not self._log.exists():
            return self._last_words
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def start(self) -> None:
        """Start the process and return at once."""
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="lab-server-", suffix=".log")
            os.close(handle)
            self._log = Path(name)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command(self.engine, self.flags),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )

    def wait_until_healthy(self) -> None:
        """Return when /health answers 200; ServerFailedError when it died or took too long."""
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if not self.alive:
                self._died = True
                raise ServerFailedError(
                    f"the server ended with status {self.exit_code} before it was ready; its log ends:\n"
                    f"{self.log_tail()}"
                )
            with contextlib.suppress(OSError, EngineDiedError):
                if self.get("/health", timeout_s=5.0).status == 200:
                    return
            time.sleep(0.25)
        raise ServerFailedError(
            f"the server was not ready after {self.start_timeout_s:.0f} s; its log ends:\n{self.log_tail()}"
        )

    def get(self, path: str, timeout_s: float = 30.0) -> Exchange:
        """GET a path."""
        return self._exchange(urllib.request.Request(self.url + path), timeout_s)

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float = 600.0) -> Exchange:
        """POST a JSON body; EngineDiedError when the server went away meanwhile."""
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        return self._exchange(request, timeout_s)

    def stop(self) -> None:
        """SIGTERM to the main process, then SIGKILL to the whole group; nothing is left afterwards."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the group, at once."""
        process = self._process
        if process is None:
            return
        deadline = time.monotonic() + KILL_TIMEOUT_S  # zombies that nobody reaps stay in the group
        while _signal_group(process.pid, signal.SIGKILL) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.02)
        process.wait()
        self._last_words = self.log_tail()
        if self._own_log and self._log is not None:
            self._log.unlink(missing_ok=True)

    def __enter__(self) -> LabServer:
        try:
            self.start()
            self.wait_until_healthy()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EagletraceError("the lab server was not started")
        return self._process

    def _exchange(self, request: urllib.request.Request, timeout_s: float) -> Exchange:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return Exchange(answer.status, _decoded(answer.read()))
        except urllib.error.HTTPError as error:
            return Exchange(error.code, _decoded(error.read()))
        except (OSError, ValueError) as error:
            raise EngineDiedError(f"the server did not answer: {error}") from error


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _signal_group(group: int, number: signal.Signals) -> bool:
    """Send a signal to a process group; False when nothing is left in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def exit_on_signals(signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP)) -> None:
    """Turn signals into SystemExit, so that context managers run; for a command's main thread."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in signals:
        signal.signal(number, leave)
