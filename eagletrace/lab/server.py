"""A real SGLang server in a child process: started on a free port, waited for, stopped for sure."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from eagletrace.errors import EagletraceError
from eagletrace.lab.engines import Engine, engine_python
from eagletrace.lab.process_group import ProcessGroup

START_TIMEOUT_S = 300.0
"""A start takes 10 to 30 s alone on two cores; a busy machine needs far more."""
STOP_GRACE_S = 25.0
"""SGLang polls for SIGTERM every 5 s and gives its schedulers 15 s."""
DEATH_TIMEOUT_S = 20.0
"""From a scheduler's exception to the end of the main process."""
LOG_TAIL_LINES = 30
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = 10_000
"""Of so many ports below the kernel's range one is chosen."""
PORT_TAKEN = "address already in use"
"""What uvicorn writes where it cannot bind; SGLang's processes stay up without a listener then."""
PORT_IN_USE = "port {} cannot be bound on 127.0.0.1 (another process listens there?): choose another port, or none"


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
    """A TCP port on 127.0.0.1 that nothing listened on a moment ago.

    A server binds it many seconds later. Until then the kernel may give any port of its own range to an
    outgoing connection, so the port is from below that range (`ip_local_port_range`, ip(7)).
    """
    choose = random.SystemRandom()  # a caller's seed would give every caller the same port
    low = _first_ephemeral_port()
    for _attempt in range(100):
        if is_free(port := choose.randrange(low - PORTS, low)):
            return port
    raise EagletraceError(f"no free TCP port found between {low - PORTS} and {low - 1}; pass --port")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _first_ephemeral_port() -> int:
    """The lowest port that the kernel gives away by itself, or Linux's default of it where that is no use."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        low = int(EPHEMERAL_PORTS.read_text().split()[0])
        if low > PORTS + 1024:
            return low
    return 32768


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
    own variables there. With `log` None the output goes to a temporary file, removed at the end;
    with `show_output` it goes to this process's stderr instead.
    """

    def __init__(
        self,
        engine: Engine,
        flags: Mapping[str, str | int | float | bool | None],
        env: Mapping[str, str],
        *,
        port: int | None = None,
        log: Path | None = None,
        show_output: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.engine = engine
        self.port = port or free_port()
        self.flags = {**flags, "host": "127.0.0.1", "port": self.port}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("EAGLETRACE")} | {**env}
        self.start_timeout_s = start_timeout_s
        self._log, self._own_log, self._show_output = log, log is None, show_output
        self._group: ProcessGroup | None = None
        self._last_words = ""
        self._died = False

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server's main process (also its process group)."""
        if self._group is None:
            raise EagletraceError("the lab server was not started")
        return self._group.leader.pid

    @property
    def alive(self) -> bool:
        """Whether the main process still runs."""
        return self._group is not None and self._group.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the main process; None while it runs."""
        return None if self._group is None else self._group.exit_code

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
        """Start the process and return at once; ServerFailedError when its port is taken already."""
        if not is_free(self.port):
            raise ServerFailedError(PORT_IN_USE.format(self.port))
        line = command(self.engine, self.flags)
        if self._show_output:
            self._group = ProcessGroup(line, self.env, sys.stderr)
            return
        with self._open_log() as log:
            self._group = ProcessGroup(line, self.env, log, remove=self._log if self._own_log else None)

    def _open_log(self) -> IO[bytes]:
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="lab-server-", suffix=".log")
            os.close(handle)
            self._log = Path(name)
        return self._log.open("ab")

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
            if PORT_TAKEN in self.log_tail():
                raise ServerFailedError(PORT_IN_USE.format(self.port))
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
        try:
            if self._group is not None:
                self._group.terminate(STOP_GRACE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the group, at once."""
        if self._group is None:
            return
        self._group.kill()
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
        if kind is None or issubclass(kind, SystemExit | KeyboardInterrupt):
            self.stop()
        else:
            self.kill()

    def _exchange(self, request: urllib.request.Request, timeout_s: float) -> Exchange:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return Exchange(answer.status, _decoded(answer.read()))
        except urllib.error.HTTPError as error:
            return Exchange(error.code, _decoded(error.read()))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EngineDiedError(f"the server did not answer: {error}") from error


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def exit_on_signals(signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGHUP)) -> None:
    """Turn signals into SystemExit, so that context managers run; for a command's main thread."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in signals:
        signal.signal(number, leave)
