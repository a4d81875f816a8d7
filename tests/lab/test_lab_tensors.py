"""Level `tensors` on real servers: what is stored is what the target alone computes for the same tokens.

The target is computed anew by Transformers from the recorded prompts and the outputs. Requests come together and one
after the other, with prompts of several chunks and with cached prefixes, on chains and trees.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_tensors
from request_kinds import CHUNK, LONG

from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.server import LabServer
from eagletrace.store import Run, open_run
from tests.cli.commands import eagletrace
from tests.lab.served import body

pytestmark = [pytest.mark.lab, pytest.mark.slow]
TOLERANCE = 1e-3  # of float32 states up to some tens, computed in another order
STEM = "class Parser:\n    def parse(self, text):\n        for line in text"
PROMPTS = (STEM, LONG[: 4 * CHUNK], "import re\n\n", f"{STEM}.splitlines():\n")  # the last finds the first's prefix
TOKENS = 21


@dataclass
class Served:
    """Outputs while tensors were stored, and the same requests while nothing was recorded; the run."""

    outputs: dict[str, list[int]]
    untraced: dict[str, list[int]]
    run: Run


def send(server: LabServer, name: str) -> dict[str, list[int]]:
    """Three requests together, then one that finds a prefix: output ids by name."""
    assert server.post("/flush_cache", {}).status == 200

    def one(number: int) -> list[int]:
        answer = server.post("/generate", body(PROMPTS[number], TOKENS, rid=f"{name}-{number}"))
        assert answer.status == 200, answer.body
        return answer.body["output_ids"]

    with ThreadPoolExecutor() as pool:
        together = list(pool.map(one, range(3)))
    return {str(number): ids for number, ids in enumerate([*together, one(3)])}


def serve(folder: Path, **options: Any) -> Iterator[Served]:
    plan = serving(ServeOptions(
        dir=folder / "runs", level="tensors", extra_env={"EAGLETRACE_AUX_LAYERS": "all", "EAGLETRACE_FLUSH_S": "0.5"},
        extra_flags={"chunked-prefill-size": CHUNK}, **options,
    ))  # fmt: skip
    with LabServer(plan.engine, plan.flags, plan.env, log=folder / "log") as server:
        outputs = send(server, "traced")
        time.sleep(1.0)
        assert eagletrace("ctl", folder / "runs", "--pause").returncode == 0
        untraced = send(server, "untraced")
        server.kill()
    (info,) = (folder / "runs").glob("*/run.json")
    with open_run(info.parent) as run:
        yield Served(outputs, untraced, run)


SETUPS = [
    pytest.param({"topk": 1}, id="0.5.23-v2-chain"),
    pytest.param({"topk": 3, "steps": 3, "draft_tokens": 12}, id="0.5.23-v2-tree"),
    pytest.param({"engine": "0.5.9", "worker": "v1"}, id="0.5.9-v1-chain", marks=pytest.mark.lab_0_5_9),
    pytest.param({"engine": "0.5.9", "worker": "v1", "topk": 3, "draft_tokens": 12}, id="0.5.9-v1-tree",
                 marks=[pytest.mark.lab_0_5_9, pytest.mark.soak]),
    pytest.param({"engine": "0.5.9", "worker": "v2"}, id="0.5.9-v2-chain",
                 marks=[pytest.mark.lab_0_5_9, pytest.mark.soak]),
    pytest.param({"engine": "0.5.20"}, id="0.5.20-v2-chain", marks=[pytest.mark.lab_0_5_20, pytest.mark.soak]),
    pytest.param({"engine": "0.5.20", "topk": 3, "draft_tokens": 12}, id="0.5.20-v2-tree",
                 marks=[pytest.mark.lab_0_5_20, pytest.mark.soak]),
]  # fmt: skip


@pytest.fixture(scope="module", params=SETUPS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("tensors"), **request.param)


def fact(run: Run, key: str) -> Any:
    return json.loads(run.rows(f"SELECT actual FROM contract WHERE key = '{key}'")[0]["actual"])


def test_stored_states_are_those_that_the_target_computes(served: Served) -> None:
    run = served.run
    target, layers = Path(fact(run, "server.model_path")), fact(run, "aux.layers_captured")
    first_worker = fact(run, "server.worker") == "EAGLEWorker"
    cached = {r["request_seq"]: r["cached_tokens"] or 0 for r in run.rows("SELECT * FROM requests")}
    found = {recorded.seq: recorded for recorded in recorded_tensors.read(run)}
    assert len(found) == len(PROMPTS) and max(cached.values()) > 20 and any(r.chunk_ends for r in found.values())
    for seq, recorded in found.items():
        tokens = recorded.tokens
        truth = recorded_tensors.layer_inputs(target, tokens)
        positions = recorded.positions("target_aux")
        # From the first position that was computed to the last whose next token was kept.
        assert positions == list(range(cached[seq], cached[seq] + len(positions)))
        last = len(tokens) - 2
        assert last - 4 <= positions[-1] <= last if first_worker else positions[-1] == last
        assert recorded.positions("fc_out") == recorded.positions("input_ids") == positions
        # 0.5.9 gives the draft the token that it sampled after a chunk, not the prompt's next one.
        other = recorded.chunk_ends if fact(run, "engine.version") == "0.5.9" else set[int]()
        given = dict(zip(positions, recorded.values("input_ids").tolist(), strict=True))
        assert {p for p in positions if given[p] != tokens[p + 1]} <= other
        expected = np.concatenate([truth[layer][positions] for layer in layers], axis=-1)
        np.testing.assert_allclose(recorded.values("target_aux"), expected, atol=TOLERANCE)
        for layer, states in enumerate(truth):
            where = recorded.positions("target_layer", layer)
            assert where == list(range(cached[seq], last + 1))
            np.testing.assert_allclose(recorded.values("target_layer", layer), states[where], atol=TOLERANCE)


def test_steps_belong_to_the_rounds_that_they_drafted(served: Served) -> None:
    """Each drafted token is among the best ids of its depth, and the best one of a chain is the first."""
    drafts = served.run.rows(
        "SELECT request_seq, round, depth, list(draft_vocab_id) AS ids, any_value(r.position) AS root "
        "FROM drafts JOIN rounds r USING (host, pid, round, request_seq) WHERE counted GROUP BY ALL"
    )
    topk = fact(served.run, "server.speculative_eagle_topk")
    found = {recorded.seq: recorded for recorded in recorded_tensors.read(served.run)}
    checked = 0
    for row in drafts:
        steps = found[row["request_seq"]].rounds
        position, best = steps["draft_top_ids", row["depth"]][row["round"]]
        _, out = steps["draft_out", row["depth"]][row["round"]]
        assert position == row["root"] + row["depth"] - 2
        assert best.shape == ((1 if row["depth"] == 1 else topk), 10) and len(out) == len(best)
        assert set(row["ids"]) <= set(best[:, :topk].ravel().tolist())
        if row["depth"] > 1:
            _, given = steps["draft_in", row["depth"]][row["round"]]
            _, before = steps["draft_out", row["depth"] - 1][row["round"]]
            assert all(any(np.array_equal(one, other) for other in before) for one in given)
        checked += 1
    assert checked > 40


def test_storing_tensors_changes_no_token_and_no_hook_fails(served: Served) -> None:
    assert served.outputs == served.untraced and all(len(ids) == TOKENS for ids in served.outputs.values())
    assert served.run.rows("SELECT * FROM hooks WHERE errors > 0") == []
    kinds = {row["kind"] for row in served.run.rows("SELECT DISTINCT kind FROM events")}
    assert kinds & {"hook_error", "tensors_bounded", "rows_dropped"} == set()
