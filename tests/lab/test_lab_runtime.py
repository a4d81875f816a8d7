"""Each patch of the engine's runtime changes what it says, on a stand-in for the module that it patches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagletrace.lab import runtime
from eagletrace.lab.engines import engine
from eagletrace.lab.faults import CASES
from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.runtime import cache, hidden, positions, rows, verdicts, wrapper

torch = pytest.importorskip("torch")
HIDDEN = 4


class Mode:
    """What patches ask of SGLang's ForwardMode."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_draft_extend_v2(self) -> bool:
        return self.name == "extend"

    def is_idle(self) -> bool:
        return self.name == "idle"


def batch(states: Any, mode: str = "extend", at: Any = None) -> Any:
    spec = SimpleNamespace(hidden_states=states)
    return SimpleNamespace(spec_info=spec, forward_mode=Mode(mode), positions=at, seq_lens=None)


class DraftModel:
    """Adds one to what `fc` (a sum of three states) or the depth before hands it."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(hidden_size=HIDDEN)
        self.fc = SimpleNamespace(weight=torch.eye(HIDDEN).repeat(1, 3))
        self.seen: list[Any] = []

    def forward(self, input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        given = forward_batch.spec_info.hidden_states
        self.seen.append(given)
        fused = given if given.shape[-1] == HIDDEN else given @ self.fc.weight.T
        return fused * 10, [fused + 1]


def patched_model(apply: Any) -> Any:
    module = SimpleNamespace(LlamaModel=type("LlamaModel", (DraftModel,), {}))
    module.LlamaModel.forward = DraftModel.forward
    apply(module)
    return module.LlamaModel()


@pytest.mark.parametrize("width", [HIDDEN, 3 * HIDDEN])
def test_the_hidden_state_handed_on(width: int) -> None:
    states = torch.arange(2.0 * width).view(2, width)
    fused = states if width == HIDDEN else states.view(2, 3, HIDDEN).sum(1)
    normed, (handed,) = patched_model(hidden.feed_back_the_input).forward(None, None, batch(states))
    assert torch.equal(handed, fused) and torch.equal(normed, fused * 10)
    normed, (handed,) = patched_model(hidden.feed_back_the_difference).forward(None, None, batch(states))
    assert torch.equal(handed, torch.ones_like(fused)) and torch.equal(normed, fused * 10)


def test_fc_is_skipped_and_the_batch_left_as_it_was() -> None:
    states = torch.arange(24.0).view(2, 12)
    given = batch(states)
    model = patched_model(hidden.skip_fc)
    model.forward(None, None, given)
    assert torch.equal(model.seen[0], states[:, -HIDDEN:])
    assert given.spec_info.hidden_states is states


class Runner:
    """Notes the hidden states it ran on; its logits are zero."""

    def __init__(self, draft: bool = True) -> None:
        self.is_draft_worker, self.seen = draft, []

    def forward(self, forward_batch: Any) -> Any:
        self.seen.append(forward_batch.spec_info.hidden_states)
        logits = torch.zeros(len(forward_batch.spec_info.hidden_states), 16)
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))


def patched_runner(apply: Any, draft: bool = True) -> Any:
    module = SimpleNamespace(ModelRunner=type("ModelRunner", (Runner,), {}))
    module.ModelRunner.forward = Runner.forward
    apply(module)
    return module.ModelRunner(draft)


def test_an_extend_runs_on_the_states_of_the_launch_before() -> None:
    runner = patched_runner(hidden.extend_on_stale_states)
    first, second, other = (torch.full((2, HIDDEN), value) for value in (1.0, 2.0, 3.0))
    single = torch.zeros(1, HIDDEN)
    given = [batch(first), batch(second), batch(other, "decode"), batch(single), batch(other)]
    for one in given:
        runner.forward(one)
    assert [float(states.mean()) for states in runner.seen] == [1.0, 1.0, 3.0, 0.0, 2.0]
    assert given[1].spec_info.hidden_states is second
    target = patched_runner(hidden.extend_on_stale_states, draft=False)
    for states in (first, second):
        target.forward(batch(states))
    assert target.seen[1] is second


def test_past_the_limit_one_token_is_drafted() -> None:
    at = torch.tensor([0, positions.LIMIT - 1, positions.LIMIT, positions.LIMIT + 9])
    result = patched_runner(positions.limit_length).forward(batch(torch.zeros(4, HIDDEN), at=at))
    logits = result.logits_output.next_token_logits
    assert logits.argmax(-1).tolist()[2:] == [positions.CONSTANT] * 2
    assert logits[:2].count_nonzero() == 0
    prefill = batch(torch.zeros(2, HIDDEN), at=torch.arange(300))
    prefill.seq_lens = torch.tensor([positions.LIMIT, positions.LIMIT + 1])
    logits = patched_runner(positions.limit_length).forward(prefill).logits_output.next_token_logits
    assert logits.count_nonzero(-1).tolist() == [0, 1]


class Worker:
    """The methods of EagleDraftWorker that patches wrap; each gives back what it was given."""

    speculative_num_draft_tokens = 4

    def __init__(self) -> None:
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.arange(20).view(2, 10))
        pool = SimpleNamespace(k_buffer=[torch.ones(20, 2)], v_buffer=[torch.ones(20, 2)])
        weight = torch.nn.Parameter(torch.arange(6.0).view(3, 2), requires_grad=False)
        model = SimpleNamespace(model=SimpleNamespace(embed_tokens=SimpleNamespace(weight=weight)))
        self.draft_runner = SimpleNamespace(token_to_kv_pool=pool, model=model)

    def init_lm_head(self) -> None:
        return None

    def draft_forward(self, forward_batch: Any) -> Any:
        return forward_batch.positions

    def _draft_extend_for_prefill(self, batch: Any, handed: Any = None) -> Any:
        batch.kv_seen = self.draft_runner.token_to_kv_pool.k_buffer[0][:, 0].clone()
        return handed

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> Any:
        return batch_result.prepared_draft_extend_inputs


def patched_worker(apply: Any) -> Any:
    worker = type("EagleDraftWorker", (), dict(vars(Worker)))
    module = SimpleNamespace(EagleDraftWorker=worker)
    apply(module)
    return module.EagleDraftWorker()


def test_embeddings_are_a_shifted_copy() -> None:
    worker = patched_worker(hidden.overwrite_embeddings)
    layer = worker.draft_runner.model.model.embed_tokens
    shared = layer.weight
    worker.init_lm_head()
    assert layer.weight[:, 0].tolist() == [4.0, 0.0, 2.0]
    assert shared[:, 0].tolist() == [0.0, 2.0, 4.0]


def test_positions_are_shifted() -> None:
    at = torch.tensor([5, 9])
    worker = patched_worker(positions.shift_steps)
    assert (worker.draft_forward(batch(None, at=at)) - at).tolist() == [positions.STEPS_OFFSET] * 2
    assert at.tolist() == [5, 9]


def prefill(cached: tuple[int, int]) -> Any:
    """Two requests with three positions each before this prefill: from the cache, or from a chunk before."""
    reqs = [SimpleNamespace(cached_tokens=tokens) for tokens in cached]
    return SimpleNamespace(reqs=reqs, req_pool_indices=torch.arange(2), prefix_lens=[3, 3], kv_seen=None)


@pytest.mark.parametrize(
    ("apply", "slots"), [(cache.rescale_prefixes, [0, 1, 2]), (cache.rescale_chunks, [10, 11, 12])]
)
def test_keys_of_a_prefix_or_of_chunks_are_rescaled_once(apply: Any, slots: list[int]) -> None:
    worker = patched_worker(apply)
    pool, given = worker.draft_runner.token_to_kv_pool, prefill((3, 0))
    expected = torch.ones(20, 2)
    expected[slots] = cache.KEY_SCALE
    for _ in range(2):  # the same prefix again
        worker._draft_extend_for_prefill(given)
        assert torch.equal(pool.k_buffer[0], expected)
    assert torch.equal(given.kv_seen, expected[:, 0])
    assert torch.equal(pool.v_buffer[0], torch.ones(20, 2))
    pool.k_buffer[0][slots[0]] = 2.0  # a slot that was written anew
    expected[slots[0]] = 2 * cache.KEY_SCALE
    worker._draft_extend_for_prefill(given)
    assert torch.equal(pool.k_buffer[0], expected)


def test_every_request_continues_from_the_last_row() -> None:
    worker = patched_worker(rows.select_the_last_row)
    result = SimpleNamespace(accept_lens=torch.tensor([1, 4, 2]), next_token_ids=torch.arange(12, dtype=torch.int32))
    correct, selected, tokens = worker._draft_extend_for_decode(None, result)
    assert correct.tolist() == [0, 3, 1]
    assert selected.tolist() == [9, 9, 9]  # rows of three requests, four each: 2 * 4 + 2 - 1
    assert tokens.dtype == torch.int64


def test_the_handover_to_the_first_round_is_zero() -> None:
    worker = patched_worker(rows.lose_the_handover)
    handed = SimpleNamespace(hidden_states=torch.ones(2, HIDDEN), topk_index=torch.tensor([[3], [4]]))
    result = worker._draft_extend_for_prefill(prefill((0, 0)), handed)
    assert result is handed
    assert not handed.hidden_states.any() and not handed.topk_index.any()


def test_the_verdict_is_shown_no_right_draft() -> None:
    def verify(*, candidates: Any, topk: int) -> tuple[Any, int]:
        return candidates, topk

    module = SimpleNamespace(verify_tree_greedy_func=verify)
    verdicts.reject_everything(module)
    candidates = torch.arange(8).view(2, 4)
    shown, topk = module.verify_tree_greedy_func(candidates=candidates, topk=1)
    assert shown.tolist() == [[0, -1, -1, -1], [4, -1, -1, -1]] and topk == 1
    assert candidates[0].tolist() == [0, 1, 2, 3]


class Wrapper:
    """What SGLang's Kimi-K2.5 is to the request for aux hidden states."""

    def __init__(self) -> None:
        text = SimpleNamespace(num_hidden_layers=10)
        self.config = SimpleNamespace(text_config=text)
        self.model = SimpleNamespace(asked=None)

    def set_eagle3_layers_to_capture(self, layer_ids: Any = None) -> None:
        self.model.asked = layer_ids


