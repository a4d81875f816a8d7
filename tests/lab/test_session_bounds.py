"""What the hooks keep between launches is bounded, and asking a model's rule does not change the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from eagletrace.instrumentations.sglang import session as module  # noqa: E402
from eagletrace.instrumentations.sglang import verdict  # noqa: E402
from eagletrace.instrumentations.sglang.capture import captured, served_facts, without_method, would_capture  # noqa: E402
from eagletrace.instrumentations.sglang.distributions import Topology, of_chain  # noqa: E402
from eagletrace.instrumentations.sglang.launch import carried  # noqa: E402
from eagletrace.instrumentations.sglang.launch_state import Launch  # noqa: E402
from eagletrace.instrumentations.sglang.session import Extend, ForwardFacts, Session  # noqa: E402
from eagletrace.record.requests import RequestState  # noqa: E402
from eagletrace.record.rounds import RoundPacket  # noqa: E402
from eagletrace.record.trees import read  # noqa: E402


def request(rid: str, *, finished: bool = False) -> Any:
    return SimpleNamespace(rid=rid, origin_input_ids=[1], finished=lambda: finished)


def session(**arguments: Any) -> Session:
    settings = SimpleNamespace(sample=1.0, level="tokens", hidden_every=1)
    recorder: Any = SimpleNamespace(settings=settings)
    return Session(recorder, "0", SimpleNamespace(**arguments))


def states(*seqs: int) -> list[RequestState]:
    return [RequestState(seq, f"r{seq}", "user", True, 0, None, 5) for seq in seqs]


def extend(state: Session, requests: list[RequestState]) -> Extend:
    return Extend(requests, torch.zeros(len(requests), 2), ForwardFacts(), state.launches)


def test_logits_of_requests_that_left_without_a_result_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    state = session()
    state.keep(extend(state, states(1)))
    state.launches = module.STALE_LAUNCHES + 1
    state.keep(extend(state, states(2)))
    assert list(state.carried) == [2]
    monkeypatch.setattr(module, "MAX_CARRIED", 2)
    for number in range(5):
        state.keep(extend(state, states(number)))
    assert list(state.carried) == [3, 4]


def test_depth_one_was_drafted_by_the_extend_before_whoever_else_was_in_it() -> None:
    state = session()
    a, b, c = states(1, 2, 3)
    state.last_extend = whole = extend(state, [a, b])
    assert state.carried_of([a, b]) is whole and state.last_extend is None
    state.last_extend = whole = extend(state, [a, b])
    prefilled = extend(state, [c])
    state.keep(prefilled)
    assert state.carried_of([b, c]) == [(whole, 1), (prefilled, 0)]  # a waits, or has finished
    assert state.carried_of([a, b]) == [(whole, 0), None]


def test_a_prefill_server_keeps_no_logits() -> None:
    assert carried(session(disaggregation_mode="prefill"), [request("a")], torch.zeros(1, 2)) is None


def test_request_states_are_bounded_and_an_id_may_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUESTS", 3)
    state = session()
    for number in range(6):
        state.request(request(str(number)))
    assert list(state.requests) == ["3", "4", "5"]
    old = state.request(request("5"))
    old.end_ns = 1
    assert state.request(request("5", finished=True)) is old  # a ghost round
    new = state.request(request("5"))
    assert new is not old and new.seq > old.seq
    state.forget("5")
    assert state.requests["5"] is new


class Inner(nn.Module):
    """A language model that decides which layers are captured."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1)

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        ids: Any = [2, 4] if layer_ids is None else [i + 1 for i in layer_ids]
        self.model.layers_to_capture = ids


class Outer(nn.Module):
    """A model of several modalities that hands the call on."""

    def __init__(self) -> None:
        super().__init__()
        self.language_model = Inner()

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.language_model.set_eagle3_layers_to_capture(layer_ids)


def test_asking_what_would_be_captured_leaves_a_delegating_model_alone() -> None:
    model = Outer()
    model.set_eagle3_layers_to_capture([1, 3])
    assert would_capture(model, [5, 7]) == [6, 8]
    assert model.language_model.model.layers_to_capture == [2, 4]


class Swallowing(Outer):
    """A wrapper that keeps the call to itself."""

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.capture_aux_hidden_states = True
        self.layers_to_capture = [9]


def test_a_wrapper_that_says_nothing_is_passed_over() -> None:
    """What is due is asked of the model inside, and what is captured is read where its decoder looks."""
    model = Swallowing()
    decoder: Any = model.language_model.model
    decoder.layers_to_capture = []
    model.set_eagle3_layers_to_capture()
    assert captured(model) is None
    decoder.layers_to_capture = [3]
    assert captured(model) == [3]

    class Silent(Outer):
        def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
            pass

    assert would_capture(Silent(), [5, 7]) == [6, 8]
    assert would_capture(Silent(), None) == [2, 4]


Recorded = dict[str, tuple[Any, Any, str | None]]


