"""Bounds that a command sets on its own process."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Generator
from pathlib import Path

FILES = 4_096  # a run of a day has some hundred files


@contextlib.contextmanager
def many_files() -> Generator[None, None, None]:
    """Let the process open as many files as a large run has, where the hard limit allows it."""
    with _soft_limit(resource.RLIMIT_NOFILE, FILES, at_least=True):
        yield


@contextlib.contextmanager
def bounded_memory(size: int) -> Generator[None, None, None]:
    """Let allocations fail that would take `size` bytes more than the process has now."""
    with _soft_limit(resource.RLIMIT_DATA, _data_bytes() + size, at_least=False):
        yield


def _data_bytes() -> int:
    """What the kernel counts against the limit now."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def _soft_limit(what: int, value: int, *, at_least: bool) -> Generator[None, None, None]:
    soft, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    unlimited = soft == resource.RLIM_INFINITY
    if (unlimited or soft >= value) if at_least else (not unlimited and soft <= value):
        yield
        return
    try:
        resource.setrlimit(what, (value, hard))
    except (OSError, ValueError):  # a sandbox that forbids it: the bound that there is stays
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))
