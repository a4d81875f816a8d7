"""Level `contract` where the engine does not count: which rounds of which requests do."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.patching import Target  # noqa: E402
from eagletrace.instrumentations.sglang.distributions import of_chain  # noqa: E402
from eagletrace.instrumentations.sglang.launch import Generate  # noqa: E402
from eagletrace.instrumentations.sglang.results import Results  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402

STEPS = 3
TARGET = Target("t", "a:b", True, "")


class Mode(Enum):
    EXTEND = 1
    DECODE = 2

    def is_extend(self) -> bool:
        return self is Mode.EXTEND


class Req:
    """An engine request that runs."""

    def __init__(self, rid: str) -> None:
        self.rid, self.origin_input_ids, self.output_ids = rid, [1, 2], [3]
        self.finished_reason: Any = None
        self.is_retracted = False
        self.sampling_params = SimpleNamespace(temperature=1.0, top_k=1, max_new_tokens=9)

    def finished(self) -> bool:
        return self.finished_reason is not None


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(level="contract", sample=1.0, hidden_every=1)
        self.counted: list[tuple[list[str], list[int], list[bool]]] = []
        self.ended: list[str] = []
        self.crashes: list[str] = []

    def counts(self, states: Any, correct: list[int], counted: list[bool], steps: int) -> None:
        assert steps == STEPS
        self.counted.append(([s.rid for s in states], list(correct), list(counted)))

    def request(self, state: Any) -> None:
        self.ended.append(state.rid)

    def event(self, kind: str, **detail: Any) -> None:
        if kind == "engine_exception":
            self.crashes.append(detail["message"])

    def flush(self, _: float) -> bool:
        return True

    def prefilled(self, *_: Any) -> None:
        """A prefill's last token."""

    def phase(self, *_: Any) -> None:
        """A prefill's span."""


