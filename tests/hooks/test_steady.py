"""Launches that are only noted come to the same rows as those which are looked at in each of their phases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang import attach, deferred, steady  # noqa: E402
from eagletrace.instrumentations.sglang.hooks import HOOKS, OF_PHASES, SAMPLED, Hooks  # noqa: E402
from eagletrace.instrumentations.sglang.targets import BY_NAME  # noqa: E402
from eagletrace.record.recorder import Recorder  # noqa: E402
from tests.hooks.fake_engine import Batch, Engine, LogitsProcessorOutput, Req, Sizes  # noqa: E402
from tests.hooks.no_waiting import Guard  # noqa: E402
from tests.hooks.traced import Traced, traced  # noqa: E402

Row = dict[str, Any]
ROUNDS = 14
TIMES = (
    "start_time_unix_nano",
    "end_time_unix_nano",
    "duration_time_unix_nano",
    "time_unix_nano",
    "span_id",
    "parent_span_id",
    "trace_id",
)


@pytest.fixture(autouse=True)
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches, and a verdict's tensors are known to be kept."""
    monkeypatch.setattr(deferred, "TRUST", 2)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the launches that were only noted."""
    found: list[int] = []
    original = steady.Noted.packet

    def packet(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(self.number)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(steady.Noted, "packet", packet)
    return found


def serve(folder: Path, sizes: Sizes, *, lean: bool, story: Callable[[Engine], None] | None = None) -> Traced:
    """A prefill and rounds, not in inference mode: a verdict's tensors have to say when they were written to."""
    torch.manual_seed(3)
    engine = Engine("v2", sizes)
    with traced(engine, folder, lean=lean, hidden_every=6) as found, torch.no_grad():
        if sizes.graph:
            engine.draft_side.init_cuda_graphs()
        found.ready()
        torch.manual_seed(4)
        (story or plain)(engine)
        found.flushed()
    found.check()
    return found


def plain(engine: Engine) -> None:
    """The same requests in each round; they finish with the last."""
    engine.scheduler.run(Batch(engine.reqs, extend=True))
    for engine.rounds in range(ROUNDS - 1, -1, -1):
        engine.scheduler.run(Batch(engine.reqs))


def comings_and_goings(engine: Engine) -> None:
    """A request finishes in the middle, another joins, one is retracted for a launch, orders change."""
    late, (one, two, three) = Req("late"), engine.reqs
    engine.rounds = 99
    run = engine.scheduler.run
    run(Batch([one, two, three], extend=True))
    for _ in range(5):
        run(Batch([one, two, three]))
    two.finished_reason = SimpleNamespace(to_json=lambda: {"type": "stop"})
    run(Batch([one, two, three]))  # a ghost of it
    for _ in range(4):
        run(Batch([one, three]))
    run(Batch([late], extend=True))
    for _ in range(4):
        run(Batch([three, late, one]))
    three.is_retracted = True
    run(Batch([three, late, one]))
    three.is_retracted = False
    for _ in range(3):
        run(Batch([late, one]))


def rows(found: Traced, table: str) -> list[Row]:
    kept = [{k: v for k, v in row.items() if k not in TIMES} for row in found.rows(table)]
    if table == "requests":  # a row for each flush in which one changed
        kept = list({row["request_seq"]: row for row in kept}.values())
    return sorted(kept, key=str)


