"""Keeps a run folder within its bound: the oldest detail of any process goes first, facts and totals never."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES
from eagletrace.record.files import NAME, TraceFile, file_at, remove, split_covered


@dataclass
class Usage:
    """What a run folder holds: bytes of all of its files, and the detail files that may go."""

    bytes: int
    files: int
    detail: list[tuple[str, TraceFile]]
    covered: set[Path]


def usage(run_dir: Path) -> Usage:
    """Look at every file of a run, temporaries among them."""
    found = Usage(0, 0, [], set())
    for entry in _entries(run_dir):
        _count(found, entry)
    for table, description in TABLES.items():
        by_writer: dict[str, list[TraceFile]] = {}
        for entry in _entries(run_dir / table):
            _count(found, entry)
            file = file_at(Path(entry.path)) if description.detail else None
            if file is not None and (match := NAME.fullmatch(entry.name)):
                by_writer.setdefault(match["stem"], []).append(file)
                found.detail.append((table, file))
        for files in by_writer.values():
            found.covered.update(f.path for f in split_covered(files)[1])
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _count(found: Usage, entry: os.DirEntry[str]) -> None:
    try:
        if entry.is_file(follow_symlinks=False):
            found.bytes += entry.stat(follow_symlinks=False).st_size
            found.files += 1
    except FileNotFoundError:
        pass


@contextmanager
def alone(run_dir: Path) -> Generator[bool]:
    """Whether this process alone works on the whole folder; False while another one does."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # no locks on this file system
            pass
        yield True
    finally:
        os.close(descriptor)


def enforce(run_dir: Path, max_bytes: int) -> tuple[dict[str, int], set[Path]]:
    """Delete the oldest detail until the run fits `max_bytes`: rows lost by table, and the files gone."""
    found = usage(run_dir)
    lost: Counter[str] = Counter()
    gone: set[Path] = set()
    if found.bytes <= max_bytes:
        return {}, gone
    with alone(run_dir) as mine:
        if not mine:  # another process is at it
            return {}, gone
        found = usage(run_dir)
        for table, file in sorted(found.detail, key=lambda item: item[1].written):
            if found.bytes <= max_bytes:
                break
            rows = 0 if file.path in found.covered else _rows(file.path)
            if remove(file.path):
                lost[table] += rows
                gone.add(file.path)
                found.bytes -= file.bytes
                found.files -= 1
    return {table: rows for table, rows in lost.items() if rows}, gone


def _rows(path: Path) -> int:
    try:
        return pq.read_metadata(path).num_rows
    except (OSError, pa.ArrowException):
        return 0
