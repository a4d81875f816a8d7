"""Takes over what dead writers left in a run folder, so that a server that restarts all day leaves few files.

A closed file is taken over by renaming it to the next numbers of the writer that takes it: at every instant it has
one name, and its rows still say which process wrote them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path

from eagletrace.format import TABLES
from eagletrace.record.files import FILE_MODE, TraceFile, file_at, names_by_writer, remove, split_covered
from eagletrace.record.liveness import if_dead, newest_written, process_file, writers

PROCESS_FILES_KEPT = 100  # of dead processes; older ones become lines of `processes.jsonl`
TakeIn = Callable[[str, TraceFile], None]


def clean(folder: Path, names: list[str]) -> tuple[list[TraceFile], int, int]:
    """Remove temporaries and covered files of one writer that is not writing; the caller sees to that.

    Returns the files that count, the number of temporaries removed and that of covered files removed.
    """
    temporaries = sum(remove(folder / name) for name in names if name.endswith(".tmp"))
    found = [file_at(folder / name) for name in names]
    kept, covered = split_covered(f for f in found if f is not None)
    return kept, temporaries, sum(remove(file.path) for file in covered)


def adopt(run_dir: Path, own: str, take_in: TakeIn) -> Generator[None, None, int]:
    """Take over the files of every dead writer but `own`, in steps: `take_in` renames one file of a table.

    Returns how many writers are alive, `own` among them.
    """
    alive = 1
    by_table = {table: names_by_writer(run_dir / table) for table in TABLES}
    stems = sorted({stem for names in by_table.values() for stem in names} | set(writers(run_dir)))
    for stem in stems:
        if stem == own:
            continue
        paths = [run_dir / t / n for t, names in by_table.items() for n in names.get(stem, ())]
        with if_dead(run_dir, stem, newest_written([*paths, process_file(run_dir, stem)])) as dead:
            alive += not dead
            if dead:
                for table, names in by_table.items():
                    for file in clean(run_dir / table, names.get(stem, []))[0]:
                        with contextlib.suppress(FileNotFoundError):
                            take_in(table, file)
        yield
    fold_process_files(run_dir, own)
    return alive


def fold_process_files(run_dir: Path, own: str) -> int:
    """Turn all but the newest process files of dead processes into lines of one file; returns how many went."""
    paths = [process_file(run_dir, stem) for stem in writers(run_dir)]
    oldest = sorted((p for p in paths if p != process_file(run_dir, own)), key=lambda p: newest_written([p]))
    folded = 0
    for path in oldest[: max(len(oldest) - PROCESS_FILES_KEPT, 0)]:
        stem = path.name.removeprefix("process-").removesuffix(".json")
        with if_dead(run_dir, stem, newest_written([path])) as dead:
            if dead and _append_line(run_dir / "processes.jsonl", path) and remove(path):
                folded += 1
    return folded


def _append_line(target: Path, source: Path) -> bool:
    try:
        line = json.dumps(json.loads(source.read_text())) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(target, flags, FILE_MODE)
        try:
            os.fchmod(descriptor, FILE_MODE)
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return False
    return True
