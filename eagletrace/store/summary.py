"""One line per run of a trace folder, without loading the runs."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from eagletrace.store.files import read_table
from eagletrace.store.folder import RunInfo, list_runs

QUIET_S = 10.0  # a writer on another host flushes at least every second; this long without a file is an end


def summarize_runs(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """`{id, path, start, sglang, level, rounds, state}` of each run, oldest first, and warnings."""
    infos, warnings = list_runs(folder)
    rows: list[dict[str, Any]] = []
    for info in infos:
        rounds, more = _rounds(info.path)
        warnings.extend(more)
        rows.append({
            "id": info.id,
            "path": str(info.path),
            "start": _iso(info.start_time_unix_nano),
            "sglang": info.sglang,
            "level": info.level,
            "rounds": rounds,
            "state": _state(info),
        })
    return rows, warnings


def _iso(unix_nano: int) -> str:
    return datetime.fromtimestamp(unix_nano / 1e9, timezone.utc).isoformat(timespec="seconds")


def _rounds(path: Path) -> tuple[int, list[str]]:
    """Counted rounds of user requests, from rank 0's totals."""
    files = read_table(path, "totals")
    files.close()
    rank0 = pc.equal(pc.fill_null(files.rows["tp_rank"], 0), 0)
    return pc.sum(files.rows.filter(rank0)["rounds"]).as_py() or 0, files.warnings


def _state(info: RunInfo) -> str:
    """`live` while a process of the run exists (or, on another host, still writes), else `ended`."""
    here = socket.gethostname()
    for file in info.path.glob("process-*.json"):
        try:
            process = json.loads(file.read_text(encoding="utf-8"))
            if process.get("host") == here and _alive(int(process["pid"]), file.stat().st_mtime):
                return "live"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return "live" if info.host != here and _last_write(info.path) > time.time() - QUIET_S else "ended"


def _alive(pid: int, seen: float) -> bool:
    """Whether the process exists and is the one seen at the time `seen`, not a later one of the same number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
        boot = next(int(x.split()[1]) for x in Path("/proc/stat").read_text().splitlines() if x.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return True
    return boot + ticks / os.sysconf("SC_CLK_TCK") <= seen + 2


def _last_write(path: Path) -> float:
    times: list[float] = []
    for file in path.glob("*/*.parquet"):
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
