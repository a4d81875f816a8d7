"""The hooks of the hot path never read a value of the device: no `.item()`, `.cpu()`, `.tolist()`, `.numpy()` of it.

A dispatch mode stands in for a GPU: it fails on every operation by which Python would wait for one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from eagletrace.instrumentations.sglang import hidden as hidden_states  # noqa: E402
from eagletrace.instrumentations.sglang import verdict  # noqa: E402
from eagletrace.instrumentations.sglang.distributions import Topology  # noqa: E402
from eagletrace.instrumentations.sglang.launch_state import Launch  # noqa: E402
from eagletrace.instrumentations.sglang.session import CarriedLogits, ForwardFacts  # noqa: E402
from eagletrace.record.requests import RequestState  # noqa: E402
from eagletrace.record.rounds import RoundPacket  # noqa: E402

WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "unique")
BS, NODES, VOCAB, DRAFT_VOCAB = 3, 4, 20, 12


class NoWaiting(TorchDispatchMode):
    """Fails on operations whose result Python must wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in WAITING, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


def packet() -> RoundPacket:
    states = [RequestState(i + 1, f"r{i}", "user", True, 0, None, 5) for i in range(BS)]
    return RoundPacket(1, 0, states, [1] * BS, 0)


def session() -> Any:
    inverse = torch.full((VOCAB,), -1, dtype=torch.int64)
    inverse[torch.arange(DRAFT_VOCAB)] = torch.arange(DRAFT_VOCAB)
    settings = SimpleNamespace(level="tokens", hidden_every=1)
    return SimpleNamespace(
        draft_id_of=inverse, carried={}, softmax_chains=False, recorder=SimpleNamespace(settings=settings)
    )


def launch_of(state: Any, topk: int) -> Launch:
    launch = Launch(packet(), [object()] * BS, topk=topk, wants_hidden=True, slot_width=8)
    logits = torch.randn(BS, DRAFT_VOCAB)
    for row, request in enumerate(launch.packet.requests):
        state.carried[request.rid] = CarriedLogits(logits, row, ForwardFacts())
    launch.step_logits = [torch.randn(BS * topk, DRAFT_VOCAB) for _ in range(2)]
    launch.rope_positions = [torch.arange(BS * topk) for _ in range(2)]
    launch.positions = torch.arange(BS * NODES)
    if topk > 1:
        launch.topology = Topology(torch.zeros(BS, 3 + topk, dtype=torch.int64), torch.tensor([[0, 1, 2]] * BS), topk)
    return launch


@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
def test_nothing_waits_for_the_device(topk: int) -> None:
    state = session()
    launch = launch_of(state, topk)
    tokens = torch.randint(0, VOCAB, (BS, NODES))
    links = [torch.full((BS, NODES), -1), torch.full((BS, NODES), -1)]
    with NoWaiting():
        verdict.observe(state, launch, tokens, tokens + 0, links, torch.zeros(BS, 4, dtype=torch.int32))
        hidden_states.observe(launch, "target_aux", torch.randn(BS * NODES, 24), [0, 4, 8], 8)
        hidden_states.observe(launch, "target_aux", torch.randn(BS * NODES, 24), [0, 1, 5], 8)
    assert launch.packet.ranks is not None
    assert launch.packet.ranks().shape == (BS, NODES)
    assert [h.slots for h in launch.packet.hidden] == [3, 3]
    assert launch.packet.hidden[0].rms().shape == (BS, 3)


def test_the_guard_sees_a_wait() -> None:
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(1).item()
