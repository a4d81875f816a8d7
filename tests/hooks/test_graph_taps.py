"""Taps: operations recorded at capture refresh their buffers at each replay, without Python and without a wait."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang.graph_taps import Tapped, Taps  # noqa: E402
from tests.hooks.graph_replay import GRAPHS, needs_cuda  # noqa: E402

VOCAB, HIDDEN, STEPS, TOPK = 11, 5, 3, 2
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason=needs_cuda)),
]


class Draft:
    """A toy draft: each step maps a hidden state to logits and to the next hidden state, and advances positions."""

    def __init__(self, device: str, rows: int) -> None:
        torch.manual_seed(rows)
        self.weight = torch.randn(HIDDEN, HIDDEN, device=device)
        self.head = torch.randn(HIDDEN, VOCAB, device=device)
        self.hidden = torch.zeros(rows, HIDDEN, device=device)  # static inputs of the graph
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)

    def forward(self, hidden: Any) -> tuple[Any, Any]:
        out = torch.tanh(hidden @ self.weight)
        return out @ self.head, out

    def steps(self, taps: Taps, shape: Any) -> Any:
        taps.begin(shape, STEPS)
        hidden = self.hidden
        tokens: list[Any] = []
        for _ in range(STEPS):
            taps.before_step(self.positions)
            logits, hidden = self.forward(hidden)
            taps.after_step(logits, hidden)
            tokens.append(logits.argmax(-1))
            self.positions.add_(1)
        self.positions.sub_(STEPS)
        return torch.stack(tokens)

    def expected(self) -> tuple[list[Any], list[Any], Any]:
        hidden, logits, outs = self.hidden, list[Any](), list[Any]()
        for _ in range(STEPS):
            one, hidden = self.forward(hidden)
            logits.append(one)
            outs.append(hidden)
        return logits, [self.positions + i for i in range(STEPS)], outs[0]


@contextmanager
def no_waiting(device: str) -> Generator[None]:
    """An error where CUDA would wait; on a CPU nothing does."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def captured(draft: Draft, taps: Taps, shape: Any, device: str) -> Any:
    """Warm up twice, as the engine does, and capture."""
    for _ in range(2):
        draft.steps(taps, shape)
    graph = GRAPHS[device]()
    graph.capture(partial(draft.steps, taps, shape))
    taps.end()
    return graph


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_refreshes_what_the_taps_hold(device: str) -> None:
    taps = Taps()
    rows = 4 * TOPK
    draft = Draft(device, rows)
    graph = captured(draft, taps, ("runner", 4), device)
    addresses: set[int] = set()
    for replay in range(3):
        torch.manual_seed(100 + replay)
        draft.hidden.copy_(torch.randn(rows, HIDDEN).to(device))
        draft.positions.copy_(torch.arange(rows).to(device) + 10 * replay)
        with no_waiting(device):
            graph.replay()
            found = taps.read(("runner", 4), 3 * TOPK)
        assert found is not None and found.hidden is not None
        logits, positions, hidden = draft.expected()
        assert len(found.logits) == len(found.positions) == STEPS
        taken = [*found.logits, *found.positions, found.hidden]
        for mine, right in zip(taken, [*logits, *positions, hidden], strict=True):
            torch.testing.assert_close(mine, right[: 3 * TOPK])
        addresses.add(found.logits[0].data_ptr())
    assert len(addresses) == 1  # the graph writes where it was captured to write


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_share_buffers_and_each_has_its_own_rows(device: str) -> None:
    taps = Taps()
    large, small = Draft(device, 8), Draft(device, 2)
    graphs = {8: captured(large, taps, ("runner", 8), device), 2: captured(small, taps, ("runner", 2), device)}
    held = taps.held
    assert held == 8 * (STEPS * (VOCAB * 4 + 8) + HIDDEN * 4)  # of the larger shape alone
    for draft, size in ((large, 8), (small, 2), (large, 8)):
        draft.hidden.normal_()
        graphs[size].replay()
        found = taps.read(("runner", size), size)
        assert found is not None
        torch.testing.assert_close(found.logits[-1], draft.expected()[0][-1])
    assert taps.held == held


def test_a_larger_shape_that_comes_later_gets_its_own_buffer_and_the_smaller_keeps_its() -> None:
    taps = Taps()
    small, large = Draft("cpu", 2), Draft("cpu", 8)
    graphs = captured(small, taps, 2, "cpu"), captured(large, taps, 8, "cpu")
    for draft, graph, size in ((small, graphs[0], 2), (large, graphs[1], 8)):
        draft.hidden.normal_()
        graph.replay()
        found = taps.read(size, size)
        assert found is not None
        torch.testing.assert_close(found.logits[1], draft.expected()[0][1])


def test_what_does_not_fit_has_no_taps_and_smaller_shapes_do() -> None:
    small = 2 * (STEPS * (VOCAB * 4 + 8) + HIDDEN * 4)
    taps = Taps(limit=2 * small)
    for size in (8, 2):
        captured(Draft("cpu", size), taps, size, "cpu")
    assert taps.read(8, 8) is None
    found = taps.read(2, 2)
    assert isinstance(found, Tapped) and taps.held <= 2 * small


def test_nothing_is_read_of_an_unknown_shape_of_more_rows_or_of_a_pass_that_broke_off() -> None:
    taps = Taps()
    captured(Draft("cpu", 2), taps, 2, "cpu")
    assert taps.read(4, 2) is None
    assert taps.read(2, 3) is None
    taps.begin(2, STEPS)
    taps.after_step(torch.zeros(2, VOCAB), None)
    assert taps.read(2, 2) is None  # a pass is under way
    taps.end()
    assert taps.read(2, 2) is None  # and broke off
    before = taps.held
    taps.before_step(torch.zeros(9, dtype=torch.int64))
    taps.after_step(torch.zeros(9, VOCAB), None)
    assert taps.held == before  # no pass: nothing is tapped


def test_no_buffer_is_allocated_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lie in the graphs' pool, which is used again. FakeTensors stand in for a GPU's."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    taps = Taps()
    with FakeTensorMode():
        taps.begin(2, 1)
        taps.after_step(torch.zeros(2, VOCAB, device="cuda"), None)
        taps.end()
        assert taps.held == 0 and taps.read(2, 2) is None
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        taps.begin(2, 1)
        taps.after_step(torch.zeros(2, VOCAB, device="cuda"), None)
        taps.end()
        assert taps.held == 2 * VOCAB * 4 and taps.read(2, 2) is not None
