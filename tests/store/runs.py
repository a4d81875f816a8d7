"""Small runs with known counts, written by the writer of the package itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagletrace.record.writer import TraceWriter

Row = dict[str, Any]


def make_folder(path: Path, *, start: int = 1, **facts: Any) -> Path:
    path.mkdir(parents=True)
    run = {"schema_version": 1, "run_id": path.name, "start_time_unix_nano": start, "host": "node", "sglang": "0.5.23"}
    (path / "run.json").write_text(json.dumps({**run, "settings": {"level": "tokens"}, **facts}))
    return path


def writer(path: Path, *, pid: int = 7, tp_rank: int | None = 0) -> TraceWriter:
    return TraceWriter(path, {"host": "node", "pid": pid, "tp_rank": tp_rank, "dp_rank": None, "pp_rank": 0})


def chain(
    number: int, position: int, root: int, drafts: Sequence[int], target: Sequence[int], *, seq: int = 1, **facts: Any
) -> tuple[Row, list[Row]]:
    """One chain round: `target[k]` is the target's token after node k; a draft is correct when it equals it."""
    accepted = next((k for k, token in enumerate(drafts) if token != target[k]), len(drafts))
    nodes: list[Row] = []
    for node, token in enumerate([root, *drafts]):
        nodes.append({
            "round": number, "request_seq": seq, "node": node, "parent_node": node - 1 if node else None,
            "depth": node, "position": position + node, "draft_token": token, "target_token": target[node],
            "expected_token": target[node - 1] if node else None, "reached": node <= accepted + 1,
            "accepted": node <= accepted if node else None,
            "draft_rank_of_target_token": (1 if node <= accepted else 4) if node else None,
            "target_token_in_draft_vocab": True if node else None,
        })  # fmt: skip
    row: Row = {
        "round": number, "request_round": number, "request_seq": seq, "request_id": f"req-{seq}", "row": 0,
        "batch_size": 1, "position": position, "cached_tokens": 0, "drafted": len(drafts), "accepted": accepted,
        "committed": accepted + 1, "counted": True, "time_unix_nano": number * 10**9,
    }  # fmt: skip
    return {**row, **facts}, nodes


def request(seq: int = 1, **facts: Any) -> Row:
    row: Row = {"request_seq": seq, "request_id": f"req-{seq}", "request_kind": "user", "prompt_tokens": 10}
    return {**row, "time_unix_nano": 1, **facts}


def small_run(path: Path, **facts: Any) -> Path:
    """Output 100..108: rounds with 2, 0 and 3 correct drafts (the last one cut to 3 tokens), and one ghost round."""
    make_folder(path, **facts)
    rounds = [
        chain(1, 10, 100, [101, 102, 7], [101, 102, 103, 9]),
        chain(2, 13, 103, [8, 8, 8], [104, 9, 9, 9]),
        chain(3, 14, 104, [105, 106, 107], [105, 106, 107, 108], committed=3),
        chain(4, 17, 107, [1, 2, 3], [1, 2, 3, 4], committed=0, counted=False),
        chain(5, 10, 1, [2, 3, 4], [2, 3, 4, 5], seq=2),
    ]
    w = writer(path)
    w.write("rounds", [r for r, _ in rounds])
    w.write("verifies", [n for _, nodes in rounds for n in nodes])
    w.write("requests", [request(), request(2, request_kind="warmup")])
    end: Row = {"output_tokens": 8, "engine_rounds": 3, "engine_accepted": 5, "finish_reason": "length"}
    w.write("requests", [request(time_unix_nano=2, end_time_unix_nano=9, **end)])
    w.write("totals", [{"time_unix_nano": 1, "rounds": 3, "drafted": 9, "accepted": 5, "reached_by_depth": [3, 2, 2],
                        "accepted_by_depth": [2, 2, 1], "correct_drafts_histogram": [1, 0, 1, 1]}])  # fmt: skip
    return path
