"""One line per run of a trace folder, without loading the runs."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from eagletrace.errors import NewerSchemaError, NotARunError
from eagletrace.format import TABLES
from eagletrace.store.files import read_table
from eagletrace.store.folder import RunInfo, list_runs
from eagletrace.store.places import open_folder, read_text

MAX_PROCESS_JSON_BYTES = 1 << 20  # a server writes a few hundred bytes
QUIET_S = 10.0  # a writer on another host flushes at least every second; this long without a file is an end


def summarize_runs(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """`{id, path, start, sglang, level, rounds, state}` of each run, oldest first, and warnings."""
    infos, warnings = list_runs(folder)
    rows: list[dict[str, Any]] = []
    for info in infos:
        rounds, more = _rounds(info.path)
        warnings.extend(more)
        rows.append(_row(info, str(info.path), rounds))
    return rows, warnings


def summarize_dataset(url: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The same of the runs of a data set, by path or URL."""
    from eagletrace.store.dataset.source import Source, find

    place, runs = find(url)
    found: list[tuple[int, dict[str, Any]]] = []
    warnings: list[str] = []
    for run in runs:
        source = Source(place, run)
        try:
            source.fetch("totals")
            info = source.info
            rounds, more = _rounds(info.path)
            found.append((info.start_time_unix_nano, _row(info, f"{place.shown}/{run}", rounds)))
            warnings.extend(more)
        except (NotARunError, NewerSchemaError) as error:
            warnings.append(f"skipped {run}: {error}")
        finally:
            source.close()
    return [row for _, row in sorted(found, key=lambda pair: pair[0])], warnings


def _row(info: RunInfo, path: str, rounds: int) -> dict[str, Any]:
    return {
        "id": info.id, "path": path, "start": _iso(info.start_time_unix_nano), "sglang": info.sglang,
        "level": info.level, "rounds": rounds, "state": run_state(info),
    }  # fmt: skip


def _iso(unix_nano: int) -> str:
    return datetime.fromtimestamp(unix_nano / 1e9, timezone.utc).isoformat(timespec="seconds")


def counted_rounds(path: Path) -> int:
    """Counted rounds of user requests in a run folder so far, from rank 0's totals."""
    return _rounds(path)[0]


def _rounds(path: Path) -> tuple[int, list[str]]:
    """Counted rounds of user requests, from rank 0's totals."""
    files = read_table(path, "totals")
    rows = files.rows.select(["tp_rank", "rounds"]).to_pylist()
    return sum(row["rounds"] or 0 for row in rows if not row["tp_rank"]), files.warnings


def run_state(info: RunInfo) -> str:
    """`live` while a process of the run exists (or, on another host, still writes), else `ended`."""
    if any(_is_process_alive(file) for file in info.path.glob("process-*.json")):
        return "live"
    elsewhere = info.host != socket.gethostname()
    return "live" if elsewhere and _last_write(info.path) > time.time() - QUIET_S else "ended"


def _is_process_alive(file: Path) -> bool:
    """Whether the process of a `process-*.json` runs on this host."""
    try:
        process = json.loads(read_text(file.parent, file.name, MAX_PROCESS_JSON_BYTES))
        here = process.get("host") == socket.gethostname()
        return here and _alive(int(process["pid"]), file.lstat().st_mtime)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return False


def _alive(pid: int, seen: float) -> bool:
    """Whether the process exists and is the one seen at the time `seen`, not a later one of the same number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if state in "ZX":  # dead, and not waited for by its parent
            return False
        ticks = int(fields[18])
        boot = next(int(x.split()[1]) for x in Path("/proc/stat").read_text().splitlines() if x.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return True
    return boot + ticks / os.sysconf("SC_CLK_TCK") <= seen + 2


def _last_write(path: Path) -> float:
    return max((_modified(path, table) for table in TABLES), default=0.0)


def _modified(path: Path, table: str) -> float:
    """When the newest file of a table was written; 0 without any."""
    try:
        with open_folder(path, table) as folder, os.scandir(folder) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=0.0)
    except OSError:  # absent, or merged away meanwhile
        return 0.0
