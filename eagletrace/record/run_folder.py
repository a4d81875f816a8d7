"""Creates a run's folder: `run.json` by the first process, `process-<host>-<pid>.json` by each."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import eagletrace
from eagletrace.format import SCHEMA_VERSION
from eagletrace.record.files import FOLDER_MODE, private_folder, remove, safe_host, write_private
from eagletrace.record.liveness import hold
from eagletrace.settings import Settings


def run_id(settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """`EAGLETRACE_RUN_ID`, else the engine's own run id, else parent process id and its start time."""
    engine_id = re.sub(r"[^A-Za-z0-9._-]", "_", environ.get("SGLANG_RUN_ID", "")).lstrip(".")[:128]
    return settings.run_id or engine_id or _parent_id()


def _parent_id() -> str:
    parent = os.getppid()
    try:
        fields = Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()
        return f"run-{parent}-{fields[19]}"
    except (OSError, IndexError):
        return f"run-{parent}-{time.strftime('%Y%m%dT%H%M%S')}"


def create(settings: Settings, facts: Mapping[str, Any], process: Mapping[str, Any]) -> Path:
    """Create or join the run's folder; `facts` (engine, versions, server arguments) go into run.json.

    Only its owner may enter it, whatever the umask. The process's own file stays locked for as long as the process
    lives: that tells others whether it does. Raises OSError where the folder cannot be written.
    """
    folder = settings.dir / run_id(settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    private_folder(folder)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(FOLDER_MODE)  # an older release made it as the umask said
    run = {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        "start_time_unix_nano": time.time_ns(),
        "host": socket.gethostname(),
        "eagletrace": eagletrace.__version__,
        "python": platform.python_version(),
        "settings": settings.public(),
        **facts,
    }
    own = f"process-{safe_host(str(process['host']))}-{process['pid']}.json"
    facts_of_process = {
        **process, "start_time_unix_nano": time.time_ns(), "executable": sys.executable, "lock": "flock",
    }  # fmt: skip
    _written[folder] = {"run.json": run, own: facts_of_process}
    _write_files(folder)
    return folder


_written: dict[Path, dict[str, Mapping[str, Any]]] = {}  # what `create` wrote, for `restore`


def restore(folder: Path) -> bool:
    """Create a run's folder again after somebody deleted it; False if this process never created it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    private_folder(folder)
    if folder not in _written:
        return False
    _write_files(folder)
    return True


def _write_files(folder: Path) -> None:
    for name, value in _written[folder].items():
        _write_once(folder / name, value)
        if name != "run.json":
            hold(folder / name)


def _write_once(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees all of it or nothing, and an existing file stays (exclusive create)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_private(temporary, (json.dumps(value, indent=2, default=str) + "\n").encode())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        remove(temporary)
