"""The types of tensors in safetensors files: their size, and the numpy type that reads them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, tuple[str, int, Any]] = {
    "BOOL": ("bool", 8, np.bool_),
    "U8": ("uint8", 8, np.uint8),
    "I8": ("int8", 8, np.int8),
    "U16": ("uint16", 16, np.uint16),
    "I16": ("int16", 16, np.int16),
    "U32": ("uint32", 32, np.uint32),
    "I32": ("int32", 32, np.int32),
    "U64": ("uint64", 64, np.uint64),
    "I64": ("int64", 64, np.int64),
    "F16": ("float16", 16, np.float16),
    "BF16": ("bfloat16", 16, ml_dtypes.bfloat16),
    "F32": ("float32", 32, np.float32),
    "F64": ("float64", 64, np.float64),
    "C64": ("complex64", 64, np.complex64),
    "F8_E4M3": ("float8_e4m3fn", 8, ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8, ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2": ("float8_e5m2", 8, ml_dtypes.float8_e5m2),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8, ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": ("float8_e8m0fnu", 8, ml_dtypes.float8_e8m0fnu),
    "F6_E2M3": ("float6_e2m3fn", 6, None),
    "F6_E3M2": ("float6_e3m2fn", 6, None),
    "F4": ("float4_e2m1fn", 4, None),
}
"""By the format's name: the name that torch and numpy use, bits of one element, numpy type (None: packed, not read)."""

NUMPY: dict[str, Any] = {name: dtype for name, _, dtype in DTYPES.values()}
BITS: dict[str, int] = {name: bits for name, bits, _ in DTYPES.values()}
STORED: dict[str, str] = {name: stored for stored, (name, _, _) in DTYPES.items()}

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
INTEGERS = frozenset({"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"})
EIGHT_BIT_FLOATS = frozenset(name for name in BITS if name.startswith("float8"))
