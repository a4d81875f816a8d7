"""Writes a safetensors file tensor by tensor, without holding more than one of them in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.checkpoint.dtypes import NUMPY, STORED
from eagletrace.checkpoint.header import LENGTH_BYTES

_ALIGNMENT = 8

Array = npt.NDArray[Any]

_NAMES = {np.dtype(dtype): name for name, dtype in NUMPY.items() if dtype is not None}


def write_safetensors(file: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays (mapped ones too) under their names, the metadata beside them; the file must not exist."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    position = 0
    for key, array in tensors.items():
        end = position + array.nbytes
        stored = STORED[_NAMES[array.dtype]]
        header[key] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % _ALIGNMENT)
    with file.open("xb") as stream:
        stream.write(len(text).to_bytes(LENGTH_BYTES, "little"))
        stream.write(text)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
