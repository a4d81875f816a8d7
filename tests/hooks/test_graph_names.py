"""The names that the graph hooks and the fake engine rely on, in the sources of the installed releases.

No graph can be captured on a CPU, so what would run there is read: which attributes the runners have, what they are
called with, what they return, and that the draft extend skips a copy of another width without a word.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagletrace.instrumentations.sglang.sources import Sources
from eagletrace.instrumentations.sglang.targets import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
DRAFT, EXTEND = "eagle_draft_cuda_graph_runner", "eagle_draft_extend_cuda_graph_runner"
CLASSES = {DRAFT: "EAGLEDraftCudaGraphRunner", EXTEND: "EAGLEDraftExtendCudaGraphRunner"}
RUN = {"0.5.23": "execute", "0.5.9": "replay"}
CAPTURE = {"0.5.23": "capture_one_shape", "0.5.9": "capture_one_batch_size"}


def package(release: str) -> Path | None:
    """Where a release is installed: here, or in the environment named after it."""
    here = Path(sysconfig.get_path("purelib"))
    for site in [here, *sorted(ROOT.glob(".venv*/lib/python3*/site-packages"))]:
        if (site / f"sglang-{release}.dist-info").is_dir() and (site / "sglang/srt").is_dir():
            return site / "sglang"
    return None


@pytest.fixture(params=["0.5.23", "0.5.9"])
def release(request: Any) -> tuple[str, Path]:
    found = package(request.param)
    if found is None:
        pytest.skip(f"sglang {request.param} is not installed")
    return request.param, found


def tree(root: Path, module: str) -> ast.Module:
    return ast.parse((root / "srt/speculative" / f"{module}.py").read_text())


def method(root: Path, module: str, name: str) -> ast.FunctionDef:
    owner = next(n for n in tree(root, module).body if isinstance(n, ast.ClassDef) and n.name == CLASSES[module])
    return next(n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name)


def own_names(root: Path, module: str) -> set[str]:
    """Methods of a runner's class, and what it sets on itself."""
    owner = next(n for n in tree(root, module).body if isinstance(n, ast.ClassDef) and n.name == CLASSES[module])
    stored = {
        n.attr for n in ast.walk(owner)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"
    }  # fmt: skip
    return stored | {n.name for n in owner.body if isinstance(n, ast.FunctionDef)}


def calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == name:
            yield inner


def test_the_runners_have_what_the_hooks_read(release: tuple[str, Path]) -> None:
    version, root = release
    sources = Sources(root)
    for module, name in CLASSES.items():
        wanted = {"bs", "raw_bs", "capture_bs", "eagle_worker", "model_runner", "speculative_num_steps"}
        wanted |= {RUN[version], CAPTURE[version]}
        wanted |= {"buffers"} if version == "0.5.23" else {"hidden_states", "positions"}
        assert wanted <= own_names(root, module), name
    if version == "0.5.23":
        for module, name in ((DRAFT, "EagleDraftInputBuffers"), (EXTEND, "EagleDraftExtendInputBuffers")):
            known = sources.attributes(f"sglang.srt.speculative.{module}", name)
            assert known is not None and "hidden_states" in known


def test_the_targets_of_the_hooks_are_there(release: tuple[str, Path]) -> None:
    version, root = release
    sources = Sources(root)
    for new, old in (("draft", "draft_replay"), ("extend", "extend_replay"), ("capture", "capture_batch")):
        here, gone = (f"graph.{new}", f"graph.{old}") if version == "0.5.23" else (f"graph.{old}", f"graph.{new}")
        assert sources.function(BY_NAME[here].path) is not None
        assert sources.function(BY_NAME[gone].path) is None


def test_a_capture_runs_the_workers_draft_forward_and_that_the_runners_forward(release: tuple[str, Path]) -> None:
    """Where taps are placed: on `eagle_worker.draft_forward` and on the runner that it calls."""
    version, root = release
    shape = method(root, DRAFT, CAPTURE[version])
    called = [ast.unparse(c.func) for c in calls(shape, "draft_forward")]
    assert called == ["self.eagle_worker.draft_forward"]
    assert ast.unparse(method(root, DRAFT, "__init__")).count("self.model_runner = model_runner = eagle_worker.") == 2
    worker = tree(root, "eagle_worker_v2")
    forward = next(n for n in ast.walk(worker) if isinstance(n, ast.FunctionDef) and n.name == "draft_forward")
    assert [ast.unparse(c.func) for c in calls(forward, "forward")] == ["self.draft_runner.forward"]
    text = ast.unparse(forward)
    assert "range(self.speculative_num_steps)" in text and "i == self.speculative_num_steps - 1" in text
    # Positions advance in place around each forward: the tap before a forward sees what that forward is given.
    assert "forward_batch.positions.add_(1)" in text


def test_a_replay_sets_the_shape_before_it_and_returns_views(release: tuple[str, Path]) -> None:
    version, root = release
    for module in CLASSES:
        run = ast.unparse(method(root, module, RUN[version]))
        replay = "self._replay_graph(" if version == "0.5.23" else "self._replay("
        assert run.index("self.bs = bs") < run.index(replay)
    unpad = ast.unparse(method(root, DRAFT, "_postprocess_output_to_raw_bs"))
    assert unpad.index("parent_list") < unpad.index("top_scores_index") < unpad.index("draft_tokens")
    extend = ast.unparse(method(root, EXTEND, RUN[version]))
    assert "next_token_logits=out.next_token_logits[:" in extend  # a view of the graph's memory, never a copy
    assert "next_token_logits[:raw_bs].clone" not in extend


def test_an_extend_of_another_width_is_skipped_without_a_word(release: tuple[str, Path]) -> None:
    version, root = release
    guards = [
        node for node in ast.walk(method(root, EXTEND, RUN[version]))
        if isinstance(node, ast.If) and "hidden_states.shape[1]" in ast.unparse(node.test)
    ]  # fmt: skip
    assert len(guards) == 1 and not guards[0].orelse
    assert ".copy_(forward_batch.spec_info.hidden_states)" in ast.unparse(guards[0].body[0])


def test_the_runners_hang_where_they_are_looked_for(release: tuple[str, Path]) -> None:
    version, root = release
    sources = Sources(root)
    text = (root / "srt/speculative/eagle_worker_v2.py").read_text()
    drafter = ("cuda_graph_runner", "cuda_graph_runner_for_draft_extend", "draft_runner", "_draft_worker")
    assert all(f"self.{name} = " in text for name in drafter)
    runner = (root / "srt/model_executor/model_runner.py").read_text()
    names = {"0.5.23": ("decode_cuda_graph_runner", "prefill_cuda_graph_runner"),
             "0.5.9": ("graph_runner", "piecewise_cuda_graph_runner")}[version]  # fmt: skip
    assert all(f"self.{name} = " in runner for name in names)
    output = sources.attributes("sglang.srt.model_executor.model_runner", "ModelRunnerOutput")
    assert output is not None and {"logits_output", "can_run_graph"} <= output


def test_capture_mode_is_told_where_it_is_asked(release: tuple[str, Path]) -> None:
    from eagletrace.instrumentations.sglang.graph_state import CAPTURE_MODE

    _, root = release
    sources = Sources(root)
    assert [m for m in CAPTURE_MODE if sources.function(f"{m}:get_is_capture_mode") is not None]