@pytest.mark.parametrize("story", [plain, comings_and_goings])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_the_rows_are_those_of_the_hooks_of_the_phases(
    tmp_path: Path, noted: list[int], graph: bool, story: Callable[[Engine], None]
) -> None:
    looked = serve(tmp_path / "looked", Sizes(graph=graph), lean=False, story=story)
    assert not noted
    lean = serve(tmp_path / "lean", Sizes(graph=graph), lean=True, story=story)
    assert len(noted) >= 5
    for table in ("rounds", "drafts", "verifies", "hidden", "requests"):
        assert rows(lean, table) == rows(looked, table), table
        assert rows(lean, table) or table == "hidden"
    assert {r["fc_applied"] for r in rows(lean, "rounds")} >= ({None} if graph else {True})
    names = [sorted(r["name"] for r in found.rows("spans")) for found in (lean, looked)]
    assert names[0] == names[1] and "eagle.extend_decode" in names[0]


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_phases_follow_each_other_within_the_launch(tmp_path: Path, noted: list[int], graph: bool) -> None:
    found = serve(tmp_path, Sizes(graph=graph), lean=True)
    spans = {r["span_id"]: r for r in found.rows("spans")}
    launches = [s for s in spans.values() if s["name"] == "eagle.launch"]
    assert len(launches) == ROUNDS and noted
    for launch in launches:
        mine = sorted((s for s in spans.values() if s["parent_span_id"] == launch["span_id"]), key=start)
        assert [s["name"] for s in mine] == ["eagle.draft", "eagle.verify", "eagle.extend_decode"]
        ends = [start(s) + s["duration_time_unix_nano"] for s in mine]
        assert [start(s) for s in mine] == [start(launch), *ends[:-1]]
        assert all(s["duration_time_unix_nano"] > 0 for s in mine)
        assert ends[-1] == start(launch) + launch["duration_time_unix_nano"]


def start(span: Row) -> int:
    return span["start_time_unix_nano"]


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_no_hook_of_a_noted_launch_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: bool
) -> None:
    guard = Guard("stand-in")
    with guard.engine(monkeypatch), torch.no_grad():
        from tests.hooks.graph_replay import NoGraph

        engine = Engine("v2", Sizes(device="cuda", graph=graph, graph_class=NoGraph))
        with traced(engine, tmp_path, guard=guard, record=False, lean=True, hidden_every=50) as found:
            if graph:
                engine.draft_side.init_cuda_graphs()
            found.ready()
            session = found.session
            session.deferred.trusted = True
            if session.fusion is not None:
                guard.watch("fc", session.fusion)
            plain(engine)
            assert len(session.noted) > ROUNDS // 2  # not understood yet: that is the recorder's
    assert guard.found == []
    found.check()


def test_an_engine_that_writes_into_its_verdicts_is_believed_no_more(tmp_path: Path, noted: list[int]) -> None:
    engine = Engine("v2", Sizes())
    with traced(engine, tmp_path, lean=True, hidden_every=10**9) as found, torch.no_grad():
        found.ready()
        found.session.recorder.on_flush = None
        run = engine.scheduler.run
        engine.rounds = 99
        run(Batch(engine.reqs, extend=True))
        for _ in range(5):
            run(Batch(engine.reqs))
        found.session.noted[-1].verdict[1].add_(1)
        with pytest.raises(RuntimeError, match="wrote into"):
            found.flushed()
        before = len(noted)
        for _ in range(5):
            run(Batch(engine.reqs))
        found.flushed()
    assert before and len(noted) == before and not found.session.deferred.trusted


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "MOST", 3)
    engine = Engine("v2", Sizes())
    with traced(engine, tmp_path, lean=True, hidden_every=10**9) as found, torch.no_grad():
        found.session.recorder.on_flush = None  # nobody understands
        found.ready()
        longest: list[int] = []
        run = engine.scheduler.run

        def counted(batch: Batch) -> None:
            run(batch)
            longest.append(len(found.session.noted))

        engine.scheduler.run = counted  # type: ignore[method-assign]
        plain(engine)
        assert max(longest) == 2
        found.flushed()
    assert len({r["round"] for r in found.rows("rounds")}) == ROUNDS


class DeathError(Exception):
    """The engine's."""


def test_a_launch_in_which_the_engine_dies_is_written(tmp_path: Path, noted: list[int]) -> None:
    def die(*_: Any) -> None:
        raise DeathError

    engine = Engine("v2", Sizes())
    with traced(engine, tmp_path, lean=True, hidden_every=10**9) as found, torch.no_grad():
        found.ready()
        plain(engine)
        for req in engine.reqs:
            req.finished_reason = None
        engine.rounds = 9
        for _ in range(4):
            engine.scheduler.run(Batch(engine.reqs))
        engine.draft_side._extend = die
        with pytest.raises(DeathError):
            engine.scheduler.run(Batch(engine.reqs))
        last = found.session.launches
        found.flushed()
    found.check()
    assert last in noted
    (died,) = {(r["committed"], r["accepted"]) for r in found.rows("rounds") if r["round"] == last}
    assert died[1] == 1  # the verdict was seen
    (event,) = (r for r in found.rows("events") if r["kind"] == "engine_exception")
    assert '"verify"' in event["detail"]


