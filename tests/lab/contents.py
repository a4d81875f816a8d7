"""What can be read in a run: bytes of its files and of its columns, decompressed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def holding(run_dir: Path, *needles: bytes) -> set[str]:
    """Columns (decompressed) and files whose bytes hold one of the needles."""
    found = {f.name for f in run_dir.rglob("*") if f.is_file() and any(n in f.read_bytes() for n in needles)}
    for file in run_dir.glob("*/*.parquet"):
        table: Any = pq.ParquetFile(file).read()
        for name in table.column_names:
            for chunk in table[name].chunks:
                plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
                content = [b.to_pybytes() for b in plain.buffers() if b is not None]
                if any(n in b for b in content for n in needles):
                    found.add(f"{file.parent.name}.{name}")
    return found


def as_stored(ids: list[int]) -> list[bytes]:
    """Token ids in a row, as columns of numbers or as text would hold them."""
    packed = [struct.pack(f"<{len(ids)}{kind}", *ids) for kind in "hiq"]
    return [*packed, json.dumps(ids)[1:-1].encode(), ",".join(map(str, ids)).encode()]


def windows(ids: list[int]) -> list[bytes]:
    """Every four token ids in a row (a chain of the lab has four nodes) that can be told from other numbers."""
    rows = [ids[i : i + 4] for i in range(len(ids) - 3)]
    return [n for row in rows if len(set(row)) == 4 and min(row) > 0 for n in as_stored(row)]