def facts_of(model: Any, *, loaded: bool = True, algorithm: str = "EAGLE3", **draft: Any) -> Recorded:
    """What is recorded of a target when the draft has been loaded, or once it was asked."""
    recorded: Recorded = {}

    def fact(key: str, actual: Any, expected: Any = None, source: str | None = None) -> None:
        recorded[key] = actual, expected, source

    state: Any = SimpleNamespace(
        target_runner=SimpleNamespace(model=model), recorder=SimpleNamespace(fact=fact),
        draft_facts={"eagle3": True, "fc_in": 12, "target_hidden_size": 4} | draft if loaded else {},
        server_args=SimpleNamespace(speculative_algorithm=algorithm, speculative_draft_model_path="no/such/folder"),
        counts={"set_eagle3_layers_to_capture": 1}, requested_layers=None,
    )  # fmt: skip
    without_method(state)
    if not recorded:
        served_facts(state, {}, True)
    return recorded


def test_facts_of_targets_that_cannot_be_asked_or_do_not_pass_it_on() -> None:
    lacking = facts_of(nn.Linear(1, 1))
    assert lacking["aux.set_layers_calls"] == (0, None, "Linear has no set_eagle3_layers_to_capture")
    assert lacking["aux.count"] == (0, 3, None)
    assert facts_of(nn.Linear(1, 1), eagle3=False)["aux.set_layers_calls"][2] is None
    early = facts_of(nn.Linear(1, 1), loaded=False)
    assert (early["aux.set_layers_calls"][0], early["aux.count"]) == (0, (0, 3, None))
    assert facts_of(nn.Linear(1, 1), loaded=False, algorithm="EAGLE")["aux.set_layers_calls"][2] is None
    model = Swallowing()
    inner: Any = model.language_model
    inner.capture_aux_hidden_states = False
    inner.model.layers_to_capture = []
    model.set_eagle3_layers_to_capture()
    found = facts_of(model)
    flags = {"Swallowing": True, "language_model": False}
    assert found["aux.capture_enabled"] == (flags, None, "language_model")
    assert found["aux.layers_captured"][:2] == (None, [9])
    assert found["aux.count"][:2] == (0, 3)


@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
def test_facts_are_the_same_in_parts(topk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bs, vocab, steps = 5, 8, 2
    state = session()
    state.draft_id_or_zero = torch.arange(vocab)
    tokens = torch.randint(0, vocab, (bs, 4))
    first, later = torch.randn(bs, vocab), [torch.randn(bs * topk, vocab) for _ in range(steps)]
    read_by_size: list[Any] = []
    for size in (1 << 30, 300):
        monkeypatch.setattr(verdict, "PART_BYTES", size)
        launch = Launch(RoundPacket(1, 0, states(*range(bs)), [1] * bs, 0), [], first, topk=topk)
        launch.step_logits = list(later)
        if topk > 1:
            launch.topology = Topology(torch.zeros(bs, 5, dtype=torch.int64), torch.tensor([[0, 1, 4]] * bs), topk)
        accepted = torch.arange(bs)[:, None] * 4
        verdict.observe(state, launch, tokens, tokens, [None, None], accepted)
        state.deferred.compute()
        read_by_size.append(read([launch.packet]))
    whole, parts = read_by_size
    for name in ("draft_ids", "better", "probs", "logprobs", "entropies"):
        assert np.array_equal(getattr(whole, name)[:, 1:], getattr(parts, name)[:, 1:]), name


def test_facts_of_a_chain_against_the_distribution_itself() -> None:
    first, steps = torch.randn(2, 4), [torch.randn(2, 4)]
    ids_of = torch.tensor([0, 1, 2, 3, 0])  # the draft has no token 4
    expected = torch.tensor([[3, 99], [1, 0]])
    (ids,), (better, probs, best, means) = of_chain([first, *steps], expected, ids_of)
    entropies = best - probs.log() - means
    for row, (logits, wanted) in enumerate([(first[0], 3), (first[1], 1), (steps[0][0], 0), (steps[0][1], 0)]):
        p = logits.softmax(-1)
        assert ids[row] == logits.argmax() and better[row] == int((logits > logits[wanted]).sum())
        assert torch.allclose(probs[row], p.max()) and torch.allclose(entropies[row], -(p * p.log()).sum())


def test_steps_that_went_another_way_give_no_facts_of_a_tree() -> None:
    launch = Launch(RoundPacket(1, 0, states(1), [1], 0), [], torch.randn(1, 8), topk=2)
    state = session()
    state.draft_id_or_zero = torch.arange(8)
    launch.topology = Topology(torch.zeros(1, 5, dtype=torch.int64), torch.tensor([[0, 1, 4]]), 2)
    launch.step_logits = [torch.randn(2, 8)]  # two are due
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    verdict.observe(state, launch, tokens, tokens, [None, None], torch.zeros(1, 4, dtype=torch.int32))
    trees = read([launch.packet])
    assert trees is not None and trees.better is None
