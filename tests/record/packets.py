"""Launches as the hot path leaves them: a chain and a tree whose verdicts were worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket, Values

PROCESS = {"host": "node", "pid": 7, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
Row = dict[str, Any]


def state(seq: int = 1, **facts: Any) -> RequestState:
    """A user request whose prompt is three tokens."""
    known: dict[str, Any] = {"rid": f"req-{seq}", "kind": "user", "sampled": True, "start_ns": 10,
                             "prompt_ids": [81_001, 81_002, 81_003], "prompt_tokens": 3}  # fmt: skip
    return RequestState(seq=seq, **(known | facts))


ARRAYS = {"draft_tokens", "target_tokens", "positions", "accept_index", "next_token", "next_sibling", "draft_ids",
          "better", "rope_positions", "draft_probs", "draft_logits", "draft_means"}  # fmt: skip


def packet(arrays: dict[str, Any], facts: dict[str, Any], **known: Any) -> RoundPacket:
    """A launch; `facts` go over what is known, None for an array that was not observed."""
    found = RoundPacket(start_ns=known.pop("start_ns", 100), **known)
    arrays = arrays | {name: value for name, value in facts.items() if name in ARRAYS}
    if all(value is not None for value in arrays.values()):
        bs = len(found.requests)
        found.values = Values.of({name: np.array(value).reshape(bs, -1) for name, value in arrays.items()})
    for name, value in facts.items():
        if name not in ARRAYS:
            setattr(found, name, value)
    return found


def chain(
    drafts: Sequence[int], target: Sequence[int], *, root: int = 100, number: int = 1, position: int = 10,
    requests: Sequence[RequestState] | None = None, **facts: Any,
) -> RoundPacket:  # fmt: skip
    """One request's chain: `target[k]` is the target's choice after node k; the engine accepts while they agree."""
    nodes = len(drafts) + 1
    correct = next((k for k, token in enumerate(drafts) if token != target[k]), len(drafts))
    arrays = {
        "draft_tokens": [root, *drafts], "target_tokens": list(target),
        "positions": [position + k for k in range(nodes)],
        "accept_index": [k if k <= correct else -1 for k in range(nodes)],
    }  # fmt: skip
    return packet(
        arrays, facts, round=number, requests=list(requests or [state()]), request_rounds=[number], nodes=nodes,
        committed=[correct + 1], counted=[True], engine_accepted=[correct],
        phases=[("draft", 100, 110), ("verify", 110, 130)],
    )  # fmt: skip


def tree(**facts: Any) -> RoundPacket:
    """Two requests, six nodes each:

        0 ── 1 ── 3 ── 5
        │    └─── 4
        └─── 2

    Request 1 accepts 0, 2 (its target chose 52 after the root) and stops: 2 is a leaf.
    Request 2 accepts 0, 1, 4: after node 1 its target chose 64, the second child.
    """
    arrays = {
        "draft_tokens": [50, 51, 52, 53, 54, 55, 60, 61, 62, 63, 64, 65],
        "target_tokens": [52, 90, 91, 92, 93, 94, 61, 64, 95, 96, 97, 98],
        "positions": [20, 21, 21, 22, 22, 23, 30, 31, 31, 32, 32, 33],
        "next_token": [[1, 3, -1, 5, -1, -1]] * 2, "next_sibling": [[-1, 2, -1, 4, -1, -1]] * 2,
        "accept_index": [[0, 2, -1, -1], [6, 7, 10, -1]],
    }  # fmt: skip
    return packet(
        arrays, facts, start_ns=200, round=3, requests=[state(1), state(2)], request_rounds=[1, 4], nodes=6,
        committed=[2, 3], counted=[True, True], phases=[("draft", 200, 210)],
    )  # fmt: skip


def rows(run: Path, table: str) -> list[Row]:
    """Rows of a table, from its closed files in the order of their names."""
    files = sorted((run / table).glob("*.parquet"))
    schema = arrow_schema(TABLES[table])
    parts = [pq.read_table(f, schema=schema) for f in files]
    return pa.concat_tables(parts).to_pylist() if parts else []
