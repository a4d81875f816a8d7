"""What commands print: one JSON object to stdout, everything else for people."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TextIO, cast

from eagletrace.report.text import safe


def print_json(value: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print one object with `schema_version` 1 to stdout, or to `file`."""
    out = file or sys.stdout
    text = json.dumps({"schema_version": 1, **plain(value)}, indent=2, ensure_ascii=not _is_utf8(out), allow_nan=False)
    out.write(text + "\n")


def prepare_streams() -> None:
    """Make stdout and stderr take any text: a closed one swallows it, what cannot be encoded becomes an escape."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] -- so it is under `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 -- as long as the process
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_utf8(file: TextIO) -> bool:
    encoding: str | None = getattr(file, "encoding", None)
    return encoding is None or encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def warn_error(message: str) -> None:
    """Print why the command failed to stderr; no escape sequence that it quotes reaches the terminal."""
    print(f"eagletrace: {safe(message)}", file=sys.stderr)


def plain(value: Any) -> Any:
    """The value as JSON has it: times in ISO 8601, bytes in hex, NaN and infinities as the words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(cast("bytes", value)).hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Sequence | set | frozenset):
        return [plain(v) for v in cast("Iterable[Any]", value)]
    return str(value)


def warn(messages: Iterable[str]) -> None:
    """Print warnings to stderr."""
    for message in messages:
        print(f"eagletrace: warning: {safe(message)}", file=sys.stderr)
