"""Facts of chains that are computed for several launches at once are those of each launch alone."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang import deferred as module  # noqa: E402
from eagletrace.instrumentations.sglang import verdict  # noqa: E402
from eagletrace.instrumentations.sglang.launch_state import Launch  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402
from eagletrace.instrumentations.sglang.vocabulary import prepare_maps  # noqa: E402
from eagletrace.record.requests import RequestState  # noqa: E402
from eagletrace.record.rounds import RoundPacket  # noqa: E402
from eagletrace.record.trees import Trees, read  # noqa: E402

VOCAB, DRAFT_VOCAB = 20, 12
FLOATS = ("better", "probs", "logprobs", "entropies")


def session() -> Session:
    recorder: Any = SimpleNamespace(settings=SimpleNamespace(level="tokens", sample=1.0, hidden_every=1))
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
    assert launch.packet.drafted[0].together.closed and not state.deferred.waiting


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


def test_an_interruption_completes_what_waits() -> None:
    state, launch = session(), launch_of(1, 1)
    targets = observe(state, launch)
    state.forget_launches()
    assert launch.packet.drafted[0].together.closed and launch.first is not None
    expect(trees_of(launch.packet), 0, 1, launch.first[0], int(targets[0, 0]))


def test_full_groups_are_left_to_who_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHES", 2)
    state = session()
    state.deferred.hands_over = True
    launches = [launch_of(n, 1) for n in range(5)]
    targets = [observe(state, launch) for launch in launches]
    assert not any(launch.packet.drafted[0].together.closed for launch in launches)
    assert state.deferred.waiting == 1
    state.deferred.compute()
    assert all(launch.packet.drafted[0].together.closed for launch in launches) and not state.deferred.waiting
    for launch, target in zip(launches, targets, strict=True):
        assert launch.first is not None
        expect(trees_of(launch.packet), 0, 1, launch.first[0], int(target[0, 0]))


def test_what_nobody_computes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHES", 1)
    launches = [launch_of(n, 1) for n in range(4)]
    size = sum(step.nbytes for step in (launches[0].first, *launches[0].step_logits) if step is not None)
    monkeypatch.setattr(module, "HELD_BYTES", 2 * size)
    state = session()
    state.deferred.hands_over = True
    for launch in launches:
        observe(state, launch)
    assert [launch.packet.drafted[0].together.closed for launch in launches] == [False, False, True, True]


def test_a_group_that_cannot_be_read_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHES", 1)
    state = session()
    state.deferred.hands_over = True
    bad, good = launch_of(1, 1), launch_of(2, 1)
    bad.step_logits[0] = torch.zeros(1, DRAFT_VOCAB + 1)
    observe(state, bad)
    observe(state, good)
    with pytest.raises(RuntimeError):
        state.deferred.compute()
    assert all(launch.packet.drafted[0].together.closed for launch in (bad, good))
    assert trees_of(good.packet).probs is not None


def test_a_launch_that_could_not_be_kept_does_not_stop_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    state = session()
    state.deferred.hands_over = state.deferred.trusted = True
    lost, kept = launch_of(1, 1), launch_of(2, 2)

    def fail(_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(module.Chain, "packed", fail)
        with torch.inference_mode(), pytest.raises(ZeroDivisionError):  # no versions, and no copy either
            observe(state, lost)
    observe(state, kept)
    state.deferred.close()
    with contextlib.suppress(Exception):  # of the group that holds no launch
        state.deferred.compute()
    assert kept.packet.drafted[0].together.closed and not state.deferred.waiting
    assert trees_of(kept.packet).probs is not None


def test_groups_are_read_while_others_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHES", 3)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    state = session()
    state.deferred.hands_over = True
    launches = [launch_of(n, 1 + n // 50 % 2) for n in range(400)]
    done = threading.Event()
    reader = threading.Thread(target=lambda: [state.deferred.compute() for _ in iter(done.is_set, True)])
    reader.start()
    targets = [observe(state, launch) for launch in launches]
    done.set()
    reader.join()
    state.deferred.compute()
    for launch, target in zip(launches, targets, strict=True):
        assert launch.first is not None
        expect(trees_of(launch.packet), 0, 1, launch.first[0], int(target[0, 0]))


def verdict_of(bs: int, nodes: int = 4) -> tuple[Any, Any, Any]:
    return (torch.randint(0, VOCAB, (bs, nodes)), torch.randint(0, VOCAB, (bs, nodes)),
            torch.arange(bs)[:, None] * nodes + torch.zeros(1, nodes, dtype=torch.int64))  # fmt: skip


def trusted(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that has seen enough launches to keep their tensors."""
    monkeypatch.setattr(module, "TRUST", 2)
    state = session()
    for number in range(2):
        verdict.observe(state, launch_of(number, 2), *_as_seen(verdict_of(2)))
    state.deferred.compute()
    return state


