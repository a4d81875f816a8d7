"""The hooks of one round of a steady state, without an engine: tensors of the lab's shapes go through the real hooks.

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
from eagletrace.instrumentations.sglang.forward import RunnerForward
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.steady import Noted
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


class Round:
    """The calls of one round of a v2 worker's chain, in their order, each through its hook."""

    def __init__(self, recorder: Any, batch: int, level: str) -> None:
        self.level = level
        self.session = session = Session(recorder, "0.5.23", SimpleNamespace(disaggregation_mode="null"))
        session.serving = session.first_extend_seen = True
        session.draft_runner, session.draft_id_or_zero = object(), torch.zeros(VOCAB, dtype=torch.int64)
        session.counts_only, session.chain_steps = level == "contract", STEPS
        session.draft_facts = {"target_hidden_size": 128}
        session.lean, session.samples, session.deferred.trusted = level == "tokens", False, True
        session.noted = deque[Any](maxlen=VERDICTS)  # what the recorder's thread would understand is not counted
        self.reqs = [Request(n) for n in range(batch)]
        self.batch = SimpleNamespace(reqs=self.reqs, forward_mode=Mode.DECODE)
        self.worker = SimpleNamespace(topk=1)
        self.hooks: dict[str, RoundHook] = {
            name: kind(Target(name, "x:y", True, ""), session)
            for name, kind in {
                "generate": launch.Generate, "forward": RunnerForward, "greedy": verdict.Greedy,
                "results": results.Results,
            }.items()
        }  # fmt: skip
        nodes = STEPS + 1
        logits = torch.randn(batch, DRAFT_VOCAB)
        self.forward_batch = SimpleNamespace(
            spec_info=SimpleNamespace(hidden_states=torch.randn(batch, WIDTH)), positions=torch.arange(batch)
        )
        self.output = SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=None))
        self.verify_batch, self.target_runner = SimpleNamespace(positions=None), object()
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

        def greedy(accept_index: Any, **_: Any) -> Any:
            return None, accept_index, None

        def generate(_: Any, __: Any) -> Any:
            if self.level == "contract":
                return self.result
            draft, target, forward = self.session.draft_runner, self.target_runner, calls["forward"]
            for _step in range(STEPS - 1):
                forward(draft, self.forward_batch)
            self.verdicts.rotate(1)
            now = self.verdicts[0]
            self.verify_batch.positions = now["positions"]
            forward(target, self.verify_batch)
            calls["greedy"](**now)
            forward(draft, self.forward_batch)
            return self.result

        def results(_: Any, __: Any, ___: Any) -> None:
            return None

        functions = {"forward": forward, "greedy": greedy, "generate": generate, "results": results}
        calls = self.calls = {
            name: self.hooks[name].wrapper(function, method=name != "greedy") for name, function in functions.items()
        }

    def settle(self) -> None:
        """Run until rounds are as they go on."""
        for _ in range(3):
            self()
        self.session.batch.most = self.session.batch.most and 10**9  # nothing is understood here
        assert self.level != "tokens" or type(self.session.noted[-1]) is Noted

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
    one.settle()
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
