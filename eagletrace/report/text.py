"""Text from a trace, made safe to print: no escape sequence of a recorded string reaches the terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any, cast


def safe(value: Any) -> str:
    """The value as printable text: control and direction-changing characters become `\\x1b`-like escapes."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or _is_space(c) else _escape(c) for c in text)


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def cell(value: Any, limit: int = 80) -> str:
    """A value in one line of at most `limit` characters: floats to four digits, dicts as `key=value`."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:.6g}"
    elif isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        text = ", ".join(f"{k}={cell(v, limit)}" for k, v in items)
    elif isinstance(value, list | tuple):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
    text = safe(" ".join(text.split()) if "\n" in text or "\t" in text else text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