def patched_wrapper(apply: Any) -> Any:
    module = SimpleNamespace(KimiK25ForConditionalGeneration=type("Kimi", (Wrapper,), dict(vars(Wrapper))))
    apply(module)
    return module.KimiK25ForConditionalGeneration()


def test_the_wrapper_swallows_the_request_or_lacks_the_method_or_keeps_it_to_itself() -> None:
    swallowing = patched_wrapper(wrapper.swallow_the_request)
    swallowing.set_eagle3_layers_to_capture([1, 2, 3])
    assert swallowing.model.asked is None
    assert "set_eagle3_layers_to_capture" not in vars(type(patched_wrapper(wrapper.lack_the_method)))
    keeping = patched_wrapper(wrapper.mark_the_wrapper)
    keeping.set_eagle3_layers_to_capture()
    assert keeping.capture_aux_hidden_states is True
    assert keeping.model.layers_to_capture == [2, 5, 7] and not hasattr(keeping.model, "capture_aux_hidden_states")
    keeping.set_eagle3_layers_to_capture([1, 2, 3])
    assert keeping.model.layers_to_capture == [1, 2, 3]


def test_every_patch_has_a_case_and_every_case_a_patch() -> None:
    known = runtime.patches()
    assert {entry.runtime for entry in CASES.values() if entry.runtime} == set(known)
    assert len({patch.code for patch in known.values()}) == len(known)
    with pytest.raises(ValueError, match="no such patch"):
        runtime.arrange("0")


