"""Every EAGLETRACE_* variable, read once into one frozen struct.

Standard library only. A bad value gives one warning that names the variable and the values allowed; the
default is used, and the server starts.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEVELS = ("contract", "tokens", "tensors")
OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class BadSetting:
    """A variable whose value was ignored."""

    variable: str
    value: str
    allowed: str
    used: str

    def __str__(self) -> str:
        return f"eagletrace: {self.variable}={self.value!r} is not allowed ({self.allowed}); using {self.used}"


@dataclass(frozen=True)
class Settings:
    """The settings of one recording."""

    dir: Path = Path("eagletrace-runs")
    level: str = "tokens"
    sample: float = 1.0
    hidden_every: int = 32
    max_bytes: int = 2 << 30
    flush_s: float = 1.0
    redact: bool = False
    redact_key: str | None = None
    run_id: str | None = None
    graph_taps: bool = False
    tensor_tokens: int = 2048
    tensor_bytes: int = 256 << 20
    aux_layers: str = ""
    bad: tuple[BadSetting, ...] = field(default=())

    def public(self) -> dict[str, Any]:
        """What run.json says of them; the redaction key is never stored."""
        return {
            "level": self.level, "sample": self.sample, "hidden_every": self.hidden_every,
            "max_bytes": self.max_bytes, "flush_s": self.flush_s, "redact": self.redact,
            "graph_taps": self.graph_taps, "tensor_tokens": self.tensor_tokens, "tensor_bytes": self.tensor_bytes,
            "aux_layers": self.aux_layers,
        }  # fmt: skip


@dataclass(frozen=True)
class _Variable:
    name: str
    field: str
    parse: Callable[[str], Any]
    allowed: str
    doc: str


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether tracing was asked for: `EAGLETRACE` is set and not 0, false, no, off or empty."""
    return environ.get("EAGLETRACE", "").strip().lower() not in OFF


def _number(kind: Callable[[str], Any], low: float, high: float = math.inf) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(text)
        return text

    return parse


def on(text: str) -> bool:
    """Whether a value switches something on."""
    return text.strip().lower() in ("1", "true", "yes", "on")


def _flag(text: str) -> bool:
    if text.strip().lower() not in OFF and not on(text):
        raise ValueError(text)
    return on(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(text)
    size = int(float(match[1]) * 1024 ** (" KMGT".index(match[2].upper() or " ")))
    if size < 1 << 20:
        raise ValueError(text)
    return size


def _layers(text: str) -> str:
    """`all`, or layer numbers in order, each once."""
    if text.strip().lower() == "all":
        return "all"
    if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*", text):
        raise ValueError(text)
    return ",".join(str(layer) for layer in sorted({int(part) for part in text.split(",")}))


def _run_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", text):
        raise ValueError(text)
    return text


def _directory(text: str) -> Path:
    if "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        raise ValueError(text) from None


VARIABLES = (
    _Variable("EAGLETRACE_DIR", "dir", _directory, "a directory", "where runs are written"),
    _Variable("EAGLETRACE_LEVEL", "level", _one_of(*LEVELS), ", ".join(LEVELS), "how much is recorded"),
    _Variable("EAGLETRACE_SAMPLE", "sample", _number(float, 0, 1), "0 to 1", "share of requests in detail"),
    _Variable("EAGLETRACE_HIDDEN_EVERY", "hidden_every", _number(int, 1), "a whole number from 1",
              "hidden-state statistics on one round in N"),
    _Variable("EAGLETRACE_MAX_BYTES", "max_bytes", _bytes, "bytes from 1M, such as 500000000 or 2G",
              "disk bound of a run, all of its processes together"),
    _Variable("EAGLETRACE_FLUSH_S", "flush_s", _number(float, 0.05, 3600), "seconds from 0.05 to 3600",
              "how old an unwritten row may get"),
    _Variable("EAGLETRACE_REDACT", "redact", _flag, "1 or 0", "token ids become keyed hashes; without level tensors"),
    _Variable("EAGLETRACE_REDACT_KEY", "redact_key", str, "any text", "key of the hashes"),
    _Variable("EAGLETRACE_RUN_ID", "run_id", _run_id, "letters, digits, '.', '_' and '-', at most 128",
              "the run's id"),
    _Variable("EAGLETRACE_GRAPH_TAPS", "graph_taps", _flag, "1 or 0",
              "records the draft's steps inside captured CUDA graphs; adds copies to the graphs that are captured"),
    _Variable("EAGLETRACE_TENSOR_TOKENS", "tensor_tokens", _number(int, 1), "a whole number from 1",
              "level tensors: positions of a request whose hidden states are stored, from its first one"),
    _Variable("EAGLETRACE_TENSOR_BYTES", "tensor_bytes", _bytes, "bytes from 1M, such as 500000000 or 2G",
              "level tensors: bytes of hidden states that a process stores in all; a request that no longer fits is "
              "not begun"),
    _Variable("EAGLETRACE_AUX_LAYERS", "aux_layers", _layers, "all, or layer numbers such as 2,6,9",
              "level tensors: layers of the target whose inputs are stored, whatever the engine captures; the number "
              "of layers stands for the output of the last"),
)  # fmt: skip


def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; `bad` lists the variables whose value was ignored."""
    values: dict[str, Any] = {}
    bad: list[BadSetting] = []
    for variable in VARIABLES:
        text = environ.get(variable.name, "")
        if not text:
            continue
        try:
            values[variable.field] = variable.parse(text)
        except (ValueError, OverflowError):
            default = getattr(Settings, variable.field)
            bad.append(BadSetting(variable.name, text, variable.allowed, f"{default}"))
    if values.get("redact") and values.get("level") == "tensors":
        bad.append(BadSetting("EAGLETRACE_LEVEL", "tensors", "contract or tokens with EAGLETRACE_REDACT", "tokens"))
        values["level"] = "tokens"
    on = environ.get("EAGLETRACE", "").strip().lower()
    if on not in (*OFF, "1", "true", "yes", "on"):
        bad.append(BadSetting("EAGLETRACE", environ["EAGLETRACE"], "1, or 0 for off", "1"))
    return Settings(**values, bad=tuple(bad))
