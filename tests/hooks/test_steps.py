"""The worker that has a draft for each step: its rounds are drafted in the extend before them; what each step loads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from eagletrace.instrumentations.landing import KeyRecord, LandingMode  # noqa: E402
from eagletrace.instrumentations.sglang import draft_models, file_parts, load, steps, updates  # noqa: E402
from eagletrace.instrumentations.sglang.attach import Attachment  # noqa: E402
from eagletrace.instrumentations.sglang.draft_models import drafts  # noqa: E402
from eagletrace.instrumentations.sglang.hooks import BEGINNINGS, COUNTING, HOOKS  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402
from eagletrace.instrumentations.sglang.signatures import FOUND, read, status  # noqa: E402
from eagletrace.instrumentations.sglang.sources import Sources  # noqa: E402
from eagletrace.instrumentations.sglang.targets import BY_NAME, MULTI_LAYER, TARGETS, stand_ins  # noqa: E402
from eagletrace.record.recorder import Recorder  # noqa: E402
from eagletrace.settings import Settings  # noqa: E402
from tests.hooks.fake_engine import Batch, Engine, Req, Sizes  # noqa: E402
from tests.hooks.no_waiting import Guard  # noqa: E402
from tests.hooks.test_graph_names import calls, package, tree  # noqa: E402
from tests.hooks.traced import Traced, served, traced  # noqa: E402

Row = dict[str, Any]
FAMILY = "multi_layer"
ROUNDS, STEPS = 3, 3

# -- rounds ------------------------------------------------------------------------------------------------------------


def serve(folder: Path, *, graph: bool = False, older: bool = False, **settings: Any) -> Traced:
    return served(lambda: Engine(FAMILY, Sizes(graph=graph), older=older), folder, **settings)


def assert_drafts_are_the_steps(found: Traced, used: list[list[Any]], names: list[str]) -> None:
    """Each draft has the best token of the logits of its step, and what they say of it."""
    requests = {r["request_id"]: r["request_seq"] for r in found.rows("requests")}
    rows = {(r["round"], r["request_seq"], r["depth"]): r for r in found.rows("drafts")}
    rounds = sorted({r[0] for r in rows})
    assert len(rows) == len(used) * len(names) * STEPS and len(rounds) == len(used)
    for number, step_logits in zip(rounds, used, strict=True):
        for step, logits in enumerate(step_logits):
            for row, name in enumerate(names):
                draft, best = rows[number, requests[name], step + 1], int(logits[row].argmax())
                assert (draft["token"], draft["draft_vocab_id"]) == (best, best)
                assert draft["draft_logprob"] == pytest.approx(float(logits[row].log_softmax(-1).max()), abs=1e-2)
                assert draft["rope_position"] is None


@pytest.mark.parametrize("older", [False, True], ids=["rows", "all-rows"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_each_draft_has_the_logits_of_its_step(tmp_path: Path, graph: bool, older: bool) -> None:
    found = serve(tmp_path, graph=graph, older=older)
    assert_drafts_are_the_steps(found, found.engine.used, ["r0", "r1", "r2"])
    rounds = [r for r in found.rows("rounds") if r["request_seq"] <= 3 and r["request_round"] > 0]
    assert {r["graph"] for r in rounds} == {graph} and {r["draft_input_width"] for r in rounds} == {24}
    assert {r["fc_applied"] for r in rounds} == ({None} if graph else {True})
    assert {r["accepted"] for r in rounds} == {1}
    phases = {r["name"] for r in found.rows("spans")}
    assert len(phases) >= 4 and found.session.graphs.extend_replays == (ROUNDS if graph else 0)


def test_requests_of_different_extends_come_together(tmp_path: Path) -> None:
    torch.manual_seed(3)
    engine = Engine(FAMILY, Sizes(bs=2))
    late = Req("late")
    with traced(engine, tmp_path) as found, torch.inference_mode():
        found.ready()
        engine.scheduler.run(Batch(engine.reqs, extend=True))
        engine.scheduler.run(Batch(engine.reqs))
        engine.scheduler.run(Batch([late], extend=True))
        used, engine.used = engine.used, []
        engine.scheduler.run(Batch([engine.reqs[1], late, engine.reqs[0]]))
        found.session.deferred.compute()
    found.check()
    assert len(used) == 1 and len(engine.used) == 1
    rows = found.rows("drafts")
    last = max(r["round"] for r in rows)
    requests = {r["request_id"]: r["request_seq"] for r in found.rows("requests")}
    for row, name in enumerate(("r1", "late", "r0")):
        of_it = sorted((r for r in rows if (r["round"], r["request_seq"]) == (last, requests[name])), key=depth)
        assert [r["draft_vocab_id"] for r in of_it] == [int(s[row].argmax()) for s in engine.used[0]]


def depth(row: Row) -> int:
    return row["depth"]


def test_a_pause_forgets_what_the_steps_have_drafted(tmp_path: Path) -> None:
    engine = Engine(FAMILY, Sizes())
    with traced(engine, tmp_path) as found, torch.inference_mode():
        found.ready()
        engine.scheduler.run(Batch(engine.reqs, extend=True))
        found.session.later_logits = [torch.zeros(1, 1)]
        found.session.forget_launches()
        assert found.session.later_logits == []
        engine.scheduler.run(Batch(engine.reqs))
    found.check()
    assert {r["draft_logprob"] for r in found.rows("drafts")} == {None}
    assert {r["token"] for r in found.rows("drafts")} != {None}


def test_what_an_extend_left_that_no_round_followed_is_forgotten(tmp_path: Path) -> None:
    engine = Engine(FAMILY, Sizes())
    with traced(engine, tmp_path) as found:
        found.ready()
        found.session.later_logits = [torch.zeros(engine.sizes.bs, engine.sizes.draft_vocab)]
        engine.serve()
    found.check()
    assert_drafts_are_the_steps(found, engine.used, ["r0", "r1", "r2"])


def test_steps_whose_logits_are_too_many_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagletrace.instrumentations.sglang.launch.STEP_BYTES", 1)
    found = serve(tmp_path)
    known = {r["depth"] for r in found.rows("drafts") if r["draft_logprob"] is not None}
    assert known == {1}


@pytest.mark.parametrize("level", ["tokens", "tensors"])
@pytest.mark.parametrize("older", [False, True], ids=["rows", "all-rows"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_nothing_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, older: bool, graph: bool
) -> None:
    guard = Guard("stand-in")
    with guard.engine(monkeypatch):
        engine = Engine(FAMILY, Sizes(device="cuda", graph=graph), older=older)
        with traced(engine, tmp_path, guard=guard, record=False, level=level) as found:
            if graph:
                engine.draft_side.init_cuda_graphs()
            found.ready()
            engine.serve()
    assert guard.found == []
    assert {"multi_layer.draft", "multi_layer.extend_decode", "runner.forward"} <= guard.entered
    assert ("multi_layer.replay" in guard.entered) is graph


def test_tensors_of_a_request_are_those_of_its_steps(tmp_path: Path) -> None:
    """No hidden state of a draft is at hand; the best ids of every depth are."""
    found = serve(tmp_path, level="tensors")
    rows = found.rows("tensors")
    depths = sorted(r["depth"] for r in rows if r["stage"] == "draft_top_ids" and r["request_seq"] == 1)
    assert depths == sorted([1, 2, 3] * ROUNDS)
    assert {r["stage"] for r in rows} == {"prompt_ids", "input_ids", "target_aux", "fc_out", "draft_top_ids"}


@pytest.mark.parametrize(("front", "nodes"), [(0, 4), (2, 4)])
def test_the_row_behind_the_last_accepted_token_is_chosen(front: int, nodes: int) -> None:
    rows = front + nodes
    logits = torch.arange(3 * rows)[:, None].float()
    accepted = torch.tensor([1, 4, 2], dtype=torch.int32)
    chosen = steps.last_rows(logits, accepted, nodes)[:, 0].tolist()
    assert chosen == [0 * rows + front, rows + front + 3, 2 * rows + front + 1]
    for given, count in ((logits[:3], accepted), (logits, None), (logits[:-1], accepted)):  # chosen, not known, odd
        assert steps.last_rows(given, count, nodes) is given


# -- the engine's own names --------------------------------------------------------------------------------------------

WORKER, GRAPHS = "multi_layer_eagle_worker_v2", "multi_layer_eagle_draft_extend_cuda_graph_runner"


@pytest.fixture(params=["0.5.23", "0.5.20", "0.5.9"])
def release(request: Any) -> tuple[str, Path]:
    found = package(request.param)
    if found is None:
        pytest.skip(f"sglang {request.param} is not installed")
    return request.param, found


def test_the_targets_are_there_as_the_hooks_rely_on_them(release: tuple[str, Path]) -> None:
    version, root = release
    sources = Sources(root)
    found = {t.name: status(t, read(sources, t)) for t in MULTI_LAYER}
    graphs = {"multi_layer.replay", "multi_layer.replay_one"}
    lost = {name for name, (state, _) in found.items() if state != FOUND}
    assert lost == (graphs if version == "0.5.9" else set())
    assert all(t.required for t in MULTI_LAYER if t.name not in graphs)


def test_the_worker_runs_the_steps_as_the_hooks_expect(release: tuple[str, Path]) -> None:
    version, root = release
    functions = {n.name: n for n in ast.walk(tree(root, WORKER)) if isinstance(n, ast.FunctionDef)}
    for name in ("_draft_extend_for_prefill", "_draft_extend_for_decode"):
        of_steps = [ast.unparse(c.func) for c in calls(functions[name], "forward")]
        assert of_steps == ["self.draft_runner_list[step].forward"]
    assert not list(calls(functions["draft"], "forward")) and not list(calls(functions["draft_forward"], "forward"))
    order = ast.unparse(functions["forward_batch_generation"])
    assert order.index(".draft(") < order.index("self.verify(") < order.index("._draft_extend_for_decode(")
    select = ast.unparse(functions["_draft_extend_for_decode"])
    assert "accept_lens - 1" in select and "* self.speculative_num_draft_tokens" in select.replace("(", "")
    if version != "0.5.9":
        assert "cgr.replay(step)" in select
        runner = (root / "srt/speculative" / f"{GRAPHS}.py").read_text()
        for name in ("self.raw_bs", "self.prune_draft_extend_logits", "self.buffers = ", "select_index: torch.Tensor"):
            assert name in runner


def test_runners_and_the_loader_say_which_step_they_are_of(release: tuple[str, Path]) -> None:
    _, root = release
    assert "self.draft_model_idx = draft_model_idx" in (root / "srt/model_executor/model_runner.py").read_text()
    loader = (root / "srt/model_loader/loader.py").read_text()
    assert 'name.replace(match.group(), "model.mtp.layers.0.")' in loader.replace("group.group()", "match.group()")
    worker = (root / "srt/managers/tp_worker.py").read_text()
    assert "draft_model_idx=0 if self.is_multi_layer_eagle else None" in worker


# -- which hooks stand -------------------------------------------------------------------------------------------------


def test_every_target_has_a_hook_and_stands_in_for_the_others() -> None:
    names = {t.name for t in MULTI_LAYER}
    assert names <= HOOKS.keys() and not names & {t.name for t in TARGETS}
    for part in ("generate", "draft", "extend_prefill", "extend_decode", "verify"):
        assert stand_ins(f"v2.{part}") == stand_ins(f"v1.{part}") == (f"multi_layer.{part}",)
        assert BY_NAME[f"multi_layer.{part}"].level == BY_NAME[f"v2.{part}"].level
    assert stand_ins("v2.draft_forward") == stand_ins("scheduler.results") == ()
    assert "multi_layer.generate" in COUNTING and "multi_layer.extend_prefill" in BEGINNINGS


def test_where_it_serves_the_other_workers_are_not_missed() -> None:
    hooks = SimpleNamespace(missing={"v1.generate": "gone"}, fired=lambda: {"multi_layer.generate"})
    session = SimpleNamespace(worker=object(), rounds_pass=False, lean=False)
    attachment: Any = SimpleNamespace(hooks=hooks, session=session)
    names = ("v1.generate", "v2.generate", "v2.draft", "multi_layer.generate", "multi_layer.draft")
    required = {name: Attachment.required(attachment, BY_NAME[name]) for name in names}
    assert required == {"v1.generate": False, "v2.generate": False, "v2.draft": True, "multi_layer.generate": True,
                        "multi_layer.draft": True}  # fmt: skip


# -- what is loaded ----------------------------------------------------------------------------------------------------

LAYERS, H = 5, 4


class Step3p5MTP(nn.Module):
    """A layer of multi-token prediction by one of the engine's names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.eh_proj = nn.Embedding(6, H), nn.Linear(2 * H, H, bias=False)
        self.lm_head = nn.Linear(H, 6, bias=False)

    def get_embed_and_head(self) -> tuple[Any, Any]:
        return self.embed_tokens.weight, self.lm_head.weight


