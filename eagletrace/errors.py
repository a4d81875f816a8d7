"""Errors that a user can cause: each says what is wrong and what to do, and carries its exit status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EagletraceError(Exception):
    """Base of all errors caused by what the user gave; `exit_code` is the command's exit status."""

    exit_code = 2


class UnknownNameError(EagletraceError):
    """A query, cause or fault name that does not exist; suggests the nearest ones."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {what} {name!r}; {hint}")
        self.name, self.near = name, near


class NotARunError(EagletraceError):
    """A path that holds no trace that can be read."""


class NewerSchemaError(EagletraceError):
    """A run written by a newer eagletrace than this one."""


class DamagedRunError(EagletraceError):
    """A run whose files can be read and whose values make no sense."""
