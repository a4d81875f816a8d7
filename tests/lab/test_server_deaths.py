"""However a real server dies, all that its users had seen a flush and a second before is in the run, once.

Each way costs two servers, a traced and an untraced one, so these are for `make soak`; `make test` has a kill of all
processes (`test_recording.py`) and an exception of the engine (`test_server_faults.py`).
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.served import FLUSH_S, Served, Streams, check_run, is_running

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.soak]
DELAY_S = 2.0
"""By how much tracing may delay the end of a server."""
TIMEOUT_S = 90.0

WAYS: dict[str, Callable[[Served], object]] = {
    "SIGTERM": lambda s: os.kill(s.server.pid, signal.SIGTERM),
    "SIGINT": lambda s: os.kill(s.server.pid, signal.SIGINT),
    "SIGINT of all, as Ctrl-C": lambda s: os.killpg(s.server.pid, signal.SIGINT),
    "SIGQUIT": lambda s: os.kill(s.server.pid, signal.SIGQUIT),
    "SIGTERM of the scheduler": lambda s: os.kill(s.scheduler, signal.SIGTERM),
    "SIGQUIT of the scheduler": lambda s: os.kill(s.scheduler, signal.SIGQUIT),
    "exception": lambda s: s.call("break_engine", wait=False),
    "os._exit": lambda s: s.call("leave", wait=False),
    "death of the parent": lambda s: os.kill(s.server.pid, signal.SIGKILL),
}
DRAINED = re.compile(r"Gracefully exiting... Remaining number of requests 0")
"""SGLang looks for a SIGTERM every 5 s: only what follows can be compared."""


def end(served: Served, way: str) -> tuple[Streams, float, float]:
    """Let a server that streams die; its clients, when, and for how many seconds it and its scheduler went on."""
    with Streams(served.server) as streams:
        streams.wait_for(300)
        time.sleep(FLUSH_S + 2.0)
        died, start = time.time(), time.monotonic()
        WAYS[way](served)
        streams.finish()
        while served.server.alive or is_running(served.scheduler):
            assert time.monotonic() - start < TIMEOUT_S, "the server did not end"
            if way == "SIGTERM" and not DRAINED.search(served.log):
                start, died = time.monotonic(), time.time()
            time.sleep(0.01)
    return streams, died, time.monotonic() - start


@pytest.mark.parametrize("way", WAYS)
def test_what_users_saw_survives_and_the_end_is_not_delayed(way: str, tmp_path: Path) -> None:
    with Served(tmp_path / "traced") as traced:
        streams, died, seconds = end(traced, way)
    assert check_run(traced.run, streams.requests, died) > 0
    with Served(tmp_path / "plain", tracing=False) as plain:
        untraced = end(plain, way)[2]
    assert seconds <= untraced + DELAY_S


def test_sigterm_while_the_disk_hangs(tmp_path: Path) -> None:
    with Served(tmp_path / "traced") as traced:
        traced.call("hang_disk", 120.0)
        time.sleep(FLUSH_S + 1.0)
        seconds = end(traced, "SIGTERM")[2]
    with Served(tmp_path / "plain", tracing=False) as plain:
        untraced = end(plain, "SIGTERM")[2]
    assert seconds <= untraced + DELAY_S


@pytest.mark.parametrize("number", range(5))
def test_kill_nine(number: int, tmp_path: Path) -> None:
    with Served(tmp_path) as served, Streams(served.server) as streams:
        streams.wait_for(300)
        time.sleep(FLUSH_S + 1.5 + number * 0.37)
        died = time.time()
        os.kill(served.scheduler, signal.SIGKILL)
        while served.server.alive:
            time.sleep(0.02)
    assert check_run(served.run, streams.requests, died) > 0
