"""Rounds from captured graphs against the same rounds run eagerly: the same rows with taps, NULL without, never stale.

Graphs are CUDA's own where there is a GPU; elsewhere operators are recorded and replayed without Python. Each graph's
outputs are overwritten as soon as the engine has read them, as graphs of one memory pool do to each other.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang import graphs  # noqa: E402
from tests.hooks import fake_engine  # noqa: E402
from tests.hooks.fake_engine import Engine, Sizes  # noqa: E402
from tests.hooks.graph_replay import OperatorGraph, needs_cuda  # noqa: E402
from tests.hooks.traced import Traced, served, traced  # noqa: E402

Row = dict[str, Any]
HAS_CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_CUDA, reason=needs_cuda))]
FAMILIES = pytest.mark.parametrize("family", ["v2", "v1"])
TREES = pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
ON = pytest.mark.parametrize("device", DEVICES)
OF_THE_DRAFT = ("draft_vocab_id", "draft_logprob", "draft_entropy", "rope_position")


@contextmanager
def monkeypatched(owner: Any, name: str, value: Any) -> Generator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def serve(folder: Path, family: str, *, taps: bool = False, **sizes: Any) -> Traced:
    """The same prefill and rounds whatever the graphs: weights and inputs come from one seed."""
    return served(lambda: Engine(family, Sizes(**sizes)), folder, graph_taps=taps)


def nodes(found: Traced, table: str) -> dict[tuple[int, ...], Row]:
    """Rows by round, request and node."""
    return {(r["round"], r["request_seq"], r["node"]): r for r in found.rows(table)}


def same(a: Row, b: Row, *names: str) -> None:
    for name in names:
        assert a[name] == (pytest.approx(b[name], rel=1e-4, abs=1e-5) if isinstance(b[name], float) else b[name]), name


@ON
@FAMILIES
@TREES
def test_with_taps_the_rows_are_those_of_eager_rounds(tmp_path: Path, device: str, family: str, topk: int) -> None:
    eager = serve(tmp_path / "eager", family, topk=topk, device=device)
    graph = serve(tmp_path / "graph", family, taps=True, graph=True, topk=topk, device=device)
    assert graph.hooks["graph.draft"].calls == 3 and graph.session.graphs.tapped_replays == 3
    for table in ("drafts", "verifies"):
        right, mine = nodes(eager, table), nodes(graph, table)
        assert mine.keys() == right.keys() and len(mine) >= 9 * 3
        for key, row in mine.items():
            same(row, right[key], *(n for n in row if not n.startswith("time")))
    known = [r for r in nodes(graph, "drafts").values() if r["depth"] >= 2]
    assert known and all(r[n] is not None for r in known for n in OF_THE_DRAFT)
    for run, ran in ((graph, True), (eager, False)):
        assert {r["graph"] for r in run.rows("rounds") if r["request_round"] > 0} == {ran}
    stages = [{(r["round"], r["request_seq"]): r for r in f.rows("hidden") if r["stage"] == "draft_out"}
              for f in (eager, graph)]  # fmt: skip
    assert stages[0].keys() == stages[1].keys() and stages[0]
    for key, row in stages[1].items():
        same(row, stages[0][key], "rms", "nan_count", "kurtosis")


@ON
@FAMILIES
@TREES
def test_without_taps_depth_1_is_known_and_the_rest_is_null(
    tmp_path: Path, device: str, family: str, topk: int
) -> None:
    eager = serve(tmp_path / "eager", family, topk=topk, device=device)
    graph = serve(tmp_path / "graph", family, graph=True, topk=topk, device=device)
    right, mine = nodes(eager, "drafts"), nodes(graph, "drafts")
    assert mine.keys() == right.keys()
    for key, row in mine.items():
        if row["depth"] == 1:
            same(row, right[key], "draft_vocab_id", "draft_logprob", "draft_entropy", "token")
            assert row["draft_entropy"] is not None
        else:
            same(row, right[key], "token", "parent_node", "position")
            assert [row[n] for n in OF_THE_DRAFT] == [None] * 4
    right, mine = nodes(eager, "verifies"), nodes(graph, "verifies")
    for key, row in mine.items():
        same(row, right[key], "expected_token", "target_token_in_draft_vocab", "reached", "accepted")
        if row["depth"] == 1:
            same(row, right[key], "draft_rank_of_target_token")
        else:
            assert row["draft_rank_of_target_token"] is None
    ranks = [r["draft_rank_of_target_token"] for r in mine.values() if r["depth"] == 1]
    assert len([r for r in ranks if r is not None]) > len(ranks) // 3
    later = [r for r in graph.rows("rounds") if r["request_round"] > 1]
    assert later and all(r["fc_applied"] is None and r["draft_input_width"] == 24 for r in later)


def test_a_shape_that_was_not_captured_runs_eagerly_and_is_seen(tmp_path: Path) -> None:
    """Taps are read of the shape that ran, padding left out, and of no other."""
    for bs, shape in ((1, 1), (2, 2), (3, 4)):
        found = serve(tmp_path / str(bs), "v2", taps=True, graph=True, bs=bs)
        assert found.engine.draft_side.cuda_graph_runner.bs == shape
        assert found.session.graphs.tapped_replays == 3
        assert len(nodes(found, "drafts")) == 3 * bs * 3


@FAMILIES
def test_an_input_of_another_width_is_skipped_by_the_engine_and_said(tmp_path: Path, family: str) -> None:
    for width, name in ((24, "right"), (32, "wrong")):
        found = serve(tmp_path / name, family, graph=True, buffer_width=width)
        facts = [r for r in found.rows("contract") if r["key"] == "graph.draft_extend_input_width"]
        assert [(r["actual"], r["expected"]) for r in facts] == [(str(width), "24")]
        if family == "v1":
            continue
        seen = [(r["stage"], r["rms"]) for r in found.rows("hidden") if r["stage"] in ("fc_in", "target_aux")]
        fed = [rms for stage, rms in seen if stage == "fc_in"]
        target = [rms for stage, rms in seen if stage == "target_aux"]
        assert fed and target and min(target) > 0.1
        assert (max(fed) == 0) == (name == "wrong")  # what the graph reads: its buffer, never written


def test_what_was_captured_is_an_event(tmp_path: Path) -> None:
    import json

    found = serve(tmp_path / "graph", "v2", graph=True)
    events = [json.loads(r["detail"]) for r in found.rows("events") if r["kind"] == "graph_captured"]
    assert [(e["runner"], e["batch_sizes"], e["input_width"]) for e in events] == [
        ("draft", [4, 2, 1], 8), ("draft_extend", [4, 2, 1], 24),
    ]  # fmt: skip
    eager = serve(tmp_path / "eager", "v2")
    assert not [r for r in eager.rows("events") if r["kind"] == "graph_captured"]


class Counting(OperatorGraph):
    """Graphs, all together."""

    captures: list[list[str]] = []  # noqa: RUF012 - reset by the test

    def capture(self, function: Any) -> Any:
        out = super().capture(function)
        self.captures.append([func.overloadpacket.__name__ for func, *_ in self.operators])
        return out


@pytest.mark.parametrize("traced_by_us", ["untraced", "traced", "taps"])
@FAMILIES
def test_hooks_add_nothing_to_a_capture_and_taps_only_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, traced_by_us: str
) -> None:
    def captured(graph_taps: bool | None) -> list[list[str]]:
        monkeypatch.setattr(Counting, "captures", [])
        engine = Engine(family, Sizes(graph=True, graph_class=Counting))
        if graph_taps is None:
            engine.draft_side.init_cuda_graphs()
        else:
            with traced(engine, tmp_path, graph_taps=graph_taps) as found:
                engine.draft_side.init_cuda_graphs()
            found.check()
        return Counting.captures

    alone = captured(None)
    ours = captured({"untraced": None, "traced": False, "taps": True}[traced_by_us])
    if traced_by_us != "taps":
        assert ours == alone
        return
    for mine, right in zip(ours, alone, strict=True):
        more = list(mine)
        for name in right:
            more.remove(name)
        assert set(more) <= {"copy_", "slice", "detach"}
        assert more.count("copy_") in (0, 5)  # two steps' logits and positions, and the first step's hidden state


@FAMILIES
def test_a_capture_in_the_middle_of_a_launch_is_not_observed(tmp_path: Path, family: str) -> None:
    """An engine may capture when it first meets a shape; what our hooks did then would become part of the graph."""
    engine = Engine(family, Sizes(topk=2))
    with traced(engine, tmp_path) as found:
        found.ready()
        session = found.session
        drafted: list[int] = []
        draft_forward = engine.draft_side.draft_forward

        def capture_first(forward_batch: Any) -> Any:
            launch = session.launch
            launch.wants_hidden = True
            with monkeypatched(session.graphs, "capturing", lambda: True), OperatorGraph() as graph:
                draft_forward(forward_batch)
            ours.append([func.overloadpacket.__name__ for func, *_ in graph.operators])
            drafted.append(len(launch.step_logits) + len(launch.rope_positions) + len(launch.packet.hidden))
            launch.topology = None
            return draft_forward(forward_batch)

        ours: list[list[str]] = []
        engine.draft_side.draft_forward = capture_first
        engine.serve()
        del engine.draft_side.draft_forward
    found.check()
    assert drafted == [0, 0, 0] and ours[0].count("clone") == 2  # the engine's own, of its results


def test_the_engines_methods_are_its_own_again_after_capture(tmp_path: Path) -> None:
    engine = Engine("v2", Sizes(graph=True))
    with traced(engine, tmp_path, graph_taps=True):
        engine.draft_side.init_cuda_graphs()
        assert "draft_forward" not in vars(engine.draft_side) and "forward" not in vars(engine.draft_runner)


def test_an_error_of_the_taps_does_not_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("eagletrace.instrumentations.sglang.graph_taps.Taps._tap", broken)
    torch.manual_seed(3)
    engine = Engine("v2", Sizes(graph=True))
    with traced(engine, tmp_path, graph_taps=True) as found:
        engine.draft_side.init_cuda_graphs()
        found.ready()
        engine.serve()
    assert found.hooks["graph.capture"].last_error == "RuntimeError: no memory"
    assert found.session.graphs.tapped_replays == 0 and found.session.graphs.draft_replays == 3
    assert {r["draft_entropy"] is None for r in nodes(found, "drafts").values() if r["depth"] > 1} == {True}


def test_a_capture_that_fails_leaves_no_taps_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(self: Any, hidden: Any) -> Any:
        raise RuntimeError("out of memory")

    engine = Engine("v2", Sizes(graph=True))
    monkeypatch.setattr(fake_engine.DraftModel, "forward", out_of_memory)
    with traced(engine, tmp_path, graph_taps=True):
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.draft_side.init_cuda_graphs()
        assert "draft_forward" not in vars(engine.draft_side) and "forward" not in vars(engine.draft_runner)


def test_a_prefill_from_a_captured_graph_says_nothing_of_the_fusion_layer(tmp_path: Path) -> None:
    """Its module hooks are not called in a replay: not seen is NULL, and not `did not run`."""
    outcomes: list[str | None] = []
    for graph in (False, True):
        engine = Engine("v2", Sizes())
        with traced(engine, tmp_path / str(graph)) as found:
            found.ready()
            engine.draft_runner.graph_prefill = graph
            engine.serve()
        found.check()
        outcomes += [r["actual"] for r in found.rows("contract") if r["key"] == "forward.fc_applied"]
    assert outcomes == ["true", None]


def test_hooks_that_a_graph_hides_say_so(tmp_path: Path) -> None:
    for graph, taps in ((False, False), (True, False), (True, True)):
        found = serve(tmp_path / f"{graph}{taps}", "v2", graph=graph, taps=taps, topk=2)
        hidden = {n for n in found.hooks if graphs.hidden_detail(found.session, n)}
        assert hidden == ({"runner.forward", "v2.draft_forward"} if graph and not taps else set())
        fusion = graphs.fusion_row(found.session)
        assert fusion is not None and fusion["status"] == ("graph_hidden" if graph else "installed")
        assert fusion["target"] == "DraftModel:fc"
    detail = graphs.hidden_detail(found.session, "runner.forward")
    assert detail is None