# -- which hooks stand -------------------------------------------------------------------------------------------------


@pytest.fixture
def attachment(tmp_path: Path) -> Iterator[Any]:
    """An attachment's decisions, without a scheduler."""
    engine = Engine("v2", Sizes())
    with traced(engine, tmp_path) as found:
        made: Any = attach.Attachment.__new__(attach.Attachment)
        made.session, made.recorder, made.hooks = found.session, found.session.recorder, Hooks(found.session)
        made._lock, made._phases_seen, made._steps, made._reported = threading.RLock(), True, 0, 0.0
        found.session.chain_steps, found.session.first_extend_seen = 3, True
        made.followed = 0

        def follow() -> None:
            made.followed += 1

        made.hooks.follow = follow
        made._hook_rows = lambda: None
        found.session.on_sampling, found.session.on_unseen = made._sampling, made._unseen
        made._recount()
        yield made


def wanted(attachment: Any) -> set[str]:
    return {name for name in HOOKS if name in BY_NAME and attachment.hooks.wants(BY_NAME[name])}


def test_phases_have_no_hooks_and_the_sampled_verdict_has_one_until_a_greedy_one_was_seen(attachment: Any) -> None:
    session = attachment.session
    assert session.lean and not wanted(attachment) & set(OF_PHASES)
    assert {"v2.generate", "runner.forward", "verify.greedy", *SAMPLED} <= wanted(attachment)
    attachment.hooks.fired = lambda: set[str]()
    attachment._report()
    assert session.samples is None
    attachment.hooks.fired = lambda: {"verify.greedy"}
    attachment._report()
    assert session.samples is False and attachment.followed == 1 and not wanted(attachment) & set(SAMPLED)
    greedy, sampling = Req("greedy"), Req("sampling")
    sampling.sampling_params.top_k = 50
    session.request(greedy)
    assert session.samples is False
    session.request(sampling)
    assert session.samples is True and attachment.followed == 2 and set(SAMPLED) <= wanted(attachment)
    attachment._report()
    assert session.samples is True


def test_a_phase_that_is_told_by_what_runs_in_it_is_not_missed(attachment: Any) -> None:
    attachment.session.worker = object()
    attachment.hooks.missing = {"v1.draft": "no such module", "v2.verify": "another signature"}
    assert not any(attachment.required(BY_NAME[name]) for name in ("v1.draft", "v2.draft", "v2.verify"))
    assert attachment.required(BY_NAME["v2.generate"])
    attachment.session.on_unseen()
    assert attachment.required(BY_NAME["v1.draft"]) and attachment.required(BY_NAME["v2.verify"])


@pytest.mark.parametrize("what", ["tensors", "contract", "trees", "v1", "steps", "unseen"])
def test_phases_keep_their_hooks_where_they_are_needed(attachment: Any, what: str) -> None:
    session = attachment.session
    if what in ("tensors", "contract"):
        session.recorder.settings = replace(session.recorder.settings, level=what)
    elif what == "trees":
        session.chain_steps = 0
    elif what == "v1":
        session.cuts_in_verify = True
    elif what == "steps":
        session.later_runners = [object()]
    else:
        session.on_unseen()
        assert attachment.followed == 1
    attachment._recount()
    assert not session.lean
    if what not in ("contract",):
        assert set(OF_PHASES) <= wanted(attachment)


