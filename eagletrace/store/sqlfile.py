"""SQL files with front matter: comment lines `-- key: value` before the statement.

A line `--     more` (four spaces or more) continues the value above. `column` and `param` may be given
many times: `-- column depth: meaning`, `-- param limit: int = 20, meaning`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

QUERIES = Path(__file__).resolve().parent.parent / "queries"

_KEY = re.compile(r"--\s?([a-z_]+)(?:[ ]+([A-Za-z_][A-Za-z0-9_]*))?:[ ]*(.*)$")
_MORE = re.compile(r"--\s{4,}(\S.*)$")
_PARAM = re.compile(r"(int|float|text)\s*=\s*([^,]*?)\s*,\s*(.*)$")
_TYPES = {"int": int, "float": float, "text": str}


@dataclass(frozen=True)
class Param:
    """A parameter of a query, `$name` in its SQL."""

    name: str
    type: str
    default: int | float | str
    doc: str

    def parse(self, text: str) -> int | float | str:
        """Read a value from text; ValueError if it does not fit the type."""
        return _TYPES[self.type](text)


@dataclass(frozen=True)
class SqlFile:
    """One SQL file: `name` is the file's stem, `meta` the front matter by key."""

    name: str
    meta: dict[str, str]
    columns: dict[str, str]
    params: dict[str, Param]
    sql: str

    @property
    def title(self) -> str:
        """One line for people; the name where there is none."""
        return self.meta.get("title", self.name)

    def words(self, key: str) -> list[str]:
        """The comma-separated words under a key."""
        return [w.strip() for w in self.meta.get(key, "").split(",") if w.strip()]


def parse(name: str, text: str) -> SqlFile:
    """Read front matter and statement; ValueError (naming the line) for a malformed `param`."""
    entries: list[tuple[str, str | None, str]] = []
    lines = text.splitlines()
    body = len(lines)
    for number, line in enumerate(lines):
        if more := _MORE.match(line):
            if entries:
                key, sub, value = entries[-1]
                entries[-1] = (key, sub, f"{value} {more[1].strip()}".strip())
        elif head := _KEY.match(line):
            entries.append((head[1], head[2], head[3].strip()))
        elif line.strip() and not line.startswith("--"):
            body = number
            break
    meta: dict[str, str] = {}
    columns: dict[str, str] = {}
    params: dict[str, Param] = {}
    for key, sub, value in entries:
        if key == "column" and sub:
            columns[sub] = value
        elif key == "param" and sub:
            params[sub] = _param(name, sub, value)
        else:
            meta[key] = value
    return SqlFile(name, meta, columns, params, "\n".join(lines[body:]).strip().rstrip(";"))


def _param(file: str, name: str, value: str) -> Param:
    match = _PARAM.match(value)
    if not match:
        raise ValueError(f"{file}.sql: param {name}: expected `type = default, meaning`, got {value!r}")
    return Param(name, match[1], _TYPES[match[1]](match[2]), match[3])


def load_folder(folder: str, root: Path = QUERIES) -> dict[str, SqlFile]:
    """All SQL files of `queries/<folder>`, by name, in alphabetical order."""
    files = sorted((root / folder).glob("*.sql"))
    return {f.stem: parse(f.stem, f.read_text(encoding="utf-8")) for f in files}
