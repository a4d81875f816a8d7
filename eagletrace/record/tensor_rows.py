"""Rows of the table `tensors`, before their data is read: copies that the device makes, for the recorder's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
SLICE_BYTES = 2 << 20  # turned into rows at a time: the engine's thread waits for the GIL as long


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy of a tensor [rows, *shape] on the host, by bytes: `read` gives all of them, once they are there."""

    dtype: str
    rows: int
    shape: tuple[int, ...]
    row_bytes: int
    read: Callable[[], Bytes]


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of `tensors`: rows `start` to `start + rows` of a copy."""

    request_seq: int
    position: int
    stage: str
    copy: HostCopy
    start: int
    rows: int
    round: int | None = None
    layer: int | None = None
    depth: int | None = None

    @property
    def bytes(self) -> int:
        """Size of its data."""
        return self.rows * self.copy.row_bytes

    def row(self) -> dict[str, Any]:
        """The row, with its data."""
        first, last = self.start * self.copy.row_bytes, (self.start + self.rows) * self.copy.row_bytes
        return {
            "request_seq": self.request_seq, "position": self.position, "stage": self.stage,
            "dtype": self.copy.dtype, "shape": [self.rows, *self.copy.shape], "data": self.copy.read()[first:last],
            "round": self.round, "layer": self.layer, "depth": self.depth,
        }  # fmt: skip


def of_integers(values: Sequence[int]) -> HostCopy:
    """A copy [n] of integers that are on the host already."""
    kept = np.array(values, dtype=np.int64).view(np.uint8)
    return HostCopy("int64", len(values), (), 8, lambda: kept)


def size(rows: Sequence[Stored]) -> int:
    """Bytes of data of some rows."""
    return sum(row.bytes for row in rows)


def slices(rows: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Runs of rows of about `SLICE_BYTES`."""
    part, held = list[Stored](), 0
    for row in rows:
        if part and held + row.bytes > SLICE_BYTES:
            yield part
            part, held = [], 0
        part.append(row)
        held += row.bytes
    if part:
        yield part
