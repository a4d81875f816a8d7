"""Launches as the hot path leaves them: a chain and a tree whose verdicts were worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

PROCESS = {"host": "node", "pid": 7, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
Row = dict[str, Any]


def state(seq: int = 1, **facts: Any) -> RequestState:
    """A user request whose prompt is three tokens."""
    known: dict[str, Any] = {"rid": f"req-{seq}", "kind": "user", "sampled": True, "start_ns": 10,
                             "prompt_ids": [81_001, 81_002, 81_003], "prompt_tokens": 3}  # fmt: skip
    return RequestState(seq=seq, **(known | facts))


def host(values: Any, dtype: type = np.int64) -> Callable[[], npt.NDArray[Any]]:
    """A reader of values that are on the host already."""
    array: npt.NDArray[Any] = np.array(values, dtype=dtype)
    return lambda: array


def chain(
    drafts: Sequence[int], target: Sequence[int], *, root: int = 100, number: int = 1, position: int = 10,
    requests: Sequence[RequestState] | None = None, **facts: Any,
) -> RoundPacket:  # fmt: skip
    """One request's chain: `target[k]` is the target's choice after node k; the engine accepts while they agree."""
    nodes = len(drafts) + 1
    correct = next((k for k, token in enumerate(drafts) if token != target[k]), len(drafts))
    accept = [k if k <= correct else -1 for k in range(nodes)]
    packet = RoundPacket(
        round=number, start_ns=100, requests=list(requests or [state()]), request_rounds=[number], nodes=nodes,
        draft_tokens=host([root, *drafts]), target_tokens=host(target),
        positions=host([position + k for k in range(nodes)]), accept_index=host([accept]),
        committed=[correct + 1], counted=[True], engine_accepted=[correct],
        phases=[("draft", 100, 110), ("verify", 110, 130)],
    )  # fmt: skip
    for name, value in facts.items():
        setattr(packet, name, value)
    return packet


def tree(**facts: Any) -> RoundPacket:
    """Two requests, six nodes each:

        0 ── 1 ── 3 ── 5
        │    └─── 4
        └─── 2

    Request 1 accepts 0, 2 (its target chose 52 after the root) and stops: 2 is a leaf.
    Request 2 accepts 0, 1, 4: after node 1 its target chose 64, the second child.
    """
    next_token = [[1, 3, -1, 5, -1, -1]] * 2
    next_sibling = [[-1, 2, -1, 4, -1, -1]] * 2
    packet = RoundPacket(
        round=3, start_ns=200, requests=[state(1), state(2)], request_rounds=[1, 4], nodes=6,
        draft_tokens=host([50, 51, 52, 53, 54, 55, 60, 61, 62, 63, 64, 65]),
        target_tokens=host([52, 90, 91, 92, 93, 94, 61, 64, 95, 96, 97, 98]),
        positions=host([20, 21, 21, 22, 22, 23, 30, 31, 31, 32, 32, 33]),
        next_token=host(next_token), next_sibling=host(next_sibling),
        accept_index=host([[0, 2, -1, -1], [6, 7, 10, -1]]),
        committed=[2, 3], counted=[True, True], phases=[("draft", 200, 210)],
    )  # fmt: skip
    for name, value in facts.items():
        setattr(packet, name, value)
    return packet


def rows(run: Path, table: str) -> list[Row]:
    """Rows of a table, from its closed files in the order of their names."""
    files = sorted((run / table).glob("*.parquet"))
    schema = arrow_schema(TABLES[table])
    parts = [pq.read_table(f, schema=schema) for f in files]
    return pa.concat_tables(parts).to_pylist() if parts else []
