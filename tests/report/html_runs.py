"""Runs for the tests of the report: a tree with branches, and one whose every text is HTML and script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagletrace.format import TABLES
from tests.store.runs import Row, make_folder, request, small_run, writer

HOSTILE = (
    "</script><script>document.title='hacked'</script>"
    """<img src=x onerror="document.title='hacked'">'"`&lt;\u202e\x1b[31m"""
)

# One round: the root, two drafts, under the right one two more, under that one right and one wrong at depth 3.
TREE: tuple[tuple[int, int | None, int, int, int, bool, bool | None], ...] = (
    # node, parent, depth, token, target's token after it, reached, accepted
    (0, None, 0, 10, 11, True, None),
    (1, 0, 1, 11, 21, True, True),
    (2, 0, 1, 12, 29, True, False),
    (3, 1, 2, 21, 33, True, True),
    (4, 1, 2, 22, 39, True, False),
    (5, 3, 3, 31, 41, True, False),
    (6, 3, 3, 32, 42, True, False),
    (7, 4, 3, 34, 43, False, False),
)


def tree_run(path: Path) -> Path:
    """One request, ten rounds of the same tree: two correct drafts, then the target wants 33, the draft's no. 7."""
    make_folder(path)
    after = {node: target for node, _, _, _, target, *_ in TREE}
    nodes: list[Row] = []
    drafts: list[Row] = []
    rounds: list[Row] = []
    for number in range(1, 11):
        position = 10 + 3 * (number - 1)
        rounds.append({"round": number, "request_round": number, "request_seq": 1, "request_id": "req-1", "row": 0,
                       "batch_size": 1, "position": position, "cached_tokens": 0, "drafted": 7, "accepted": 2,
                       "committed": 3, "counted": True, "time_unix_nano": number * 10**9})  # fmt: skip
        for node, parent, depth, token, target, reached, accepted in TREE:
            place: Row = {"round": number, "request_seq": 1, "node": node, "parent_node": parent, "depth": depth,
                          "position": position + depth}  # fmt: skip
            wanted = None if parent is None else after[parent]
            rank = None if parent is None else 7 if parent == 3 else 1
            nodes.append({**place, "draft_token": token, "expected_token": wanted, "target_token": target,
                          "reached": reached, "accepted": accepted, "target_token_in_draft_vocab": True,
                          "draft_rank_of_target_token": rank})  # fmt: skip
            if parent is not None:
                drafts.append({**place, "token": token, "draft_vocab_id": token, "draft_logprob": -0.6931})
    out = writer(path)
    out.write("rounds", rounds)
    out.write("verifies", nodes)
    out.write("drafts", drafts)
    out.write("requests", [request(output_tokens=31)])
    return path


def hostile_run(path: Path) -> Path:
    """The small run with `HOSTILE` in every text column of every table and everywhere in run.json."""
    small_run(path, run_id=HOSTILE, sglang=HOSTILE, host=HOSTILE, server_args={HOSTILE: HOSTILE, "model_path": HOSTILE},
              settings={"level": "tokens", "aux_layers": HOSTILE})  # fmt: skip
    out = writer(path)
    for table in TABLES.values():
        if table.name in ("rounds", "verifies", "requests", "drafts", "totals"):
            continue
        out.write(table.name, [{c.name: _hostile(c.name, c.type) for c in table.columns}])
    out.write("requests", [request(time_unix_nano=3, request_id=HOSTILE, finish_reason=HOSTILE, prompt_hash=HOSTILE)])
    for key, value in _FACTS.items():
        out.write("contract", [{"key": key, "expected": None, "actual": json.dumps(value), "source": HOSTILE}])
    kinds = ("weights_changed", "engine_exception", "rows_dropped", HOSTILE)
    detail = json.dumps(dict.fromkeys((HOSTILE, "type", "message", "where", "reason"), HOSTILE))
    out.write("events", [{"time_unix_nano": 2 * 10**9, "kind": kind, "detail": detail} for kind in kinds])
    out.write("totals", [{"time_unix_nano": 2, "rounds": 0, "drafted": 0, "accepted": 0, "reached_by_depth": [],
                          "accepted_by_depth": [], "correct_drafts_histogram": [],
                          "dropped_rows_by_reason": json.dumps({HOSTILE: 3})}])  # fmt: skip
    return path


_FACTS: dict[str, Any] = {
    "server.speculative_algorithm": HOSTILE,
    "server.model_path": HOSTILE,
    "server.speculative_draft_model_path": HOSTILE,
    "engine.version": HOSTILE,
    "draft.config": {HOSTILE: [HOSTILE] * 40},
    "env.simulated_acceptance": None,
}


def _hostile(name: str, kind: str) -> Any:
    values: dict[str, Any] = {
        "string": HOSTILE, "json": json.dumps({HOSTILE: HOSTILE}), "bool": False, "binary": HOSTILE.encode(),
        "list<string>": [HOSTILE], "list<int64>": [1],
    }  # fmt: skip
    if name in ("expected", "actual", "landed_in"):
        return json.dumps([{"parameter": HOSTILE, "offset": 1, "elements": 2}])
    if kind in values:
        return values[kind]
    return 1.0 if kind.startswith("float") else 1