def test_a_target_that_runs_elsewhere_brings_the_hooks_back(tmp_path: Path, noted: list[int]) -> None:
    engine, asked = Engine("v2", Sizes()), list[int]()
    with traced(engine, tmp_path, lean=True, hidden_every=10**9) as found, torch.no_grad():
        found.session.on_unseen = lambda: asked.append(found.session.launches)
        found.ready()
        output, model = engine.target_output, engine.target_runner.model

        def elsewhere(bs: int, positions: Any = None) -> Any:
            def forward(batch: Any) -> Any:
                states = model(batch.spec_info.hidden_states)
                return SimpleNamespace(logits_output=LogitsProcessorOutput(batch.spec_info.logits, states))

            shown = SimpleNamespace(forward=forward)
            kept, engine.target_runner = engine.target_runner, shown  # type: ignore[assignment]
            try:
                return output(bs, positions)
            finally:
                engine.target_runner = kept

        engine.target_output = elsewhere  # type: ignore[method-assign]
        plain(engine)
        found.flushed()
    found.check()
    assert asked[0] == 1
    assert len({r["round"] for r in found.rows("rounds")}) == ROUNDS  # and nothing is lost until then


@pytest.mark.parametrize("rounds", [1, 6], ids=["looked-at", "noted"])
def test_a_pause_in_the_middle_of_a_launch_says_nothing_of_the_engine(tmp_path: Path, rounds: int) -> None:
    engine, asked = Engine("v2", Sizes()), list[int]()
    with traced(engine, tmp_path, lean=True, hidden_every=10**9) as found, torch.no_grad():
        session = found.session
        session.on_unseen = lambda: asked.append(session.launches)
        found.ready()
        engine.rounds, run = 99, engine.scheduler.run
        run(Batch(engine.reqs, extend=True))
        for _ in range(rounds):
            run(Batch(engine.reqs))
        draft = engine.draft_side.draft

        def paused(batch: Batch) -> Any:
            session.serving = False  # as the control's thread does first
            found.hooks["runner.forward"].on = False
            return draft(batch)

        engine.draft_side.draft = paused
        run(Batch(engine.reqs))
        assert not asked
        session.serving = True
        engine.draft_side.draft = draft
        run(Batch(engine.reqs))
    assert asked  # a target that is not seen while everything stands


@pytest.mark.parametrize("unseen", ["while the control is followed", "in a pause"])
def test_tokens_of_a_result_that_nobody_saw_are_not_the_next_ones(
    tmp_path: Path, noted: list[int], unseen: str
) -> None:
    """Results come a launch later, as with an overlapping scheduler."""
    engine = Engine("v2", Sizes())
    with traced(engine, tmp_path, lean=True, hidden_every=10**9) as found, torch.no_grad():
        session, hook = found.session, found.hooks["scheduler.results"]
        found.ready()
        engine.rounds, scheduler, batch = 99, engine.scheduler, Batch(engine.reqs)

        def launched() -> Any:
            batch.spec_info = SimpleNamespace(hidden_states=engine.random(len(batch.reqs), engine.sizes.hidden))
            return engine.worker.forward_batch_generation(batch)

        scheduler.run(Batch(engine.reqs, extend=True))
        for _ in range(6):
            scheduler.run(Batch(engine.reqs))
        results = [launched() for _ in range(2)]
        numbers = [result._eagletrace.number for result in results]
        if unseen == "in a pause":
            session.forget_launches()
            hook.on = False
        session.serving = False
        scheduler.process_batch_result(batch, results[0])
        session.serving = hook.on = True
        scheduler.process_batch_result(batch, results[1])
        for _ in range(8):
            scheduler.run(Batch(engine.reqs))
        found.flushed()
    found.check()
    kept = {row["round"]: row["committed"] for row in found.rows("rounds")}
    assert numbers[0] not in kept and numbers[1] in noted
    assert set(kept.values()) == {2}


def test_the_recorder_counts_bytes_of_both_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagletrace.record import recorder as module
    from eagletrace.settings import Settings

    recorder = Recorder(tmp_path, Settings(), {"host": "h", "pid": 1}, {})
    monkeypatch.setattr(module, "QUEUE_BYTES", 10**12)
    packet: Any = SimpleNamespace(bytes=1)
    threads = [threading.Thread(target=lambda: [recorder.launch(packet) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder._bytes_queued == 20_000  # pyright: ignore[reportPrivateUsage]
