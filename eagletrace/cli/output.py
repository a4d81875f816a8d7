"""What commands print: one JSON object to stdout, everything else for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TextIO, cast


def print_json(value: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print one object with `schema_version` 1 to stdout, or to `file`."""
    text = json.dumps({"schema_version": 1, **plain(value)}, indent=2, ensure_ascii=False, allow_nan=False)
    (file or sys.stdout).write(text + "\n")


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
        print(f"eagletrace: warning: {message}", file=sys.stderr)
