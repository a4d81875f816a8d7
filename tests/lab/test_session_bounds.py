"""What the hooks keep between launches is bounded, and asking a model's rule does not change the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from eagletrace.instrumentations.sglang import session as module  # noqa: E402
from eagletrace.instrumentations.sglang import verdict  # noqa: E402
from eagletrace.instrumentations.sglang.capture import would_capture  # noqa: E402
from eagletrace.instrumentations.sglang.distributions import Topology, drafted  # noqa: E402
from eagletrace.instrumentations.sglang.launch import carry  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402


def request(rid: str, *, finished: bool = False) -> Any:
    return SimpleNamespace(rid=rid, origin_input_ids=[1], finished=lambda: finished)


def session(**arguments: Any) -> Session:
    settings = SimpleNamespace(sample=1.0)
    recorder: Any = SimpleNamespace(settings=settings)
    return Session(recorder, "0", SimpleNamespace(**arguments))


def test_logits_of_requests_that_left_without_a_result_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    state = session()
    carry(state, [request("aborted")], torch.zeros(1, 2))
    state.launches = module.STALE_LAUNCHES + 1
    carry(state, [request("runs")], torch.zeros(1, 2))
    assert list(state.carried) == ["runs"]
    monkeypatch.setattr(module, "MAX_CARRIED", 2)
    for number in range(5):
        carry(state, [request(str(number))], torch.zeros(1, 2))
    assert list(state.carried) == ["3", "4"]


def test_a_prefill_server_keeps_no_logits() -> None:
    state = session(disaggregation_mode="prefill")
    carry(state, [request("a")], torch.zeros(1, 2))
    assert not state.carried


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


@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
def test_facts_are_the_same_in_parts(topk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bs, vocab, steps = 5, 8, 2
    first = torch.randn(bs, vocab)
    later = [torch.randn(bs * topk, vocab) for _ in range(steps)]
    selected = torch.tensor([[0, 1, 2]] if topk == 1 else [[0, 1, 4]]).expand(bs, -1)
    parents = torch.zeros(bs, 0 if topk == 1 else 5, dtype=torch.int64)
    topology = Topology(parents, selected, topk)
    expected, ids = torch.randint(0, vocab, (bs, 3)), torch.arange(vocab)
    whole = drafted(first, later, topology, expected, ids)
    monkeypatch.setattr(verdict, "PART_BYTES", 300)
    parts = verdict._in_parts(first, later, topology, expected, ids)  # pyright: ignore[reportPrivateUsage]
    assert whole.keys() == parts.keys() and all(torch.equal(whole[n], parts[n]) for n in whole)


def test_a_token_out_of_the_vocabulary_is_unknown_to_the_draft() -> None:
    topology = Topology(torch.zeros(1, 0, dtype=torch.int64), torch.arange(2)[None], 1)
    expected = torch.tensor([[3, 99]])
    facts = drafted(torch.randn(1, 4), [torch.randn(1, 4)], topology, expected, torch.arange(4))
    assert facts["in_vocab"].tolist() == [[1, 0]] and facts["ranks"][0, 1] == -1