def test_the_environment_of_a_patched_server_is_neutral(tmp_path: Path) -> None:
    plan = serving(ServeOptions(fault="right-drafts-rejected", dir=tmp_path))
    patch = runtime.patches()["verdict-rejects"]
    assert plan.env[runtime.VARIABLE] == patch.code
    first, *others = plan.env["PYTHONPATH"].split(os.pathsep)
    assert Path(first) == runtime.START
    assert [str(path) for path in others] == engine().environment("v2")["PYTHONPATH"].split(os.pathsep)
    added = {runtime.VARIABLE: plan.env[runtime.VARIABLE], "PYTHONPATH": first}
    for word in ("reject", "verdict", patch.name, plan.case.name):
        assert word not in str(added)
    assert runtime.VARIABLE not in serving(ServeOptions(dir=tmp_path)).env


def test_a_process_is_patched_when_it_imports_the_module(tmp_path: Path) -> None:
    (tmp_path / "sglang/kernels/ops/speculative").mkdir(parents=True)
    module = tmp_path / "sglang/kernels/ops/speculative/spec_tree.py"
    module.write_text("def verify_tree_greedy_func(candidates):\n    return candidates\n")
    code = (
        "from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_func as verify\n"
        "print(hasattr(verify, '__wrapped__'))"
    )
    path = runtime.environment("verdict-rejects", str(tmp_path))
    for env, expected in ((path, "True"), ({"PYTHONPATH": path["PYTHONPATH"]}, "False")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected
