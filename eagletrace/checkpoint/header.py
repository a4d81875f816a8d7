"""The header of a safetensors file, read and checked without reading a tensor.

Layout: eight bytes of header length (little endian), a JSON object `name -> {dtype, shape, data_offsets}`, then the
tensors' bytes. Offsets count from the end of the header.
"""

from __future__ import annotations

import json
import math
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

from eagletrace.checkpoint.dtypes import DTYPES
from eagletrace.checkpoint.errors import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER = 100_000_000
"""The format's own bound of a header, in bytes."""

AGAIN = "download or copy it again"


class TensorInfo(NamedTuple):
    """Where one tensor lies and what it is; `dtype` as torch and numpy name it, `begin` from the file's start."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)


_BEGIN, _NBYTES = TensorInfo._fields.index("begin"), TensorInfo._fields.index("nbytes")


def read_header(file: Path) -> dict[str, TensorInfo]:
    """All tensors of a file by name. CheckpointError says which file or tensor is damaged, and how."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            raise CheckpointError(f"{file} is no safetensors file: it has {size} bytes; {AGAIN}")
        length = int.from_bytes(head, "little")
        if head.startswith(b"version "):
            raise CheckpointError(f"{file} is a Git LFS pointer, not the tensors: run `git lfs pull` in its folder")
        if head.startswith((b"PK\x03\x04", b"\x80\x02")):
            raise CheckpointError(f"{file} is a PyTorch file under a safetensors name: convert it to safetensors")
        if length > MAX_HEADER:
            raise CheckpointError(f"{file} is no safetensors file: its header would be {length} bytes long; {AGAIN}")
        if LENGTH_BYTES + length > size:
            raise CheckpointError(
                f"{file} is cut off in its header: the header is {length} bytes long, the file {size}; {AGAIN}"
            )
        text = stream.read(length)
    return _parse(file, text, LENGTH_BYTES + length, size)


def _parse(file: Path, text: bytes, start: int, size: int) -> dict[str, TensorInfo]:
    try:
        entries: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{file} has a damaged header (no JSON); {AGAIN}") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{file} has a damaged header (no JSON object); {AGAIN}")
    entries = cast("dict[str, Any]", entries)
    entries.pop("__metadata__", None)
    tensors = {key: _tensor(file, key, entry, start) for key, entry in entries.items()}
    end = max((t.begin + t.nbytes for t in tensors.values()), default=start)
    if end > size:
        cut = next(t for t in tensors.values() if t.begin + t.nbytes > size)
        raise CheckpointError(
            f"{file} is cut off: {cut.key} ends at byte {cut.begin + cut.nbytes}, the file at {size}; {AGAIN}"
        )
    _check_layout(file, tensors, start, size)
    return tensors


def _tensor(file: Path, key: str, entry: Any, start: int) -> TensorInfo:
    try:
        stored, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sizes_known = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(f"{file} has a damaged header entry for {key}; {AGAIN}") from None
    if not sizes_known or end < begin:
        raise CheckpointError(f"{file} has a damaged header entry for {key} (shape or offsets); {AGAIN}")
    if not isinstance(stored, str) or stored not in DTYPES:
        raise CheckpointError(f"{file}: {key} has a dtype that no release of safetensors knows: {stored!r}")
    name, bits, _ = DTYPES[stored]
    due = (math.prod(shape) * bits + 7) // 8
    if end - begin != due:
        raise CheckpointError(
            f"{file}: {key} is {stored} {list(shape)}, which takes {due} bytes, not {end - begin}; {AGAIN}"
        )
    return TensorInfo(key, name, shape, file, start + begin, due)


def _check_layout(file: Path, tensors: dict[str, TensorInfo], start: int, size: int) -> None:
    """The tensors follow each other without a hole or an overlap up to the file's end, as the format asks."""
    position = start
    for tensor in sorted(tensors.values(), key=itemgetter(_BEGIN, _NBYTES)):
        if tensor.begin != position:
            what = "overlaps the tensor before it" if tensor.begin < position else "leaves a hole before it"
            raise CheckpointError(f"{file} has a damaged header: {tensor.key} {what}; {AGAIN}")
        position = tensor.begin + tensor.nbytes
    if position != size:
        raise CheckpointError(f"{file} has {size - position} bytes after its last tensor; {AGAIN}")
