"""Names of a run's files, and how they come to be: private, whole, or not there.

File names are `<host>-<pid>-<first>-<last>.parquet`, where first and last are sequence numbers of one writer's
flushes of one table. A merged file covers the range of its sources, so a reader that sees both leaves the
contained ones out. What is being written ends in `.tmp`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

NAME = re.compile(r"(?P<stem>[A-Za-z0-9._]+-\d+)-(?P<first>\d+)-(?P<last>\d+)\.(?P<kind>parquet|tmp)")
FOLDER_MODE, FILE_MODE = 0o700, 0o600  # token ids are users' text: for the server's user alone, whatever the umask


@dataclass(frozen=True)
class TraceFile:
    """One closed file: the numbers that it covers, when its last rows were written (seconds), and its size."""

    first: int
    last: int
    path: Path
    written: float
    bytes: int


def safe_host(host: str) -> str:
    """Host name as it may stand in a file name."""
    return re.sub(r"[^A-Za-z0-9.]", "_", host) or "host"


def private_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter; parents of the run folder as the umask says."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(FOLDER_MODE)
        folder.chmod(FOLDER_MODE)


def create_private(path: Path) -> int:
    """Create a new file in place of what a killed process of the same name left; returns its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except FileExistsError:
        path.unlink()
        descriptor = os.open(path, flags, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_private(path: Path, data: Any) -> None:
    """Write a new private file; what was written of it is removed when that fails."""
    descriptor = create_private(path)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def open_private(path: Path) -> Any:
    """A new private file as Arrow writes into it."""
    os.close(create_private(path))
    return pa.OSFile(str(path), "wb")


def file_at(path: Path) -> TraceFile | None:
    """The closed file at a path; None if it is gone, no regular file, or not named as ours are."""
    match = NAME.fullmatch(path.name)
    if match is None or match["kind"] != "parquet":
        return None
    try:
        seen = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    return TraceFile(int(match["first"]), int(match["last"]), path, seen.st_mtime, seen.st_size)


def names_by_writer(folder: Path) -> dict[str, list[str]]:
    """Names that follow our scheme, temporaries among them, by writer (`<host>-<pid>`)."""
    found: dict[str, list[str]] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return found
    for name in names:
        if match := NAME.fullmatch(name):
            found.setdefault(match["stem"], []).append(name)
    return found


def split_covered(files: Iterable[TraceFile]) -> tuple[list[TraceFile], list[TraceFile]]:
    """Files of one writer and table, by number: those that count, and those that another one covers."""
    kept: list[TraceFile] = []
    covered: list[TraceFile] = []
    end = -1
    for file in sorted(files, key=lambda f: (f.first, -f.last)):
        if file.last > end:
            kept.append(file)
            end = file.last
        else:
            covered.append(file)
    return kept, covered


def remove(path: Path) -> bool:
    """Unlink a file; False if that could not be done, or it was gone."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