class Server:
    """A scheduler at level `contract`, one launch after the other. `happens` is what the engine does with a result."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        recorder: Any = self.recorder
        self.session = Session(recorder, "0", SimpleNamespace())
        self.session.serving = self.session.counts_only = True
        self.session.chain_steps = STEPS
        self.generate_hook, self.results_hook = Generate(TARGET, self.session), Results(TARGET, self.session)
        self.generate = self.generate_hook.wrapper(lambda *_: self.launched(), method=True)
        self.results = self.results_hook.wrapper(lambda *_: self.happens(), method=True)
        self.happens: Any = lambda: "processed"
        self.launched: Any = lambda: "launched"

    def round(self, reqs: list[Req], correct: list[int] | None, mode: Mode = Mode.DECODE, **result: Any) -> None:
        batch = SimpleNamespace(reqs=reqs, forward_mode=mode)
        assert self.generate(self, batch) == "launched"
        given = SimpleNamespace(num_correct_drafts_per_req_cpu=correct, **result)
        assert self.results(self, batch, given) == "processed"
        assert self.generate_hook.last_error is None and self.results_hook.last_error is None

    def finishing(self, *reqs: Req) -> Any:
        def happens() -> str:
            for req in reqs:
                req.finished_reason = "length"
            return "processed"

        return happens


@pytest.fixture
def server() -> Server:
    return Server()


def flags(server: Server) -> list[list[bool]]:
    return [counted for _, _, counted in server.recorder.counted]


def test_a_request_counts_to_the_round_in_which_it_finishes(server: Server) -> None:
    a, b = Req("a"), Req("b")
    server.round([a, b], [1, 2])
    server.round([a, b], [0, 3])
    server.happens = server.finishing(a)
    server.round([a, b], [2, 2])
    server.happens = lambda: "processed"
    server.round([a, b], [3, 1])  # the overlap scheduler had launched it already
    server.round([b], [1])
    assert flags(server) == [[True, True], [True, True], [True, True], [False, True], [True]]
    assert [correct for _, correct, _ in server.recorder.counted] == [[1, 2], [0, 3], [2, 2], [3, 1], [1]]
    assert server.recorder.ended == ["a"] and server.session.requests["a"].end_ns is not None


def test_what_runs_for_a_retracted_request_does_not_count(server: Server) -> None:
    a, b = Req("a"), Req("b")
    server.round([a, b], [1, 1])
    b.is_retracted = True
    server.round([a, b], [1, 1])
    b.is_retracted = False
    server.round([a, b], [1, 1])
    assert flags(server) == [[True, True], [True, False], [True, True]]


def test_requests_that_had_gone_when_their_batch_is_first_seen(server: Server) -> None:
    a, b = Req("a"), Req("b")
    a.finished_reason = "length"
    server.round([a, b], [1, 1])
    assert flags(server) == [[False, True]]


def test_every_result_of_the_first_worker_counts(server: Server) -> None:
    server.session.cuts_in_verify = True
    a, b = Req("a"), Req("b")
    a.finished_reason = "length"  # in its verify, before the result is processed
    server.round([a, b], [1, 1])
    server.round([b], [1])
    assert flags(server) == [[True, True], [True]]


def test_prefills_are_no_rounds_and_begin_a_batch_anew(server: Server) -> None:
    a, b = Req("a"), Req("b")
    server.round([a, b], [1, 1])
    server.round([b], None, Mode.EXTEND)
    server.round([a, b], [1, 1])
    assert flags(server) == [[True, True], [True, True]]


@pytest.mark.parametrize("name", ["accept_length_per_req_cpu", "num_accepted_drafts_per_req_cpu"])
def test_older_names_of_the_counts(server: Server, name: str) -> None:
    a = Req("a")
    for _ in range(3):
        server.round([a], None, Mode.DECODE, **{name: [2]})
    assert server.recorder.counted == [(["a"], [2], [True])] * 3


def test_an_engine_without_retraction(server: Server) -> None:
    a = Req("a")
    del a.is_retracted
    for _ in range(7):  # more than a hook's errors
        server.round([a], [1])
    assert flags(server) == [[True]] * 7


@pytest.mark.parametrize("place", ["launched", "happens"])
def test_what_the_engine_raises_is_recorded_and_passes(server: Server, place: str) -> None:
    a, error = Req("a"), ValueError("the engine's")
    server.round([a], [1])

    def dies() -> None:
        raise error

    setattr(server, place, dies)
    with pytest.raises(ValueError, match="the engine's") as caught:
        server.round([a], [1])
    assert caught.value is error and server.recorder.crashes == ["the engine's"]
    assert len(server.recorder.counted) == 1


def test_a_wrapper_of_this_level_serves_the_others(server: Server) -> None:
    """It may stay where another tool has wrapped it."""
    a = Req("a")
    server.round([a], [1])
    server.session.forget_launches()
    server.session.counts_only = False
    server.recorder.settings.level = "tokens"
    batch = SimpleNamespace(reqs=[a], forward_mode=Mode.DECODE)
    seen: list[Any] = []
    server.launched = lambda: seen.append(server.session.launch) or SimpleNamespace()
    result = server.generate(server, batch)
    assert seen[0] is not None and seen[0].packet.round == 1
    assert server.results(server, batch, result) == "processed"
    assert len(server.recorder.counted) == 1


def test_rounds_of_a_request_are_numbered_on_whoever_else_runs(server: Server) -> None:
    session = server.session
    session.counts_only, server.recorder.settings.level = False, "tokens"
    a, b = Req("a"), Req("b")

    def launch(reqs: list[Req], mode: Mode = Mode.DECODE) -> list[int]:
        seen: list[Any] = []
        server.launched = lambda: seen.append(session.launch) or SimpleNamespace()
        server.generate(server, SimpleNamespace(reqs=reqs, forward_mode=mode))
        assert server.generate_hook.last_error is None
        return [n + seen[0].packet.later for n in seen[0].packet.request_rounds] if seen[0] is not None else []

    found = [launch(reqs) for reqs in ([a], [a], [a, b], [a, b], [b, a], [b])]
    assert found == [[1], [2], [3, 1], [4, 2], [3, 5], [4]]
    assert launch([b], Mode.EXTEND) == []  # it was retracted
    assert [launch([b]), launch([b]), launch([a, b])] == [[1], [2], [6, 3]]


@pytest.mark.parametrize("width", [1, 7, 512])
def test_the_best_of_each_row_is_what_argmax_says(width: int) -> None:
    ids = torch.zeros(4, dtype=torch.int64)
    logits = torch.randint(0, 3, (9, width)).float()  # many equals: the first of them
    expected = torch.zeros(9, 1, dtype=torch.int64)
    assert torch.equal(of_chain([logits], expected, ids)[0][0], logits.argmax(-1))
    logits[2, width // 2], logits[3] = float("nan"), float("-inf")
    assert torch.equal(of_chain([logits], expected, ids)[0][0], logits.argmax(-1))
