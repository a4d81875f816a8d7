"""Which writers of a run are alive. A process holds a lock on its `process-<host>-<pid>.json` for as long as it lives.

The kernel gives the lock up when the process ends, however it ends. Where a file system has no locks, a writer is
taken for alive while its process id runs on this host, or until it has written nothing for an hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Generator
from pathlib import Path

from eagletrace.record.files import safe_host

IDLE_S = 600.0  # a process id that runs may be another process's by now
IDLE_ELSEWHERE_S = 3600.0
_STEM = re.compile(r"(?P<host>[A-Za-z0-9._]+)-(?P<pid>\d+)")
_held: dict[Path, int] = {}


def process_file(run_dir: Path, stem: str) -> Path:
    """`process-<host>-<pid>.json` of a writer."""
    return run_dir / f"process-{stem}.json"


def hold(path: Path) -> bool:
    """Lock this process's own file for its lifetime; False if another one holds it."""
    held = _held.get(path)
    if held is not None and _is_same(path, held):
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True  # nobody can hold what is not there
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:  # no locks on this file system
        os.close(descriptor)
        return True
    if held is not None:
        with contextlib.suppress(OSError):
            os.close(held)
    _held[path] = descriptor
    return True


def _is_same(path: Path, descriptor: int) -> bool:
    """Whether a held descriptor is still that of the file at the path; the folder may have been deleted."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def release(path: Path) -> None:
    """Give the lock on a process's own file up."""
    descriptor = _held.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


def _forget_in_child() -> None:
    """A fork shares its parent's locks until it closes them; it is no writer."""
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def if_dead(run_dir: Path, stem: str, last_written: float) -> Generator[bool]:
    """Whether the writer is dead; while it is held dead, no other process adopts or repairs its files.

    `last_written` is the time of its newest file, in seconds.
    """
    path = process_file(run_dir, stem)
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield _is_dead(descriptor, stem, last_written)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _is_dead(descriptor: int | None, stem: str, last_written: float) -> bool:
    if descriptor is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        else:
            with contextlib.suppress(OSError):
                if b'"lock"' in os.pread(descriptor, 1 << 16, 0):  # it locks while it lives: it does not live
                    return True
    idle = time.time() - last_written
    match = _STEM.fullmatch(stem)
    if match is None or match["host"] != safe_host(socket.gethostname()):
        return idle > IDLE_ELSEWHERE_S
    return idle > IDLE_S or not _runs(int(match["pid"]))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def writers(run_dir: Path) -> list[str]:
    """Every writer that has a process file in the run, as `<host>-<pid>`."""
    names = sorted(path.name for path in run_dir.glob("process-*.json"))
    stems = [name.removeprefix("process-").removesuffix(".json") for name in names]
    return [stem for stem in stems if _STEM.fullmatch(stem)]


def newest_written(paths: list[Path]) -> float:
    """The newest modification time of paths, 0 without any."""
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(path.lstat().st_mtime)
    return max(times)
