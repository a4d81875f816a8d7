"""Descriptors reserved for files that DuckDB reads in place, whatever becomes of their names.

DuckDB opens files by name and is locked before it is known which files a query needs. It is allowed the large files
that the run has now, one by one, and no others; it reads them through descriptors that were opened here without
following a link. (Releases before 2.0 compare the path as given, later ones what it leads to: both are allowed.)
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from pathlib import Path

MAX_SLOTS = 2_048


class Slots:
    """One reserved descriptor for each of the given files (real paths), as far as the process may open so many."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = set(list(files)[: _affordable()])
        self._null = os.memfd_create("eagletrace")  # holds nothing, and has no path under which anything lies
        self._free: list[int] = []
        with contextlib.suppress(OSError):  # the limit is nearer than it looked: the rest is read into memory
            self._free.extend(os.dup(self._null) for _ in self._files)
        self._all = [self._null, *self._free]

    @staticmethod
    def path(slot: int) -> str:
        """The path under which DuckDB reads a slot's file."""
        return f"/proc/self/fd/{slot}"

    def allowed_paths(self) -> list[str]:
        """Every path that DuckDB may see, also as the kernel names a file that was unlinked since."""
        return [*map(self.path, self._free), *self._files, *(f"{file} (deleted)" for file in self._files)]

    def take(self, file: int) -> int | None:
        """A slot for an open file, which may then be closed; None when all are taken or it is not one of the files."""
        if not self._free or str(Path(self.path(file)).readlink()) not in self._files:
            return None
        slot = self._free.pop()
        os.dup2(file, slot, inheritable=False)
        return slot

    def give_back(self, slot: int) -> None:
        """Let go of a slot's file."""
        os.dup2(self._null, slot, inheritable=False)
        self._free.append(slot)

    def close(self) -> None:
        """Close all; may be called twice."""
        for descriptor in self._all:
            os.close(descriptor)
        self._all = []


def _affordable() -> int:
    """A third of the descriptors that this process may open: DuckDB opens each file once more while it reads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 << 20 if soft == resource.RLIM_INFINITY else soft
    return max(0, min(MAX_SLOTS, (limit - 64) // 3))
