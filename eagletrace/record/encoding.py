"""How each column lies in a file. Chosen by measuring bytes per drafted token and CPU time on a recorded run.

Counters and positions are stored as deltas, tokens and floats byte by byte, text and what has few values through
a dictionary. Only the columns that a reader filters by have minima and maxima.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from eagletrace.format import TABLES
from eagletrace.format.schema import PROCESS_COLUMNS
from eagletrace.record.columns import from_numpy, nothing, nulls_of, repeated_text, view

COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1  # level 3 saves 2 % and level 6 4 %, for a third more time
SMALL_BYTES = 1 << 20  # in memory: compressing less costs more than it saves until it is merged
MANTISSA_BITS = 10  # kept of the 23: a relative error of at most 2**-11, half of what a value would take exactly
_DELTA, _SPLIT = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"
_SPLIT_INTEGERS = int(pa.__version__.split(".")[0]) >= 17  # older releases split floats alone
_TIMES = ("time_unix_nano", "start_time_unix_nano", "end_time_unix_nano", "duration_time_unix_nano")
_DELTAS = (*_TIMES, "round", "request_round", "position", "rope_position")
_INTEGERS = (
    "request_seq", "token", "draft_vocab_id", "draft_token", "expected_token", "target_token",
    "draft_rank_of_target_token",
)  # fmt: skip
_FLOATS = ("float32", "float64")
_PLAIN_TEXT = ("trace_id", "span_id", "parent_span_id")  # random digits: a dictionary would only be larger
_STATISTICS = ("round", "request_seq", "time_unix_nano")
_SHORTENED = ("draft_logprob", "draft_entropy", "draft_prob", "target_logprob_of_draft_token")
_COMPRESSED = {"compression": COMPRESSION, "compression_level": COMPRESSION_LEVEL}
SORTED_BY_REQUEST = ("drafts", "verifies")  # in merged files, within a row group: positions become small deltas


def write_options(table: str, size: int) -> dict[str, Any]:
    """What `pyarrow.parquet.ParquetWriter` is given for a file of a table, of `size` bytes in memory."""
    compression = {"compression": None} if size < SMALL_BYTES else _COMPRESSED
    return _encodings(table) | compression


@cache
def _encodings(table: str) -> dict[str, Any]:
    encodings: dict[str, str] = {}
    dictionary: list[str] = []
    for column in (*PROCESS_COLUMNS, *TABLES[table].columns):
        name = column.name
        if name in _DELTAS and column.type in ("int32", "int64"):
            encodings[name] = _DELTA
        elif column.type in _FLOATS or (_SPLIT_INTEGERS and name in _INTEGERS):
            encodings[name] = _SPLIT
        elif name in _PLAIN_TEXT or column.type in ("bool", "binary"):
            encodings[name] = "PLAIN"
        else:
            dictionary.append(name)
    columns = TABLES[table].column_names()
    return {
        "store_schema": False, "use_dictionary": _leaves(table, dictionary), "column_encoding": encodings,
        "write_statistics": [name for name in _STATISTICS if name in columns],
    }  # fmt: skip


def _leaves(table: str, names: list[str]) -> list[str]:
    """Paths of Parquet leaves: those of a list column lie below it."""
    lists = {c.name for c in TABLES[table].columns if c.type.startswith("list<")}
    return [f"{name}.list.element" if name in lists else name for name in names]


def text_columns(table: str) -> list[str]:
    """Columns that are read as dictionaries while merging: text of which little is distinct."""
    text = [c.name for c in (*PROCESS_COLUMNS, *TABLES[table].columns) if c.type in ("string", "json")]
    return [name for name in text if name not in _PLAIN_TEXT]


def constant(value: Any, type_: pa.DataType, rows: int) -> Any:
    """One value `rows` times; text as a dictionary, which is written without hashing each row."""
    if value is not None and pa.types.is_string(type_):
        return repeated_text(value, rows)
    if value is None:
        return nothing(rows, type_)
    return from_numpy(np.full(rows, value), type_)


def shortened(name: str, array: Any) -> Any:
    """The array with its floats rounded to `MANTISSA_BITS`, where the column is one of those; NaN stays NaN."""
    if name not in _SHORTENED or array.type != pa.float32() or array.null_count == len(array):
        return array
    drop = 23 - MANTISSA_BITS
    values = view(array, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF ^ ((1 << drop) - 1))
    kept = np.where(np.isfinite(values), rounded, bits).view(np.float32)
    return from_numpy(kept, array.type, nulls_of(array))
