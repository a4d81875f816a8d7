"""Finds runs in a data set and copies what a command reads of one into a cache on this machine.

A copy looks like a run folder, so that everything that reads one reads it, DuckDB as locked as ever. A table is fetched
when it is first opened. Files never change under a name, so that what is cached stays right.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from eagletrace.errors import EagletraceError, NotARunError
from eagletrace.format import TABLES
from eagletrace.store.dataset.layout import MARKER, RUNS, Stored, current, groups, run_folder, run_of, table_folder
from eagletrace.store.dataset.place import Place, RemoteError
from eagletrace.store.files import LARGE_FILE_BYTES
from eagletrace.store.folder import MAX_RUN_JSON_BYTES, RunInfo, read_info

CACHE_DIR = "EAGLETRACE_CACHE_DIR"
CACHE_BYTES = "EAGLETRACE_CACHE_BYTES"
DEFAULT_CACHE_BYTES = 16 << 30
MAX_NAME = 200


class CacheError(EagletraceError):
    """The cache cannot be used, or is too small for the run."""


def find(url: str) -> tuple[Place, list[str]]:
    """The data set at a URL, and its runs: all, or the one that the URL names; NotARunError where there is none."""
    place = Place(url)
    if place.exists(MARKER):
        runs = sorted({_run_in(file) for file in place.find(RUNS) if file.name == "run.json"})
        if not runs:
            raise NotARunError(
                f"{place.shown} is a data set without a run yet: `eagletrace export RUN --to dataset -o URL`"
            )
        return place, runs
    head, _, name = place.url.rpartition("/")
    if name and head and not head.endswith((":", "/")):
        parent = Place(head)
        if parent.exists(MARKER):
            if parent.exists(f"{run_folder(name)}/run.json"):
                return parent, [name]
            raise NotARunError(
                f"the data set {parent.shown} has no run {name!r}: `eagletrace runs {parent.shown}` lists them"
            )
    raise NotARunError(
        f"{place.shown} holds no run: it is neither a data set nor a run in one "
        "(`eagletrace export RUN --to dataset -o URL` makes one)"
    )


def _run_in(file: Stored) -> str:
    return run_of(file.path.rsplit("/", 2)[1])


class Source:
    """One run of a data set, as a folder of the cache. Held against removal until it is closed."""

    def __init__(self, place: Place, run: str) -> None:
        self._place, self._run = place, run
        key = hashlib.sha256(f"{place.url}\0{run}".encode()).hexdigest()[:24]
        self._base = _base() / key
        self.folder = self._base / (run if "/" not in run and run not in (".", "..") else "run")[:MAX_NAME]
        self._lock = _hold(self._base)
        try:
            self._copy_facts()
            self._files = {table: self._listed(table) for table in TABLES}
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> RunInfo:
        """What the run's `run.json` says."""
        return read_info(self.folder)

    def _copy_facts(self) -> None:
        """Copy the JSON files, `run.json` among them."""
        self.folder.mkdir(0o700, parents=True, exist_ok=True)
        for file in self._place.find(run_folder(self._run)):
            if file.name.endswith((".json", ".jsonl")) and not file.name.startswith("."):
                data = self._place.read(f"{run_folder(self._run)}/{file.name}", MAX_RUN_JSON_BYTES)
                _write(self.folder / file.name, data, file.changed)

    def _listed(self, table: str) -> dict[str, Stored]:
        found = current(
            groups(f for f in self._place.find(table_folder(table, self._run)) if f.name.endswith(".parquet"))
        )
        return {file.name: file for group in found for file in group.files}

    def large_files(self) -> list[str]:
        """Real paths that large files have, or will have once they were fetched; the largest first."""
        folder = self.folder.resolve()
        found = [
            (f.size, f"{folder}/{table}/{name}") for table, files in self._files.items() for name, f in files.items()
        ]
        return [path for size, path in sorted(found, reverse=True) if size >= LARGE_FILE_BYTES]

    def fetch(self, table: str) -> None:
        """Copy the files of one table that are not here yet; CacheError where there is no room for them."""
        wanted = self._files[table]
        folder = self.folder / table
        there = {path.name: path.stat().st_size for path in folder.glob("*.parquet")} if folder.is_dir() else {}
        for name in there.keys() - wanted.keys():
            (folder / name).unlink(missing_ok=True)
        missing = [file for name, file in wanted.items() if there.get(name) != file.size]
        if missing:
            _make_room(self._base, sum(file.size for file in missing), self._place.shown)
            folder.mkdir(0o700, exist_ok=True)
            self._get(missing, folder)

    def _get(self, files: list[Stored], folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._base, prefix=".fetch-") as name:
            targets = [Path(name) / str(number) for number in range(len(files))]
            rest = [(f, t) for f, t in zip(files, targets, strict=True) if not self._linked(f, t)]
            if rest:
                self._place.fetch([f for f, _ in rest], [t for _, t in rest])
            for file, target in zip(files, targets, strict=True):
                if target.stat().st_size != file.size:
                    raise RemoteError(
                        f"{self._place.shown}: {file.name} came with {target.stat().st_size} bytes of {file.size}"
                    )
                target.replace(folder / file.name)

    def _linked(self, file: Stored, target: Path) -> bool:
        """Of a data set on the same file system no copy is made."""
        if self._place.is_local:
            with contextlib.suppress(OSError):
                target.hardlink_to(file.path)
                return True
        return False

    def close(self) -> None:
        """Let go of the copy; may be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_source(url: str) -> Source:
    """The run that a URL names, or the newest of a data set."""
    place, runs = find(url)
    if len(runs) == 1:
        return Source(place, runs[0])
    starts = {run: _start(place, run) for run in runs}
    return Source(place, max(runs, key=lambda run: (starts[run], run)))


def _start(place: Place, run: str) -> int:
    import json

    try:
        found = json.loads(place.read(f"{run_folder(run)}/run.json", MAX_RUN_JSON_BYTES))
        start = found.get("start_time_unix_nano") if isinstance(found, Mapping) else 0
    except ValueError:
        return 0
    return start if isinstance(start, int) else 0


def _base() -> Path:
    given = os.environ.get(CACHE_DIR)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = (Path(given) if given else Path(home) / "eagletrace").expanduser()
    try:
        base.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"cannot create {base} ({error.strerror}): name another folder in {CACHE_DIR}") from None
    return base


def _limit() -> int:
    text = os.environ.get(CACHE_BYTES, "")
    if not text:
        return DEFAULT_CACHE_BYTES
    if not text.isdigit():
        raise CacheError(f"{CACHE_BYTES}={text} is not a number of bytes")
    return int(text)


def _hold(folder: Path) -> int:
    try:
        folder.mkdir(0o700, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(folder)  # when it was last used
    except OSError as error:
        raise CacheError(f"cannot use {folder} ({error.strerror}): name another folder in {CACHE_DIR}") from None
    return lock


def _make_room(own: Path, needed: int, shown: str) -> None:
    """Remove the runs that were not used for longest, until `needed` bytes fit."""
    limit = _limit()
    sizes = {folder: _size(folder) for folder in own.parent.iterdir() if folder.is_dir()}
    used = sum(sizes.values())
    for folder in sorted((f for f in sizes if f != own), key=lambda f: f.stat().st_mtime):
        if used + needed <= limit:
            return
        if _remove(folder):
            used -= sizes[folder]
    if used + needed > limit:
        raise CacheError(
            f"{shown}: {needed >> 20} MiB do not fit into the cache {own.parent} ({used >> 20} of {limit >> 20} MiB "
            f"are in use): set {CACHE_BYTES} higher, or name a larger disk in {CACHE_DIR}"
        )


def _remove(folder: Path) -> bool:
    """Remove a run that nobody reads now."""
    try:
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            seen = path.lstat()
            total += seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    return total


def _write(path: Path, data: bytes, changed: float) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.utime(temporary, (changed, changed))
    temporary.replace(path)
