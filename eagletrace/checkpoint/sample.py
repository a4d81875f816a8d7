"""What values of stored tensors say, from as many of them as are needed and no more.

Small tensors are read whole, of large ones evenly spaced rows; what is not sampled is not read from the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from eagletrace.checkpoint.folder import Checkpoint
from eagletrace.checkpoint.header import TensorInfo

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

WHOLE = 1 << 20
"""Elements up to which a tensor is read whole."""
ROWS = 256
"""Rows sampled of a larger one."""
STRUCTURE_ROWS, STRUCTURE_COLUMNS = 512, 128
"""Size of the sample in which structure is looked for."""
STRUCTURE = 1.5
"""How far the largest eigenvalue must exceed the edge that independent values have (Marchenko and Pastur), which a
sample of this size passes by a few hundredths; embeddings after training exceed it many times."""
EQUAL = 0.05
"""Relative difference below which tensors are the same up to rounding or quantisation, as in diagnose's policy."""

Origin = Literal["constant", "independent", "structured"]


class Stored(NamedTuple):
    """A tensor of a checkpoint."""

    checkpoint: Checkpoint
    key: str

    @property
    def info(self) -> TensorInfo:
        """Its type and shape."""
        return self.checkpoint.info(self.key)

    def rows(self, indices: Indices) -> Array:
        """Some of its rows."""
        return self.checkpoint.rows(self.key, indices)


def spaced(count: int, wanted: int) -> Indices:
    """At most `wanted` evenly spaced indices below `count`, the first and the last among them."""
    return np.linspace(0, count - 1, min(count, wanted), dtype=np.int64)


def values_of(tensor: Stored) -> Array:
    """The tensor if it is small, else evenly spaced rows of it, or the beginning of a vector."""
    info = tensor.info
    if info.elements <= WHOLE or len(info.shape) < 2:
        return tensor.checkpoint.read(tensor.key).reshape(-1)[:WHOLE]
    return tensor.rows(spaced(info.shape[0], ROWS))


def not_finite(tensor: Stored) -> int:
    """How many of the sampled values are NaN or infinite."""
    if "float" not in tensor.info.dtype:
        return 0
    sample = values_of(tensor)
    if sample.dtype.name == "bfloat16":
        return int(np.count_nonzero((sample.view(np.uint16) & 0x7F80) == 0x7F80))
    return int(np.count_nonzero(~np.isfinite(sample.astype(np.float32))))


def constant(tensor: Stored) -> float | None:
    """The one value that all sampled values have, or None."""
    if tensor.info.elements < 2:
        return None
    sample = np.ascontiguousarray(values_of(tensor)).reshape(-1)
    bits = sample.view(f"u{sample.itemsize}")  # comparing integers is fast for every type
    return float(sample[0]) if bool(np.all(bits == bits[0])) else None


@dataclass(frozen=True)
class Likeness:
    """How alike two tensors are: norm of the difference over the norm of the second, and the cosine."""

    relative_difference: float
    cosine: float

    @property
    def equal(self) -> bool:
        """The same up to rounding."""
        return self.relative_difference <= EQUAL


def likeness(first: Stored, second: Stored) -> Likeness | None:
    """Compare the same sampled rows of two matrices of equal width; None where they have none in common."""
    if not _comparable(first, second):
        return None
    which = spaced(min(first.info.shape[0], second.info.shape[0]), ROWS)
    return _likeness(_floats(first.rows(which)), _floats(second.rows(which)))


def row_likeness(first: Stored, second: Stored, indices: Indices) -> Likeness | None:
    """Compare row i of the first with row `indices[i]` of the second, for a sample of rows."""
    if not _comparable(first, second):
        return None
    rows = np.arange(min(first.info.shape[0], len(indices)))
    rows = rows[(indices[rows] >= 0) & (indices[rows] < second.info.shape[0])]
    if not len(rows):
        return None
    rows = rows[spaced(len(rows), ROWS)]
    return _likeness(_floats(first.rows(rows)), _floats(second.rows(indices[rows])))


def same_angles(first: Stored, second: Stored) -> bool:
    """Whether sampled rows have the same inner products in both: one is the other in a rotated basis, or equal."""
    if not _comparable(first, second):
        return False
    which = spaced(min(first.info.shape[0], second.info.shape[0]), ROWS)
    a, b = _floats(first.rows(which)), _floats(second.rows(which))
    return _likeness(a @ a.T, b @ b.T).equal


def origin(tensor: Stored) -> Origin:
    """Whether the rows of a matrix look like independent random values, or have directions in common."""
    height, width = tensor.info.shape
    rows, columns = spaced(height, STRUCTURE_ROWS), spaced(width, STRUCTURE_COLUMNS)
    sample = _floats(tensor.rows(rows)[:, columns])
    sample = sample - sample.mean()
    variance = float(sample.var())
    if not variance or not np.isfinite(variance):
        return "constant"
    covariance = (sample.T @ sample / len(sample)).astype(np.float64)
    largest = float(np.linalg.eigvalsh(covariance)[-1]) / variance
    edge = (1 + (len(columns) / len(rows)) ** 0.5) ** 2
    return "structured" if largest > STRUCTURE * edge else "independent"


def _comparable(first: Stored, second: Stored) -> bool:
    a, b = first.info.shape, second.info.shape
    return len(a) == 2 and len(b) == 2 and a[1] == b[1] and min(a[0], b[0]) > 0


def _likeness(a: Floats, b: Floats) -> Likeness:
    size_a, size_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    difference = float(np.linalg.norm(a - b)) / size_b if size_b else float(size_a > 0)
    cosine = float(np.vdot(a, b)) / (size_a * size_b) if size_a and size_b else 0.0
    return Likeness(difference, cosine)


def _floats(array: Array) -> Floats:
    return array.astype(np.float32)
