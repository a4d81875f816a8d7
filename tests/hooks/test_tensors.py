"""Level `tensors` on the stand-in engine: what is stored of a request, that it has no holes, and what bounds it.

The stand-in's target gives the inputs of its layers as aux states and overwrites them after each batch; a path is the
root and one draft, so that each round keeps two positions. Prompts have three tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang import param_values, tensor_copies, tensors  # noqa: E402
from eagletrace.instrumentations.sglang.tensor_copies import LaunchTensors, quiet  # noqa: E402
from eagletrace.record import recorder as recorders  # noqa: E402
from tests.hooks.fake_engine import Batch, Engine, Req, Sizes  # noqa: E402
from tests.hooks.no_waiting import Guard  # noqa: E402
from tests.hooks.traced import Traced, traced  # noqa: E402

Rows = list[dict[str, Any]]
FAMILIES = pytest.mark.parametrize("family", ["v2", "v1"])
ROUNDS, PROMPT = 3, 3


@contextmanager
def recording(folder: Path, engine: Engine, **settings: Any) -> Generator[Traced]:
    chosen: dict[str, Any] = {"level": "tensors", "aux_layers": "all"} | settings
    with traced(engine, folder, **chosen) as found:
        found.session.server_args = SimpleNamespace(speculative_num_steps=engine.sizes.steps)
        found.ready()
        yield found
        found.check()
        assert [r for r in found.rows("events") if r["kind"] == "hook_error"] == []


def serve(folder: Path, family: str, topk: int = 1, **settings: Any) -> tuple[Engine, Rows, Rows]:
    """Three requests, three rounds: the rows of `tensors` and the events."""
    engine = Engine(family, Sizes(topk=topk))
    with recording(folder, engine, **settings) as found:
        engine.serve()
    return engine, found.rows("tensors"), bounded(found)


def bounded(found: Traced) -> Rows:
    return [json.loads(r["detail"]) for r in found.rows("events") if r["kind"] == "tensors_bounded"]


def values(row: dict[str, Any]) -> npt.NDArray[Any]:
    return np.frombuffer(row["data"], dtype=row["dtype"]).reshape(row["shape"])


def of(rows: Rows, stage: str, seq: int = 1, **where: Any) -> Rows:
    found = [r for r in rows if r["stage"] == stage and r["request_seq"] == seq]
    return [r for r in found if all(r[name] == value for name, value in where.items())]


def over_positions(rows: Rows, stage: str, seq: int = 1, **where: Any) -> tuple[list[int], npt.NDArray[Any]]:
    chosen = sorted(of(rows, stage, seq, **where), key=lambda r: r["position"])
    positions = [p for r in chosen for p in range(r["position"], r["position"] + r["shape"][0])]
    return positions, np.concatenate([values(r) for r in chosen])


@FAMILIES
@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
def test_each_position_is_stored_once_with_what_the_engine_had(tmp_path: Path, family: str, topk: int) -> None:
    engine, rows, events = serve(tmp_path, family, topk)
    last = PROMPT + 2 * ROUNDS
    for seq in (1, 2, 3):
        assert values(of(rows, "prompt_ids", seq)[0]).tolist() == [5, 6, 7]
        for stage in ("target_aux", "input_ids", "fc_out"):
            assert over_positions(rows, stage, seq)[0] == list(range(last)), stage
        assert {r["dtype"] for r in of(rows, "input_ids", seq)} == {"int64"}
        positions, aux = over_positions(rows, "target_aux", seq)
        assert not (aux == 7).any(), "read after the engine had used the memory again"
        width = engine.sizes.hidden
        for layer in range(engine.sizes.states):
            where, states = over_positions(rows, "target_layer", seq, layer=layer)
            assert where == list(range(last))
            np.testing.assert_allclose(states[: len(positions)], aux[:, layer * width : (layer + 1) * width], rtol=1e-6)
        assert over_positions(rows, "target_layer", seq, layer=engine.sizes.states)[0] == list(range(last))
        weight = engine.draft_runner.model.fc.weight.detach().numpy()
        np.testing.assert_allclose(over_positions(rows, "fc_out", seq)[1], aux @ weight.T, rtol=1e-4, atol=1e-5)
    assert {r["request_seq"] for r in rows} == {1, 2, 3, 4} and events == []  # the fourth is aborted after its prefill


@FAMILIES
@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
def test_the_draft_s_steps_are_stored_with_the_round_and_depth_that_they_draft(
    tmp_path: Path, family: str, topk: int
) -> None:
    engine, rows, _ = serve(tmp_path, family, topk)
    head = engine.draft_runner.model.head.weight.detach().numpy()
    for round_ in (1, 2, 3):
        root = PROMPT + 2 * (round_ - 1)
        for depth in (1, 2, 3):
            (out,) = of(rows, "draft_out", round=round_, depth=depth)
            (best,) = of(rows, "draft_top_ids", round=round_, depth=depth)
            branches = 1 if depth == 1 else topk
            assert out["position"] == best["position"] == root + depth - 2
            assert out["shape"] == [branches, engine.sizes.hidden] and best["shape"] == [branches, 10]
            if depth == 1:
                continue
            ranked = np.argsort(-(values(out) @ head.T), axis=1)[:, :10]
            assert values(best).tolist() == ranked.tolist()
            (given,) = of(rows, "draft_in", round=round_, depth=depth)
            assert given["position"] == out["position"]
            (before,) = of(rows, "draft_out", round=round_, depth=depth - 1)
            np.testing.assert_array_equal(values(given), np.repeat(values(before), topk // len(values(before)), axis=0))


@FAMILIES
def test_a_bound_of_positions_stops_a_request_there_and_says_so(tmp_path: Path, family: str) -> None:
    _, rows, events = serve(tmp_path, family, tensor_tokens=6)
    for seq in (1, 2, 3):
        assert over_positions(rows, "target_aux", seq)[0] == list(range(6))
        assert over_positions(rows, "target_layer", seq, layer=0)[0] == list(range(6))
    expected = {"position": 6, "reason": "EAGLETRACE_TENSOR_TOKENS"}
    assert [e for e in events if e["request_seq"] == 1] == [{"request_seq": 1, **expected}]
    assert len(events) == 3


def test_a_prompt_that_fills_the_bound_is_not_begun_and_counted(tmp_path: Path) -> None:
    engine = Engine("v2", Sizes())
    with recording(tmp_path, engine, tensor_tokens=PROMPT) as found:
        engine.serve()
    assert found.rows("tensors") == []
    assert bounded(found) == [{"request_seq": 1, "position": None, "reason": "EAGLETRACE_TENSOR_TOKENS"}]
    dropped = [json.loads(r["dropped_rows_by_reason"] or "{}") for r in found.rows("totals")]
    assert sum(d.get("EAGLETRACE_TENSOR_TOKENS: tensors", 0) for d in dropped) == 4


@FAMILIES
def test_bytes_are_bounded_and_no_request_has_a_hole(tmp_path: Path, family: str) -> None:
    _, whole, _ = serve(tmp_path / "whole", family)
    total = sum(len(r["data"]) for r in whole)
    reasons = set[str]()
    for part in (0.1, 0.4, 0.7, 0.95):
        _, rows, events = serve(tmp_path / str(part), family, tensor_bytes=int(part * total))
        assert sum(len(r["data"]) for r in rows) <= part * total
        reasons |= {e["reason"] for e in events}
        stopped = {e["request_seq"]: e["position"] for e in events if e["position"] is not None}
        for seq in {r["request_seq"] for r in rows}:
            positions = over_positions(rows, "target_aux", seq)[0]
            assert positions == list(range(len(positions)))
            if seq in stopped:
                assert over_positions(rows, "target_layer", seq, layer=0)[0] == list(range(stopped[seq]))
    assert reasons == {"EAGLETRACE_TENSOR_BYTES"}


@pytest.mark.parametrize(
    "settings", [{"level": "tokens"}, {"level": "contract"}, {"sample": 0.0}], ids=["tokens", "contract", "unsampled"]
)
def test_nothing_is_stored_below_the_level_or_of_requests_that_are_not_sampled(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    engine = Engine("v2", Sizes())
    with recording(tmp_path, engine, **settings) as found:
        if "level" in settings:
            assert found.session.tensors is None
            assert not any(m._forward_pre_hooks for m in engine.target_runner.model.modules())
        engine.serve()
        assert found.session.recording is None
    assert found.rows("tensors") == []


def test_requests_that_run_while_the_level_changes_are_cut_and_not_taken_up_again(tmp_path: Path) -> None:
    engine = Engine("v2", Sizes(), rounds=9)
    with recording(tmp_path, engine) as found, torch.inference_mode():
        session = found.session

        def level(name: str) -> None:
            session.recorder.settings = replace(session.recorder.settings, level=name)
            tensors.follow(session)

        engine.scheduler.run(Batch(engine.reqs, extend=True))
        engine.scheduler.run(Batch(engine.reqs))
        level("tokens")
        assert not any(m._forward_pre_hooks for m in engine.target_runner.model.modules())
        engine.scheduler.run(Batch(engine.reqs))
        level("tensors")
        engine.scheduler.run(Batch(engine.reqs))
        later = Req("later")
        engine.scheduler.run(Batch([later], extend=True))
        engine.scheduler.run(Batch([*engine.reqs, later]))
    rows = found.rows("tensors")
    for seq in (1, 2, 3):
        assert over_positions(rows, "target_aux", seq)[0] == list(range(PROMPT + 2))
    assert over_positions(rows, "target_aux", 4)[0] == list(range(PROMPT + 2))
    assert bounded(found) == [
        {"request_seq": seq, "position": PROMPT + 2, "reason": "recording interrupted"} for seq in (1, 2, 3)
    ]


def test_chunks_follow_each_other_and_a_cached_prefix_is_left_out(tmp_path: Path) -> None:
    engine = Engine("v2", Sizes(bs=1))
    (req,) = engine.reqs
    req.origin_input_ids, req.cached_tokens = list(range(20)), 4
    with recording(tmp_path, engine) as found, torch.inference_mode():
        for prefix, n in ((4, 9), (13, 7)):
            engine.scheduler.run(Chunk([req], extend=True, spans=[(prefix, n)]))
            if prefix == 4:
                req.output_ids.clear()
        engine.scheduler.run(Batch([req]))
    rows = found.rows("tensors")
    assert over_positions(rows, "target_aux")[0] == list(range(4, 22))
    assert over_positions(rows, "target_layer", layer=1)[0] == list(range(4, 22))
    assert len(values(of(rows, "prompt_ids")[0])) == 20 and bounded(found) == []


def test_the_first_worker_extends_those_that_go_on(tmp_path: Path) -> None:
    """A request that ends in the verdict has no row in the extend; those of the others are found all the same."""
    engine = Engine("v1", Sizes(bs=3), rounds=9)
    engine.reqs[1] = Ends("ends")
    with recording(tmp_path, engine) as found, torch.inference_mode():
        engine.scheduler.run(Batch(engine.reqs, extend=True))
        engine.scheduler.run(Batch(engine.reqs))
        engine.scheduler.run(Batch([engine.reqs[0], engine.reqs[2]]))
    rows, width = found.rows("tensors"), engine.sizes.hidden
    for seq, rounds, extends in ((1, 2, 2), (2, 1, 0), (3, 2, 2)):
        positions, aux = over_positions(rows, "target_aux", seq)
        assert positions == list(range(PROMPT + 2 * extends))
        where, states = over_positions(rows, "target_layer", seq, layer=2)
        assert where == list(range(PROMPT + 2 * rounds))
        np.testing.assert_allclose(states[: len(positions)], aux[:, 2 * width :], rtol=1e-6)


class Ends(Req):
    """Ends with its third token."""

    @property
    def finished_reason(self) -> Any:
        return "length" if len(self.output_ids) >= 3 else None

    @finished_reason.setter
    def finished_reason(self, value: Any) -> None:
        """Nothing else ends it."""


def test_a_request_that_is_prefilled_anew_stops_at_what_it_had(tmp_path: Path) -> None:
    engine = Engine("v2", Sizes(bs=2))
    with recording(tmp_path, engine) as found, torch.inference_mode():
        engine.scheduler.run(Batch(engine.reqs, extend=True))
        engine.scheduler.run(Batch(engine.reqs))
        engine.scheduler.run(Chunk([engine.reqs[0]], extend=True, spans=[(1, 5)]))
        engine.scheduler.run(Batch(engine.reqs))
    rows = found.rows("tensors")
    assert over_positions(rows, "target_aux", 1)[0] == list(range(PROMPT + 2))
    assert over_positions(rows, "target_aux", 2)[0] == list(range(PROMPT + 4))
    assert bounded(found) == [{"request_seq": 1, "position": PROMPT + 2, "reason": "retracted"}]


def test_rows_that_no_file_takes_end_their_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("v2", Sizes(bs=1), rounds=9)
    with recording(tmp_path, engine) as found, torch.inference_mode():
        engine.scheduler.run(Batch(engine.reqs, extend=True))
        found.session.recorder.flush()
        found.session.recorder.tensors_lost.add(1)
        engine.scheduler.run(Batch(engine.reqs))
    assert over_positions(found.rows("tensors"), "target_aux")[0] == list(range(PROMPT))
    assert bounded(found) == [{"request_seq": 1, "position": PROMPT, "reason": "write failed"}]


def test_a_disk_that_takes_nothing_is_noticed(tmp_path: Path) -> None:
    engine = Engine("v2", Sizes(bs=1), rounds=9)
    with recording(tmp_path, engine) as found, torch.inference_mode():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(found.session.recorder.writer, "_publish", full)
            engine.scheduler.run(Batch(engine.reqs, extend=True))
            found.session.recorder.flush()
        assert found.session.recorder.tensors_lost == {1}


def full(*_: Any) -> Path:
    raise OSError("no space left")


@FAMILIES
@pytest.mark.parametrize("method", ["layer", "extend", "fused", "begin", "step", "stepped", "verdict", "close"])
def test_an_error_ends_the_recording_of_tensors_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, method: str
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("here")

    monkeypatch.setattr(LaunchTensors, method, quiet(broken))
    engine = Engine(family, Sizes(bs=1))
    with traced(engine, tmp_path, level="tensors", aux_layers="all") as found:
        found.ready()
        engine.serve()
        found.check()
    errors = [json.loads(r["detail"]) for r in found.rows("events") if r["kind"] == "hook_error"]
    assert errors == [{"target": "tensors", "error": "ValueError('here')"}]
    assert bounded(found) == [{"request_seq": 1, "position": PROMPT, "reason": "error"}]
    assert over_positions(found.rows("tensors"), "target_aux")[0] == list(range(PROMPT))
    assert len(found.rows("rounds")) == ROUNDS + 1  # and the token of the fourth request's prefill


def test_layers_that_do_not_fit_on_the_device_stop_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_copies, "LAYER_BYTES", 3 * 4 * 3 * 8 * 4)
    _, rows, events = serve(tmp_path, "v2")
    assert over_positions(rows, "target_layer", layer=0)[0] == over_positions(rows, "target_aux")[0] == [0, 1, 2]
    assert {(e["position"], e["reason"]) for e in events} == {(PROMPT, "device memory")}


def test_many_tensors_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "TENSOR_BYTES", 4000)
    _, rows, _ = serve(tmp_path, "v2")
    assert len(list((tmp_path / "tensors").glob("*.parquet"))) >= 1
    assert over_positions(rows, "target_aux")[0] == list(range(PROMPT + 2 * ROUNDS))


@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
@FAMILIES
def test_storing_tensors_does_not_wait_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, topk: int
) -> None:
    guard = Guard("stand-in")
    with guard.engine(monkeypatch):
        engine = Engine(family, Sizes(device="cuda", topk=topk))
        with traced(engine, tmp_path, guard=guard, record=False, level="tensors", aux_layers="all") as found:
            found.ready()
            for layer in engine.target_runner.model.model.layers:
                guard.watch_module("layers", layer)
            engine.serve()
    assert guard.found == [] and "layers" in guard.entered
    stored = found.session.recorder._tensors  # pyright: ignore[reportPrivateUsage]
    assert {"target_aux", "target_layer", "draft_in", "draft_top_ids"} <= {row.stage for row in stored}


@FAMILIES
def test_what_ran_from_a_captured_graph_is_left_out_and_the_rest_is_there(tmp_path: Path, family: str) -> None:
    engine = Engine(family, Sizes(graph=True))
    with recording(tmp_path, engine) as found:
        engine.draft_side.init_cuda_graphs()
        engine.serve()
        assert found.session.aux_layers.hidden == ROUNDS  # the verify ran from a graph, says the engine
    rows = found.rows("tensors")
    assert over_positions(rows, "target_aux")[0] == list(range(PROMPT + 2 * ROUNDS))
    assert over_positions(rows, "fc_out")[0] == list(range(PROMPT))
    assert of(rows, "draft_in") == [] and len(of(rows, "draft_out", depth=1)) == ROUNDS


def test_values_of_parameters_that_no_tensor_wrote_are_kept_the_smaller_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("v2", Sizes())
    fc, head = engine.draft_runner.model.fc.weight, engine.draft_runner.model.head.weight
    assert fc.nbytes > head.nbytes
    loaded: Callable[[int, int], dict[str, Any]] = lambda a, b: {  # noqa: E731
        "fc.weight": {"elements_loaded": a}, "head.weight": {"elements_loaded": b},
    }  # fmt: skip
    cases = [(0, head.numel(), {"fc.weight"}), (fc.numel(), 3, {"head.weight"}), (0, 0, {"fc.weight", "head.weight"})]
    for number, (of_fc, of_head, expected) in enumerate(cases):
        with traced(engine, tmp_path / str(number), level="tensors") as found:
            found.session.params = loaded(of_fc, of_head)
            found.ready()
            tensors.follow(found.session)  # once
        rows = found.rows("param_values")
        assert {r["name"] for r in rows} == expected and len(rows) == len(expected)
        for row in rows:
            np.testing.assert_array_equal(
                values(row), dict(engine.draft_runner.model.named_parameters())[row["name"]].detach()
            )
    monkeypatch.setattr(param_values, "VALUES_BYTES", head.nbytes)
    with traced(engine, tmp_path / "bounded", level="tensors") as found:
        found.session.params = loaded(0, 0)
        found.ready()
    assert [r["name"] for r in found.rows("param_values")] == ["head.weight"]
    (event,) = [json.loads(r["detail"]) for r in found.rows("events") if r["kind"] == "param_values_bounded"]
    assert event == {"names": ["fc.weight"], "elements": fc.numel()}


class Chunk(Batch):
    """A prefill of parts of prompts, (prefix, tokens) each."""

    def __init__(self, reqs: list[Req], *, extend: bool, spans: list[tuple[int, int]]) -> None:
        super().__init__(reqs, extend)
        self.spans = spans

    @property
    def extend_lens(self) -> list[int]:
        return [n for _, n in self.spans]

    @property
    def prefix_lens(self) -> list[int]:
        return [prefix for prefix, _ in self.spans]
