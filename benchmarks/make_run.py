"""Writes a run of any size through the real recorder, without a server: chains of 3 drafts, 8 requests at once.

    python -m benchmarks.make_run FOLDER --nodes 10_000_000

Load-time facts are those of the recorded run that ships with the package. Some requests are warm-ups, and each request
is followed by one round that ran after it had finished, as under the overlap scheduler. Nothing is dropped: what plays
the engine waits for the recorder's thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.record import run_folder
from eagletrace.record.merge import EVERYTHING
from eagletrace.record.recorder import Recorder
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import HiddenFacts, RoundPacket, Values
from eagletrace.settings import Settings

DEMO = Path(__file__).resolve().parent.parent / "eagletrace" / "data" / "demo-run"
PROCESS = {"host": "bench", "pid": 4242, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
BATCH, DRAFTS, VOCABULARY = 8, 3, 32_000
RATES = (0.72, 0.75, 0.78)  # conditional acceptance by depth
OUT_OF_VOCABULARY = 0.02
ROUNDS_OF_A_REQUEST = (60, 400)
WARMUP_EVERY = 50  # one request in so many
ROUND_NS = 20_000_000
HIDDEN_EVERY = 32
LAUNCHES_A_FLUSH = 2_000
BLOCK = 4_096  # launches whose random numbers are drawn at once


@dataclass
class Requests:
    """The requests in the eight rows of the batch."""

    rng: np.random.Generator
    made: int = 0
    rows: list[RequestState] = field(default_factory=list[RequestState])
    left: list[int] = field(default_factory=list[int])  # rounds until the request ends; 0 is the round after its end
    positions: list[int] = field(default_factory=list[int])

    def new(self, now: int) -> tuple[RequestState, int]:
        """A request and its number of rounds."""
        self.made += 1
        tokens = int(self.rng.integers(50, 2_000))
        kind = "warmup" if self.made % WARMUP_EVERY == 1 else "user"
        state = RequestState(
            seq=self.made, rid=f"{self.rng.integers(1 << 62):032x}", kind=kind, sampled=True, start_ns=now,
            prompt_ids=list(range(tokens)), prompt_tokens=tokens, cached_tokens=int(self.made % 3 == 0) * (tokens // 2),
            temperature=0.0, has_grammar=False, has_image=False, engine_rounds=0, engine_accepted=0,
        )  # fmt: skip
        return state, int(self.rng.integers(*ROUNDS_OF_A_REQUEST))


def _host(array: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
    return lambda: array


def packet(
    number: int, now: int, requests: Requests, tokens: npt.NDArray[np.int64], correct: npt.NDArray[np.int64],
    known: npt.NDArray[np.bool_],
) -> RoundPacket:  # fmt: skip
    """One launch as the hooks hand it over; the one place that knows the packet's fields.

    `tokens` [bs, D + 1]: the drafts and a token for the bonus; `correct` [bs]; `known` [bs]: whether the target's token
    is in the draft vocabulary.
    """
    bs, nodes = BATCH, DRAFTS + 1
    drafts, target = tokens[:, :nodes], tokens[:, 1:].copy()
    wrong = np.arange(nodes) >= correct[:, None]
    target[wrong] = (target[wrong] + 7) % VOCABULARY
    base = np.arange(bs)[:, None] * nodes
    steps = np.arange(nodes)
    accept = np.where(steps <= correct[:, None], base + steps, -1)
    positions = np.array(requests.positions)[:, None] + steps
    miss = wrong[:, :-1] & ~known[:, None]
    better = np.where(miss, np.nan, np.where(wrong[:, :-1], 1 + tokens[:, 1:-1] % 60, 0))
    probs = np.exp(-(tokens[:, 1:-1] % 97 + 1) / 40)
    values = Values.of({
        "draft_tokens": drafts, "target_tokens": target, "positions": positions, "accept_index": accept,
        "draft_ids": drafts[:, 1:], "rope_positions": positions[:, 2:] - 1,
        "better": better, "draft_probs": probs, "draft_logits": np.zeros_like(probs),
        "draft_means": 2 * np.log(probs),
    })  # fmt: skip
    counted = [left > 0 for left in requests.left]
    hidden = [
        HiddenFacts(stage, slots, width, _host(np.full((bs, slots), 1.25, np.float32)),
                    _host(np.zeros((bs, slots), np.int64)), _host(np.full((bs, slots), 3.5, np.float32)))
        for stage, slots, width in (("target_aux", 3, 64), ("fc_in", 1, 192), ("fc_out", 1, 64), ("draft_out", 1, 64))
    ] if number % HIDDEN_EVERY == 0 else []  # fmt: skip
    return RoundPacket(
        round=number, start_ns=now, requests=list(requests.rows),
        request_rounds=[r.request_round for r in requests.rows], nodes=nodes,
        values=values, graph=False,
        target_hidden_width=192, draft_input_widths=[192] * bs, fc_applied=[1] * bs,
        committed=[int(c) + 1 if k else 0 for c, k in zip(correct, counted, strict=True)], counted=counted,
        engine_accepted=[int(c) for c in correct], cached_tokens=[r.cached_tokens or 0 for r in requests.rows],
        hidden=hidden,
        phases=[("draft", now, now + 4_000_000), ("verify", now + 4_000_000, now + 16_000_000)],
    )  # fmt: skip


def launches(count: int, seed: int, ended: Callable[[RequestState], None]) -> Iterator[RoundPacket]:
    """`count` launches; `ended` is called when a request starts and when it ends."""
    rng = np.random.default_rng(seed)
    now = time.time_ns() - count * ROUND_NS
    requests = Requests(rng)
    for _ in range(BATCH):
        state, left = requests.new(now)
        requests.rows.append(state)
        requests.left.append(left)
        requests.positions.append(state.prompt_tokens)
        ended(state)
    for first in range(0, count, BLOCK):
        tokens = np.minimum(rng.zipf(1.3, (BLOCK, BATCH, DRAFTS + 2)), VOCABULARY) * 7919 % VOCABULARY
        passed = rng.random((BLOCK, BATCH, DRAFTS)) < RATES
        correct = np.cumprod(passed, axis=2).sum(axis=2)
        known = rng.random((BLOCK, BATCH)) >= OUT_OF_VOCABULARY
        for index in range(min(BLOCK, count - first)):
            now += ROUND_NS
            for state in requests.rows:
                state.request_round += 1
            yield packet(first + index + 1, now, requests, tokens[index], correct[index], known[index])
            _advance(requests, correct[index], now, ended)


def _advance(
    requests: Requests, correct: npt.NDArray[np.int64], now: int, ended: Callable[[RequestState], None]
) -> None:
    for row, state in enumerate(requests.rows):
        if requests.left[row] > 0:
            accepted = int(correct[row])
            state.output_tokens += accepted + 1
            state.engine_rounds = (state.engine_rounds or 0) + 1
            state.engine_accepted = (state.engine_accepted or 0) + accepted
            requests.positions[row] += accepted + 1
            requests.left[row] -= 1
            if requests.left[row] == 0:
                state.finish_reason, state.end_ns = "length", now
                ended(state)
        else:
            new, left = requests.new(now)
            requests.rows[row], requests.left[row], requests.positions[row] = new, left, new.prompt_tokens
            ended(new)


def load_time_facts(recorder: Recorder) -> None:
    """The load-time rows of the recorded run, as if of this server."""
    for table in ("contract", "params", "checkpoint_keys", "hooks"):
        for file in sorted((DEMO / table).glob("*.parquet")):
            for row in pq.read_table(file).to_pylist():
                for name in PROCESS:
                    row.pop(name)
                for name in ("expected", "actual", "landed_in"):
                    row.update({name: json.loads(row[name])} if row.get(name) is not None else {})
                recorder.row(table, **row)
    recorder.event("weights_loaded", side="draft")


def make(
    folder: Path, nodes: int, *, launches_a_flush: int = LAUNCHES_A_FLUSH, merge: bool = True, seed: int = 0
) -> Path:
    """Write a run with about `nodes` verified nodes below `folder`; returns the run's folder."""
    settings = replace(Settings(), dir=folder, run_id=f"nodes-{nodes}", max_bytes=1 << 40, flush_s=3600)
    run = run_folder.create(settings, {"sglang": "0.5.23"}, PROCESS)
    recorder = Recorder(run, settings, PROCESS, {"service.name": "bench"})
    ids = np.arange(VOCABULARY)
    recorder.draft_id_of = np.where(ids % 31 == 3, -1, ids)  # the draft lacks one token in 31
    recorder.start()
    load_time_facts(recorder)
    count = max(1, nodes // (BATCH * (DRAFTS + 1)))
    for number, launch in enumerate(launches(count, seed, recorder.request)):
        recorder.launch(launch)
        if number % launches_a_flush == launches_a_flush - 1 and not recorder.flush(600):
            raise RuntimeError("the recorder's thread does not answer")
    recorder.flush(600)
    recorder.stop(600)
    if merge:
        recorder.writer.merge(EVERYTHING)
    return run


def main() -> None:
    """Write one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--launches-a-flush", type=int, default=LAUNCHES_A_FLUSH)
    parser.add_argument("--no-merge", dest="merge", action="store_false", help="leave one file for each flush")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    run = make(options.folder, options.nodes, launches_a_flush=options.launches_a_flush, merge=options.merge,
               seed=options.seed)  # fmt: skip
    files = list(run.glob("*/*.parquet"))
    size = sum(f.stat().st_size for f in files)
    dropped = sum(pq.read_table(f, columns=["dropped_rows_by_reason"]).column(0).drop_null().length()
                  for f in run.glob("totals/*.parquet"))  # fmt: skip
    print(f"{run}: {len(files)} files, {size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s, {dropped} dropped; "
          f"pyarrow {pa.__version__}")  # fmt: skip


if __name__ == "__main__":
    main()
