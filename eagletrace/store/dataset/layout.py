"""Where the files of a data set lie.

    eagletrace-dataset.json                                            marks the root
    _runs/<run>/run.json, process-*.json, control*.json, processes.jsonl
    <table>/run=<run>/host=<host>/day=<YYYY-MM-DD>/rank=<rank>/<file>.parquet

`day` is the UTC day on which the last rows of the file were written, `rank` the tensor-parallel rank. A file keeps its
name; one whose rows belong to several hosts, processes or ranks is split, and its parts end in `.1-of-2.parquet`.
Values are percent-encoded, as Hive has them, and an unknown rank is Hive's NULL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote, unquote

MARKER = "eagletrace-dataset.json"
LAYOUT = 1
RUNS = "_runs"
NO_RANK = "__HIVE_DEFAULT_PARTITION__"
NAME = re.compile(r"(?P<writer>.+-\d+)-(?P<first>\d+)-(?P<last>\d+)(?:\.(?P<part>\d+)-of-(?P<parts>\d+))?\.parquet")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[a-z0-9]+::")


def is_url(path: str) -> bool:
    """Whether a user's path is a URL (`s3://…`, `file://…`, or chained as fsspec has them)."""
    return _URL.match(path) is not None


def is_dataset(path: str) -> bool:
    """Whether a path is a URL, a folder that is a data set, or names a run in one; False for what is no path at all."""
    if is_url(path):
        return True
    try:
        folder = Path(path).expanduser()
        return (folder / MARKER).is_file() or (not folder.exists() and (folder.parent / MARKER).is_file())
    except (OSError, RuntimeError, ValueError):  # whoever opens it says what is wrong
        return False


@dataclass(frozen=True)
class Stored:
    """One Parquet file in the data set."""

    path: str
    name: str
    size: int
    changed: float = 0.0  # seconds since 1970 UTC; 0 where the place does not say


@dataclass
class Group:
    """The parts of one file of a run; `complete` where all are there."""

    writer: str
    first: int
    last: int
    parts: int = 1
    files: list[Stored] = field(default_factory=list[Stored])

    @property
    def complete(self) -> bool:
        """Whether every part is there."""
        return len(self.files) == self.parts


def table_folder(table: str, run: str) -> str:
    """Folder of a run's rows of a table."""
    return f"{table}/run={quote(run, safe='')}"


def run_folder(run: str) -> str:
    """Folder of a run's JSON files."""
    return f"{RUNS}/{quote(run, safe='')}"


def run_of(folder: str) -> str:
    """The run whose JSON files lie in a folder of `_runs`."""
    return unquote(folder)


def partition(host: str, written: float, rank: int | None) -> str:
    """`host=…/day=…/rank=…` of rows; `written` in seconds since 1970."""
    day = datetime.fromtimestamp(written, timezone.utc).date().isoformat()
    return f"{host_folder(host)}/day={day}/rank={NO_RANK if rank is None else rank}"


def host_folder(host: str) -> str:
    """`host=…`, the first level of a partition."""
    return f"host={quote(host, safe='') or NO_RANK}"


def part_name(name: str, part: int, parts: int) -> str:
    """Name of a part, from 1; of a file that is not split its own."""
    return name if parts == 1 else f"{name.removesuffix('.parquet')}.{part}-of-{parts}.parquet"


def groups(files: Iterable[Stored]) -> list[Group]:
    """Files of one table and run by what they were before they were split."""
    found: dict[tuple[str, int, int], Group] = {}
    for file in files:
        match = NAME.fullmatch(file.name)
        key = (match["writer"], int(match["first"]), int(match["last"])) if match else (file.name, 0, 0)
        group = found.setdefault(key, Group(*key))
        group.parts = int(match["parts"] or 1) if match else 1
        group.files.append(file)
    return list(found.values())


def current(found: Iterable[Group]) -> list[Group]:
    """Groups whose rows count: whole ones that no other of the same writer covers."""
    kept: list[Group] = []
    ends: dict[str, int] = {}
    for group in sorted((g for g in found if g.complete), key=lambda g: (g.writer, g.first, -g.last)):
        if group.last > ends.get(group.writer, -1):
            ends[group.writer] = group.last
            kept.append(group)
    return kept


def covered(writer: str, first: int, last: int, there: Iterable[Group]) -> bool:
    """Whether whole groups of the writer hold every number from `first` to `last`."""
    reach = first
    for group in sorted((g for g in there if g.writer == writer and g.complete), key=lambda g: g.first):
        if group.first <= reach <= group.last:
            reach = group.last + 1
    return reach > last


def inside(writer: str, first: int, last: int, there: Iterable[Group]) -> list[Group]:
    """Other groups of the writer whose numbers lie within those given."""
    return [
        g for g in there
        if g.writer == writer and first <= g.first and g.last <= last and (g.first, g.last) != (first, last)
    ]  # fmt: skip
