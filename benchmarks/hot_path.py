"""The hooks of one round, without an engine: tensors of the lab's shapes go through the real hooks.

`python -m benchmarks.hot_path` prints the time of a round's hooks; `run(rounds)` is what the instruction count runs.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

from eagletrace.instrumentations.patching import RoundHook, Target
from eagletrace.instrumentations.sglang import launch, results, verdict
from eagletrace.instrumentations.sglang.deferred import Deferred
from eagletrace.instrumentations.sglang.forward import RunnerForward
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.settings import Settings

VOCAB, DRAFT_VOCAB, WIDTH, STEPS = 1024, 512, 384, 3
VERDICTS = 64  # with tensors of their own, which take turns


class Mode(Enum):
    """A forward mode."""

    DECODE = 1

    def is_extend(self) -> bool:
        """A decode."""
        return False


class Request:
    """An engine request."""

    def __init__(self, number: int) -> None:
        self.rid = f"request-{number}"
        self.origin_input_ids = [1, 2, 3]
        self.output_ids: list[int] = [5]
        self.finished_reason = None
        self.is_retracted = False
        self.sampling_params = SimpleNamespace(temperature=1.0, top_k=1, max_new_tokens=9)
        self.finished_len = None
        self.spec_verify_ct = 0

    def finished(self) -> bool:
        """It goes on."""
        return self.finished_reason is not None


class HandedOver(Deferred):
    """What the recorder's thread would read is not counted."""

    def _close(self) -> None:
        self.group = None


class Round:
    """The calls of one round of a v2 worker's chain, in their order, each through its hook."""

    def __init__(self, recorder: Any, batch: int, level: str) -> None:
        self.level = level
        self.session = session = Session(recorder, "0.5.23", SimpleNamespace(disaggregation_mode="null"))
        session.serving = session.first_extend_seen = True
        session.draft_runner, session.draft_id_or_zero = object(), torch.zeros(VOCAB, dtype=torch.int64)
        session.counts_only, session.chain_steps = level == "contract", STEPS
        session.draft_facts = {"target_hidden_size": 128}
        session.deferred = HandedOver()
        self.reqs = [Request(n) for n in range(batch)]
        self.batch = SimpleNamespace(reqs=self.reqs, forward_mode=Mode.DECODE)
        self.worker = SimpleNamespace(topk=1)
        self.hooks: dict[str, RoundHook] = {
            name: kind(Target(name, "x:y", True, ""), session)
            for name, kind in {
                "generate": launch.Generate, "draft": launch.Draft, "forward": RunnerForward, "verify": launch.Verify,
                "greedy": verdict.Greedy, "extend": launch.ExtendDecodeV2, "results": results.Results,
            }.items()
        }  # fmt: skip
        nodes = STEPS + 1
        logits = torch.randn(batch, DRAFT_VOCAB)
        self.forward_batch = SimpleNamespace(
            spec_info=SimpleNamespace(hidden_states=torch.randn(batch, WIDTH)), positions=torch.arange(batch)
        )
        self.output = SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=None))
        self.verify_input = SimpleNamespace(positions=None, topk=1)
        accept = torch.full((batch, nodes), -1, dtype=torch.int32)
        accept[:, 0] = torch.arange(batch) * nodes
        self.verdicts: deque[dict[str, torch.Tensor]] = deque()
        for _ in range(VERDICTS):
            tokens = torch.randint(0, VOCAB, (batch, nodes))
            self.verdicts.append({
                "candidates": tokens, "target_predict": tokens + 0, "retrieve_next_token": tokens,
                "retrieve_next_sibling": tokens, "accept_index": accept + 0, "positions": torch.arange(batch * nodes),
            })  # fmt: skip
        self.hidden = torch.randn(batch * nodes, WIDTH)

        self.result = SimpleNamespace(
            logits_output=SimpleNamespace(hidden_states=self.hidden), can_run_cuda_graph=False,
            num_correct_drafts_per_req_cpu=[0] * len(self.reqs),
        )  # fmt: skip
        self._put()

    def _put(self) -> None:
        """The engine's functions, each under its hook."""

        def forward(_: Any, __: Any) -> Any:
            return self.output

        def draft(_: Any, __: Any) -> Any:
            for _step in range(STEPS - 1):
                calls["forward"](self.session.draft_runner, self.forward_batch)
            self.verdicts.rotate(1)
            self.verify_input.positions = self.verdicts[0]["positions"]
            return self.verify_input

        def greedy(accept_index: Any, **_: Any) -> Any:
            return None, accept_index, None

        def verify(_: Any, __: Any) -> Any:
            calls["forward"](None, self.forward_batch)
            calls["greedy"](**self.verdicts[0])
            return self.result

        def extend(_: Any, __: Any, ___: Any) -> None:
            calls["forward"](self.session.draft_runner, self.forward_batch)

        def generate(worker: Any, batch: Any) -> Any:
            if self.level == "contract":
                return self.result
            calls["draft"](worker, batch)
            result = calls["verify"](worker, batch)
            calls["extend"](worker, batch, result)
            return result

        def results(_: Any, __: Any, ___: Any) -> None:
            return None

        functions = {"forward": forward, "draft": draft, "greedy": greedy, "verify": verify, "extend": extend,
                     "generate": generate, "results": results}  # fmt: skip
        calls = self.calls = {
            name: self.hooks[name].wrapper(function, method=name != "greedy") for name, function in functions.items()
        }

    def __call__(self) -> None:
        """One round."""
        result = self.calls["generate"](self.worker, self.batch)
        self.calls["results"](self.worker, self.batch, result)
        vars(result).pop("_eagletrace", None)


class Sink:
    """A recorder whose queue nobody reads: of the hooks alone."""

    def __init__(self, level: str) -> None:
        self.settings = Settings(level=level, hidden_every=10**9)

    def launch(self, packet: Any) -> None:
        """Measures it as the queue would."""
        _ = packet.bytes

    def counts(self, *counts: Any) -> None:
        """Nothing."""


def run(rounds: int, batch: int, level: str) -> float:
    """CPU microseconds of each round, the fake engine's own part included."""
    torch.set_num_threads(1)
    one = Round(Sink(level), batch, level)
    one()
    one()
    start = time.thread_time()
    for _ in range(rounds):
        one()
    return (time.thread_time() - start) / rounds * 1e6


def main() -> None:
    """Print the best of several runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--level", default="tokens")
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    times = [run(options.rounds, options.batch, options.level) for _ in range(options.repeat)]
    label = f"level {options.level}, {options.batch} requests"
    print(f"{label}: {min(times):.1f} us of CPU a round, the stand-in engine included")


if __name__ == "__main__":
    main()