class Loaded:
    """Drafts of three steps that are loaded one after the other from one file, as the engine does."""

    def __init__(self, folder: Path, *, path: str = "/models/target") -> None:
        self.folder = folder
        process = {"host": "h", "pid": 1, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
        recorder = Recorder(folder, Settings(), process, {})
        recorder.start()
        arguments = SimpleNamespace(model_path="/models/target", speculative_draft_model_path=path,
                                    speculative_num_steps=STEPS, speculative_algorithm="EAGLE")  # fmt: skip
        self.session = Session(recorder, "0", arguments)
        text = SimpleNamespace(num_hidden_layers=LAYERS, num_nextn_predict_layers=STEPS + 1, hidden_size=H)
        self.target = self.runner(None, text)
        self.session.target_runner = self.target
        self.file = {"model.embed_tokens.weight": torch.ones(6, H), "model.layers.4.mlp.weight": torch.ones(2)} | {
            f"model.layers.{LAYERS + step}.{name}.weight": torch.full(shape, step + 2.0)
            for step in range(STEPS + 1) for name, shape in (("eh_proj", (H, 2 * H)), ("unknown", (3,)))
        }  # fmt: skip
        self.runners = [self.runner(step, text) for step in range(STEPS)]

    @staticmethod
    def runner(step: int | None, text: Any) -> Any:
        config = SimpleNamespace(hf_text_config=text, hf_config=SimpleNamespace(to_dict=dict), vocab_size=6)
        return SimpleNamespace(
            model=Step3p5MTP(), draft_model_idx=step, is_draft_worker=step is not None, model_config=config
        )

    def load(self, step: int, *, dies: bool = False) -> None:
        """One draft, under the hooks' own functions."""
        runner, hook = self.runners[step], load.LoadModel(BY_NAME["runner.load_model"], self.session)
        token = hook.before(runner, (), {})
        mode = LandingMode(runner.model, file_parts.of_the_target(self.session, runner.model))
        with mode:
            for name, tensor in mode.feed(self.file.items()):
                if name.endswith("embed_tokens.weight"):
                    runner.model.embed_tokens.weight.data.copy_(tensor)
                elif name == f"model.layers.{LAYERS + step}.eh_proj.weight":
                    runner.model.eh_proj.weight.data.copy_(tensor)
        load.loaded(self.session, runner.model, mode, 0.0, failed=dies)
        if not dies:
            hook.after(token, None, runner, (), {})

    def rows(self, table: str) -> list[Row]:
        import pyarrow.parquet as pq

        self.session.recorder.stop()
        files = sorted((self.folder / table).glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture(params=["/models/target", "/models/draft"], ids=["in-target", "alone"])
def loaded(request: Any, tmp_path: Path) -> Iterator[Loaded]:
    found = Loaded(tmp_path, path=request.param)
    yield found
    found.session.recorder.stop()


def test_every_step_has_its_parameters_and_its_tensors(loaded: Loaded) -> None:
    for step in range(STEPS):
        loaded.load(step)
    session = loaded.session
    assert session.draft_runner is loaded.runners[0] and session.later_runners == loaded.runners[1:]
    assert [name for name, _ in drafts(session)] == ["draft_step_0.", "draft_step_1.", "draft_step_2."]
    for runner in loaded.runners:
        runner.model.embed_tokens.weight = loaded.target.model.embed_tokens.weight
    load.write_params(session, drafts(session), "serving")
    rows = [r for r in loaded.rows("params") if r["phase"] == "serving"]
    of_draft = {r["name"]: r for r in rows if r["side"] == "draft"}
    assert len(of_draft) == 3 * STEPS and len({r["checksum"] for n, r in of_draft.items() if "eh_proj" in n}) == STEPS
    for step in range(STEPS):
        row = of_draft[f"draft_step_{step}.eh_proj.weight"]
        assert row["checkpoint_keys"] == [f"model.layers.{LAYERS + step}.eh_proj.weight"]
        assert (row["elements"], row["elements_loaded"], row["module_type"]) == (32, 32, "Linear")
        assert of_draft[f"draft_step_{step}.lm_head.weight"]["elements_loaded"] == 0
        shared = of_draft[f"draft_step_{step}.embed_tokens.weight"]["shared_with"]
        assert shared == "target:embed_tokens.weight"


def test_a_tensor_of_the_file_is_one_row_with_what_every_step_did_with_it(loaded: Loaded) -> None:
    for step in range(STEPS):
        loaded.load(step)
    rows = {r["key"]: r for r in loaded.rows("checkpoint_keys")}
    assert len(loaded.rows("checkpoint_keys")) == len(rows) == len(loaded.file)
    for step in range(STEPS):
        own = rows[f"model.layers.{LAYERS + step}.eh_proj.weight"]
        assert own["fate"] == "loaded" and f"draft_step_{step}.eh_proj.weight" in own["landed_in"]
        assert own["checksum"] is not None and own["rms"] == step + 2.0
        assert rows[f"model.layers.{LAYERS + step}.unknown.weight"]["fate"] == "dropped"
    # A layer for a step that is not served is left out on purpose.
    assert rows[f"model.layers.{LAYERS + STEPS}.eh_proj.weight"]["fate"] == "ignored_by_engine"
    assert rows["model.embed_tokens.weight"]["landed_in"].count("draft_step_") == STEPS


def test_drafts_that_are_not_loaded_any_more_are_not_waited_for(loaded: Loaded) -> None:
    loaded.load(0)
    loaded.load(1, dies=True)
    fates = {r["key"]: r["fate"] for r in loaded.rows("checkpoint_keys")}
    assert len(fates) == len(loaded.file) and fates[f"model.layers.{LAYERS + 1}.eh_proj.weight"] == "loaded"


def test_an_update_of_any_step_is_one_of_the_draft(loaded: Loaded) -> None:
    import json

    for step in range(STEPS):
        loaded.load(step)
    load.write_params(loaded.session, drafts(loaded.session), "serving")
    hook = updates.WeightsUpdated(BY_NAME["updater.update_disk"], loaded.session)
    with torch.no_grad():
        loaded.runners[1].model.eh_proj.weight.add_(1.0)
    hook.after(hook.before(None, (), {}), (True, ""), loaded.runners[1], ("/new",), {})
    (event,) = [json.loads(r["detail"]) for r in loaded.rows("events") if r["kind"] == "weights_changed"]
    assert (event["side"], event["names"]) == ("draft", ["draft_step_1.eh_proj.weight"])


def test_the_loader_s_renaming_is_undone() -> None:
    def record(key: str) -> KeyRecord:
        return KeyRecord(key, [1], "float32", 1, None, None)

    keys = [record("model.mtp.layers.0.eh_proj.weight"), record("model.layers.0.norm.weight")]
    draft_models.named_as_in_file(keys, 0)
    assert keys[0].key == "model.mtp.layers.0.eh_proj.weight"
    draft_models.named_as_in_file(keys, 2)
    assert [k.key for k in keys] == ["model.mtp.layers.2.eh_proj.weight", "model.layers.0.norm.weight"]


@pytest.mark.parametrize(("index", "step"), [(None, None), (0, 0), (2, 2), (True, None)])
def test_a_runner_says_its_step(index: Any, step: int | None) -> None:
    assert draft_models.step_of(SimpleNamespace(draft_model_idx=index)) == step
    assert draft_models.step_of(SimpleNamespace()) is None


def test_one_draft_for_all_steps_keeps_its_names(tmp_path: Path) -> None:
    found = Loaded(tmp_path)
    found.runners[0].draft_model_idx = None
    found.load(0)
    assert [name for name, _ in drafts(found.session)] == [""] and found.session.later_runners == []
    assert {r["name"] for r in found.rows("params") if r["side"] == "draft"} == {
        "embed_tokens.weight", "eh_proj.weight", "lm_head.weight",
    }  # fmt: skip
