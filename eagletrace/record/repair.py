"""Mends a run whose processes are dead: removes what they left half done, and merges what they wrote.

Only files named as ours are touched, and none of a writer that is alive. Rows that were not recorded are reported.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES
from eagletrace.record.adopt import clean
from eagletrace.record.bound import alone
from eagletrace.record.files import TraceFile, file_at, names_by_writer, remove
from eagletrace.record.liveness import if_dead, newest_written, process_file, writers
from eagletrace.record.merge import EVERYTHING
from eagletrace.record.writer import TraceWriter


class BusyError(Exception):
    """Another process works on the run's files at this moment."""


def repair(run_dir: Path) -> dict[str, Any]:
    """Repair a run folder; returns what was done and what is missing. BusyError if another process is at it."""
    with alone(run_dir) as mine:
        if not mine:
            raise BusyError(f"another process is merging or repairing {run_dir}; try again in a minute")
        return _repair(run_dir)


def _repair(run_dir: Path) -> dict[str, Any]:
    before = _files(run_dir)
    removed = covered = 0
    live: list[str] = []
    with contextlib.ExitStack() as held:
        dead: list[str] = []
        for stem in sorted({*writers(run_dir), *(s for t in TABLES for s in names_by_writer(run_dir / t))}):
            paths = [run_dir / t / n for t in TABLES for n in names_by_writer(run_dir / t).get(stem, [])]
            newest = newest_written([*paths, process_file(run_dir, stem)])
            (dead if held.enter_context(if_dead(run_dir, stem, newest)) else live).append(stem)
        merger = _Merger(run_dir, dead)
        for table in TABLES:
            for stem, names in names_by_writer(run_dir / table).items():
                if stem in dead:
                    files, temporaries, doubled = clean(run_dir / table, names)
                    removed += temporaries
                    covered += doubled
                    merger.take(table, stem, files)
        merger.merge(EVERYTHING)
    removed += sum(map(remove, _temporaries_of_create(run_dir, dead)))
    return {
        "temporaries_removed": removed, "covered_files_removed": covered, "files_before": before,
        "files_after": _files(run_dir), "live_writers": live, "unreadable": merger.unreadable(),
        "rows_lost": rows_lost(run_dir),
    }  # fmt: skip


class _Merger(TraceWriter):
    """Merges the files of dead writers under the name of one of them."""

    def __init__(self, run_dir: Path, dead: list[str]) -> None:
        super().__init__(run_dir, {})
        self._dead = dead
        self.stem = dead[0] if dead else self.stem

    def take(self, table: str, stem: str, files: list[TraceFile]) -> None:
        """Take files over: those of the chosen name as they are, others by renaming them to its next numbers."""
        if table not in self._next:
            own = names_by_writer(self.run_dir / table).get(self.stem, [])
            known = [f for f in (file_at(self.run_dir / table / name) for name in own) if f is not None]
            self._next[table] = max((f.last for f in known), default=-1) + 1
            self._files[table] = []
        for file in files:
            if stem == self.stem:
                self._files[table].append(file)
            else:
                self._take_in(table, file)

    def holds_files(self) -> bool:
        """The dead writers' files are held by the caller."""
        return True

    def unreadable(self) -> list[str]:
        """Names of files that could not be read, or have other columns; they were left as they are."""
        return sorted(str(path.relative_to(self.run_dir)) for path in self._fixed)


def _temporaries_of_create(run_dir: Path, dead: list[str]) -> Iterator[Path]:
    """What a process left that was killed while it created `run.json` or its own file: `.<name>.<pid>.tmp`."""
    pids = {stem.rpartition("-")[2] for stem in dead}
    for path in run_dir.glob(".*.json.*.tmp"):
        if path.name.split(".")[-2] in pids and not path.is_symlink():
            yield path


def _files(run_dir: Path) -> int:
    return sum(1 for table in TABLES for names in names_by_writer(run_dir / table).values() for _ in names)


def rows_lost(run_dir: Path) -> dict[str, int]:
    """Rows that were not recorded, by reason, as the totals of all processes say."""
    lost: Counter[str] = Counter()
    folder = run_dir / "totals"
    for names in names_by_writer(folder).values():
        for name in names:
            with contextlib.suppress(OSError, pa.ArrowException, ValueError):
                column = pq.read_table(folder / name, columns=["dropped_rows_by_reason"], use_threads=False).column(0)
                for text in column.to_pylist():
                    lost.update(json.loads(text or "{}"))
    return dict(sorted(lost.items()))