def _as_seen(tensors: tuple[Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    candidates, targets, accepted = tensors
    return candidates, targets, verdict.NO_LINKS, accepted


def test_verdicts_are_packed_together_once_they_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    state = trusted(monkeypatch)
    launches = [launch_of(n, 2) for n in range(3)]
    seen = [verdict_of(2) for _ in launches]
    for launch, tensors in zip(launches, seen, strict=True):
        launch.rope_positions = [torch.tensor([7, 8]), torch.tensor([9, 10])]
        verdict.observe(state, launch, *_as_seen(tensors))
        assert launch.packet.values is None
    state.deferred.compute()
    trees = trees_of(*(launch.packet for launch in launches))
    for number, (candidates, targets, _) in enumerate(seen):
        rows = slice(number * 2, number * 2 + 2)
        assert np.array_equal(trees.draft_tokens[rows], candidates.numpy())
        assert np.array_equal(trees.target_tokens[rows], targets.numpy())
        assert trees.rope_positions is not None
        assert trees.rope_positions[rows].tolist() == [[-1, -1, 7, 9], [-1, -1, 8, 10]]
        first = launches[number].first
        assert first is not None
        for row in range(2):
            expect(trees, number * 2 + row, 1, first[row], int(targets[row, 0]))


def test_memory_that_the_engine_uses_again_is_never_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUST", 2)
    state, tensors = session(), verdict_of(2)
    for number in range(4):
        launch = launch_of(number, 2)
        tensors[0].fill_(number)  # the same memory each time
        verdict.observe(state, launch, *_as_seen(tensors))
        assert (trees_of(launch.packet).draft_tokens == number).all()


def test_tensors_that_the_engine_changes_are_never_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUST", 2)
    state = session()
    for number in range(4):
        launch, tensors = launch_of(number, 2), verdict_of(2)
        verdict.observe(state, launch, *_as_seen(tensors))
        seen = tensors[0].clone()
        tensors[0].zero_()
        assert np.array_equal(trees_of(launch.packet).draft_tokens, seen.numpy())


def test_inference_tensors_are_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUST", 1)
    state = session()
    with torch.inference_mode():
        for number in range(4):
            launch = launch_of(number, 2)
            verdict.observe(state, launch, *_as_seen(verdict_of(2)))
            assert launch.packet.values is not None
        state.deferred.compute()


def test_trust_ends_with_the_first_launch_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    state, tensors = trusted(monkeypatch), verdict_of(2)
    first, second, third = (launch_of(n, 2) for n in range(3))
    verdict.observe(state, first, *_as_seen(tensors))
    tensors[0].numpy()[:] = 7  # as a kernel writes: no version counts it
    verdict.observe(state, second, *_as_seen(tensors))
    with pytest.raises(RuntimeError, match="wrote"):
        state.deferred.compute()
    assert first.packet.values is None and (trees_of(second.packet).draft_tokens == 7).all()
    verdict.observe(state, third, *_as_seen(verdict_of(2)))
    assert third.packet.values is not None  # copied at once


def test_tensors_that_were_changed_afterwards_are_not_recorded_as_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    state, tensors, launch = trusted(monkeypatch), verdict_of(2), launch_of(1, 2)
    verdict.observe(state, launch, *_as_seen(tensors))
    tensors[2].fill_(0)
    with pytest.raises(RuntimeError, match="wrote"):
        state.deferred.compute()
    assert launch.packet.values is None and launch.packet.drafted[0].together.closed


def test_a_launch_of_another_shape_is_kept_where_the_group_before_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    state, tensors = trusted(monkeypatch), verdict_of(2)
    lost, next_one = launch_of(1, 2), launch_of(2, 3)
    verdict.observe(state, lost, *_as_seen(tensors))
    tensors[1].fill_(0)
    seen = verdict_of(3)
    with pytest.raises(RuntimeError, match="wrote"):
        verdict.observe(state, next_one, *_as_seen(seen))
    state.deferred.compute()
    assert lost.packet.values is None
    assert np.array_equal(trees_of(next_one.packet).draft_tokens, seen[0].numpy())


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


def test_logits_that_cannot_be_read_leave_the_verdicts_whole() -> None:
    state = session()
    state.draft_id_or_zero = torch.full((VOCAB,), 10**6)  # past the width of the logits
    packets: list[RoundPacket] = []
    targets: list[Any] = []
    for number in range(1, module.TRUST + 3):
        launch = launch_of(number, 1)
        with contextlib.suppress(IndexError, RuntimeError):
            targets.append(None)
            targets[-1] = observe(state, launch)
        packets.append(launch.packet)
    with contextlib.suppress(IndexError, RuntimeError):
        state.deferred.compute()
    assert all(packet.values is not None for packet in packets)
    trees = trees_of(packets[-1])
    assert trees.better is not None and np.isnan(trees.better).all()


def test_the_map_ends_where_the_logits_end() -> None:
    """A head of the target's rows under a reduced draft vocabulary: SGLang cuts the logits."""
    state = session()
    state.recorder = SimpleNamespace()  # type: ignore[assignment]
    state.draft_runner = SimpleNamespace(device="cpu")
    prepare_maps(state, None, DRAFT_VOCAB, VOCAB)
    assert state.draft_id_or_zero is not None
    assert int(state.draft_id_or_zero.max()) == DRAFT_VOCAB - 1
    drafted: Any = state.recorder.draft_id_of
    assert (drafted >= 0).sum() == DRAFT_VOCAB
