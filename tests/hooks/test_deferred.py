"""Facts of chains that are computed for several launches at once are those of each launch alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang import deferred as module  # noqa: E402
from eagletrace.instrumentations.sglang import verdict  # noqa: E402
from eagletrace.instrumentations.sglang.launch_state import Launch  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402
from eagletrace.record.requests import RequestState  # noqa: E402
from eagletrace.record.rounds import RoundPacket  # noqa: E402
from eagletrace.record.trees import Trees, read  # noqa: E402

VOCAB, DRAFT_VOCAB = 20, 12


def session() -> Session:
    recorder: Any = SimpleNamespace(settings=SimpleNamespace(level="tokens", sample=1.0))
    found = Session(recorder, "0", SimpleNamespace())
    found.draft_id_or_zero = torch.arange(VOCAB) % DRAFT_VOCAB
    return found


def launch_of(number: int, bs: int, steps: int = 2) -> Launch:
    states = [RequestState(i + 1, f"r{i}", "user", True, 0, None, 5) for i in range(bs)]
    launch = Launch(RoundPacket(number, 0, states, [number] * bs, 0), [], torch.randn(bs, DRAFT_VOCAB))
    launch.step_logits = [torch.randn(bs, DRAFT_VOCAB) for _ in range(steps)]
    return launch


def observe(state: Session, launch: Launch, nodes: int = 4) -> Any:
    bs = len(launch.packet.requests)
    targets = torch.randint(0, VOCAB, (bs, nodes))
    accepted = torch.arange(bs)[:, None] * nodes
    verdict.observe(state, launch, torch.zeros_like(targets), targets, verdict.NO_LINKS, accepted)
    return targets


def trees_of(*packets: RoundPacket) -> Trees:
    trees = read(packets)
    assert trees is not None
    return trees


def expect(trees: Trees, row: int, depth: int, logits: Any, target: int) -> None:
    p = logits.softmax(-1)
    assert trees.draft_ids is not None and trees.better is not None
    assert trees.probs is not None and trees.entropies is not None
    assert trees.draft_ids[row, depth] == int(logits.argmax())
    assert trees.better[row, depth] == int((logits > logits[target % DRAFT_VOCAB]).sum())
    assert np.isclose(trees.probs[row, depth], float(p.max()), atol=1e-6)
    assert np.isclose(trees.entropies[row, depth], float(-(p * p.log()).sum()), atol=1e-5)


@pytest.mark.parametrize("bs", [1, 3])
def test_each_launch_gets_its_own(bs: int) -> None:
    state = session()
    launches = [launch_of(n, bs) for n in range(3)]
    targets = [observe(state, launch) for launch in launches]
    assert not any(part.together.closed for launch in launches for part in launch.packet.drafted)
    state.deferred.compute()
    trees = trees_of(*(launch.packet for launch in launches))
    for number, launch in enumerate(launches):
        assert launch.first is not None
        for depth, logits in enumerate([launch.first, *launch.step_logits], start=1):
            for row in range(bs):
                expect(trees, number * bs + row, depth, logits[row], int(targets[number][row, depth - 1]))


def test_a_group_is_computed_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHES", 2)
    state = session()
    launches = [launch_of(n, 1) for n in range(3)]
    for launch in launches:
        observe(state, launch)
    assert [launch.packet.drafted[0].together.closed for launch in launches] == [True, True, False]


def test_another_shape_begins_another_group() -> None:
    state = session()
    one, other, last = launch_of(1, 1), launch_of(2, 2), launch_of(3, 2, steps=0)
    for launch in (one, other, last):
        observe(state, launch)
    assert [launch.packet.drafted[0].together.closed for launch in (one, other, last)] == [True, True, False]
    state.deferred.compute()
    graph = trees_of(last.packet)
    assert graph.probs is not None and graph.draft_ids is not None  # a captured graph drafted: depth 1 alone
    assert np.isfinite(graph.probs[:, 1]).all() and np.isnan(graph.probs[:, 2:]).all()
    assert (graph.draft_ids[:, 2:] == -1).all()


@pytest.mark.parametrize("limit", ["BYTES", "WAIT_NS"])
def test_bytes_and_time_are_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 0)
    state, launch = session(), launch_of(1, 2)
    observe(state, launch)
    assert launch.packet.drafted[0].together.closed and state.deferred.together is None


def test_borrowed_memory_is_read_at_once() -> None:
    state, launch = session(), launch_of(1, 1)
    launch.borrowed = True
    targets = observe(state, launch)
    logits = launch.step_logits[0][0].clone()
    launch.step_logits[0].zero_()  # the next replay
    expect(trees_of(launch.packet), 0, 2, logits, int(targets[0, 1]))


def test_large_launches_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "PART_BYTES", 1)
    state, launch = session(), launch_of(1, 3)
    targets = observe(state, launch)
    assert len(launch.packet.drafted) == 3
    for row in range(3):
        expect(trees_of(launch.packet), row, 3, launch.step_logits[1][row], int(targets[row, 2]))


def test_what_an_interruption_leaves_stays_unknown() -> None:
    state, launch = session(), launch_of(1, 1)
    observe(state, launch)
    state.forget_launches()
    trees = trees_of(launch.packet)
    assert launch.packet.drafted[0].together.closed and trees.better is not None and np.isnan(trees.better).all()
    assert trees.draft_ids is not None and (trees.draft_ids == -1).all()


def test_launches_with_and_without_facts_are_read_together() -> None:
    state = session()
    known, unknown = launch_of(1, 1), launch_of(2, 1)
    unknown.first = None
    targets = observe(state, known)
    observe(state, unknown)
    state.deferred.compute()
    trees = trees_of(known.packet, unknown.packet)
    assert known.first is not None and trees.probs is not None
    expect(trees, 0, 1, known.first[0], int(targets[0, 0]))
    assert np.isnan(trees.probs[1]).all()
