"""Finds run folders and reads their `run.json`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from eagletrace.errors import NewerSchemaError, NotARunError
from eagletrace.format import SCHEMA_VERSION
from eagletrace.store.dataset.layout import is_url
from eagletrace.store.places import read_text

PATH_SHOWN = 300  # characters of a path in a message
MAX_RUN_JSON_BYTES = 16 << 20  # a server writes a few kilobytes


@dataclass(frozen=True)
class RunInfo:
    """What `run.json` says; `raw` is the whole of it."""

    id: str
    path: Path
    schema_version: int
    start_time_unix_nano: int
    host: str | None
    sglang: str | None
    level: str | None
    raw: dict[str, Any]


def read_info(path: Path) -> RunInfo:
    """Read a run folder's `run.json`; NotARunError or NewerSchemaError where that cannot be done."""
    try:
        raw: Any = json.loads(read_text(path, "run.json", MAX_RUN_JSON_BYTES))
    except OSError as error:
        raise NotARunError(f"cannot read {path / 'run.json'}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise NotARunError(f"{path / 'run.json'} is damaged ({error}); the run cannot be read without it") from None
    version = cast("dict[str, Any]", raw).get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise NotARunError(f"{path / 'run.json'} is not an eagletrace run: it has no schema_version from 1")
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path} was written with schema version {version}; this eagletrace reads up to {SCHEMA_VERSION}: "
            "install a newer eagletrace to read it"
        )
    return _info(path, version, cast("dict[str, Any]", raw))


def _info(path: Path, version: int, raw: dict[str, Any]) -> RunInfo:
    settings: Any = raw.get("settings")
    level = cast("dict[str, Any]", settings).get("level") if isinstance(settings, dict) else None
    start = raw.get("start_time_unix_nano")
    engine = raw.get("sglang") or raw.get("engine_version")
    return RunInfo(
        id=_text(raw.get("run_id")) or path.name,
        path=path,
        schema_version=version,
        start_time_unix_nano=start if isinstance(start, int) and 0 <= start < 1 << 63 else 0,
        host=_text(raw.get("host")),
        sglang=_text(engine),
        level=_text(level),
        raw=raw,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _may_be_run(path: Path) -> bool:
    """Whether the folder holds a `run.json`, or may: one that cannot be looked into is reported, not passed over."""
    try:
        return path.is_dir() and (path / "run.json").exists()
    except PermissionError:
        return True
    except OSError:
        return False


def _leads_out(path: Path) -> bool:
    """Whether a run of a trace folder is a link to somewhere else."""
    return path.is_symlink() and path.resolve().parent != path.parent.resolve()


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gave, with `~` expanded; NotARunError where the user of `~user` does not exist."""
    if not os.fspath(path):
        raise NotARunError("the path is empty: give a run folder or a folder of runs")
    if is_url(os.fspath(path)):
        raise NotARunError(
            f"{os.fspath(path)[:PATH_SHOWN]} is a URL, and this works on a folder that a server writes: name that"
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise NotARunError(f"cannot expand {os.fspath(path)}: {error}") from None


def list_runs(folder: Path) -> tuple[list[RunInfo], list[str]]:
    """Runs in a trace folder (or the one run that it is), oldest first, and warnings for those not readable."""
    try:
        if not folder.exists():
            raise NotARunError(f"no such folder: {folder}")
        if not folder.is_dir():
            raise NotARunError(f"{folder} is a file, not a run folder or a folder of runs")
        if os.path.lexists(folder / "run.json"):
            return [read_info(folder)], []
        candidates = sorted(p for p in folder.iterdir() if _may_be_run(p))
    except OSError as error:
        raise NotARunError(f"cannot read {str(folder)[:PATH_SHOWN]}: {error.strerror or error}") from None
    runs: list[RunInfo] = []
    warnings = [f"skipped {path}: is a symbolic link out of the folder" for path in candidates if _leads_out(path)]
    for path in candidates:
        if path.is_symlink():  # one that stays inside, such as `latest`, names a run that is listed anyway
            continue
        try:
            runs.append(read_info(path))
        except (NotARunError, NewerSchemaError) as error:
            warnings.append(f"skipped {path}: {error}")
    return sorted(runs, key=lambda r: (r.start_time_unix_nano, r.id)), warnings


def find_run(path: Path) -> tuple[RunInfo, list[str]]:
    """The run at `path`: a run folder, or the newest run of a trace folder; and warnings."""
    runs, warnings = list_runs(path)
    if runs:
        return runs[-1], warnings
    if warnings:
        raise NotARunError(f"no run in {path} can be read: " + "; ".join(warnings))
    what = "is empty" if not any(path.iterdir()) else "holds no run (no run.json in it or one level below)"
    raise NotARunError(f"{path} {what}; a server started with EAGLETRACE=1 writes one into EAGLETRACE_DIR")
