"""Arrow arrays from Python values and NumPy arrays, without `pyarrow.array`.

That function imports pandas where it is installed: half a second in which the engine's thread waits for the GIL, and
40 MB of the server's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


def from_numpy(values: npt.NDArray[Any], type_: pa.DataType, nulls: Mask | None = None) -> Any:
    """An array of a type of fixed width, or bool; `nulls` marks what is NULL."""
    count = len(values)
    if pa.types.is_boolean(type_):
        data = np.packbits(values.astype(np.bool_, copy=False), bitorder="little")
    else:
        data = np.ascontiguousarray(values, dtype=_dtype(type_))
    return pa.Array.from_buffers(type_, count, [_validity(nulls), _buffer(data)])


def from_values(values: Sequence[Any], type_: pa.DataType) -> Any:
    """An array from Python values of one kind; None is NULL. TypeError or ValueError where they do not fit."""
    text = pa.types.is_string(type_)
    if text and (quick := _of_ascii(values, type_)) is not None:
        return quick
    nulls = np.fromiter((v is None for v in values), np.bool_, len(values))
    if text or pa.types.is_binary(type_):
        data = [b"" if v is None else v.encode() if isinstance(v, str) else bytes(v) for v in values]
        buffers = [_validity(nulls), _offsets([len(d) for d in data]), pa.py_buffer(b"".join(data))]
        return pa.Array.from_buffers(type_, len(values), buffers)
    if isinstance(type_, pa.ListType):
        lists = [() if v is None else v for v in values]
        items = from_values(list(chain.from_iterable(lists)), type_.value_type)
        buffers = [_validity(nulls), _offsets([len(v) for v in lists])]
        return pa.Array.from_buffers(type_, len(values), buffers, children=[items])
    return from_numpy(np.array([0 if v is None else v for v in values], dtype=_dtype(type_)), type_, nulls)


def _of_ascii(values: Sequence[Any], type_: pa.DataType) -> Any:
    """An array of texts without a step of Python's for each, None among them; None if they are not all ASCII."""
    nulls = None
    if None in values:
        nulls = np.fromiter((v is None for v in values), np.bool_, len(values))
        values = ["" if v is None else v for v in values]
    try:
        whole = "".join(values)
    except TypeError:
        return None
    if not whole.isascii():
        return None
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    return pa.Array.from_buffers(
        type_, len(values), [_validity(nulls), _offsets(lengths), pa.py_buffer(whole.encode())]
    )


def from_any(values: Any, type_: pa.DataType) -> Any:
    """An array of a type from what a column may be given as."""
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray) and values.dtype != object:
        return from_numpy(values, type_)
    return from_values(list(values), type_)


def to_list(values: Any) -> list[Any]:
    """The Python values of a column, whatever it is given as."""
    return values.to_pylist() if isinstance(values, pa.Array) else list(values)


def view(array: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of an array of fixed width, where they lie; anything where it is NULL."""
    return np.frombuffer(array.buffers()[1], dtype=dtype)[array.offset : array.offset + len(array)]


def nulls_of(array: Any) -> Mask | None:
    """Which values are NULL; None if none is."""
    bitmap = array.buffers()[0]
    if bitmap is None or not array.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)] == 0


def nothing(rows: int, type_: Any) -> Any:
    """NULL `rows` times."""
    return pa.nulls(rows, type_)


def repeated_text(value: str, rows: int) -> Any:
    """One text `rows` times, as a dictionary of one entry."""
    return coded(np.zeros(rows, dtype=np.int32), [value])


def coded(codes: Sequence[int] | npt.NDArray[Any], texts: Sequence[str | None]) -> Any:
    """A text column as a dictionary: `codes` are places in `texts`, which are distinct; None is NULL."""
    index = np.asarray(codes, dtype=np.int32)
    nulls = index == texts.index(None) if None in texts else None
    return pa.DictionaryArray.from_arrays(
        from_numpy(index, pa.int32(), nulls), from_values([t or "" for t in texts], pa.string())
    )


def fixed_text(digits: npt.NDArray[np.uint8], nulls: Mask | None = None) -> Any:
    """A text column from the ASCII characters of each row, [rows, length]; `nulls` marks what is NULL."""
    rows, length = digits.shape
    buffers = [_validity(nulls), _offsets(np.full(rows, length, dtype=np.int32)), _buffer(np.ascontiguousarray(digits))]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def joined(first: Any, second: Any) -> Any:
    """Two arrays of one type, one after the other."""
    return pa.concat_arrays([first, second]) if len(second) else first


def _dtype(type_: pa.DataType) -> npt.DTypeLike:
    return np.bool_ if pa.types.is_boolean(type_) else type_.to_pandas_dtype()


def _buffer(array: Any) -> Any:
    return pa.py_buffer(array)


def _validity(nulls: Mask | None) -> Any:
    if nulls is None or not nulls.any():
        return None
    return _buffer(np.packbits(~nulls, bitorder="little"))


def _offsets(lengths: Sequence[int] | npt.NDArray[np.int32]) -> Any:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return _buffer(offsets)
