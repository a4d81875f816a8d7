"""Options become engine, flags and environment; contradictions and missing things say what to do."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.lab import engines
from eagletrace.lab.engines import EngineMissingError, engine, engine_python
from eagletrace.lab.faults import CASES
from eagletrace.lab.options import ServeOptions, Serving, serving
from eagletrace.lab.server import Exchange, command


def not_here(_version: str) -> bool:
    return False


def plan(tiny_pair: Path, tmp_path: Path, **more: object) -> Serving:
    return serving(ServeOptions(pair_dir=tiny_pair, dir=tmp_path / "runs", **more))  # pyright: ignore[reportArgumentType]


def test_the_default_is_a_traced_chain_on_the_newest_engine(tiny_pair: Path, tmp_path: Path) -> None:
    found = plan(tiny_pair, tmp_path)
    assert found.engine.version == "0.5.23"
    assert found.flags["speculative-algorithm"] == "EAGLE3"
    assert (found.flags["speculative-num-steps"], found.flags["speculative-num-draft-tokens"]) == (3, 4)
    assert found.env["EAGLETRACE"] == "1"
    assert found.env["EAGLETRACE_DIR"] == str(tmp_path / "runs")
    assert "EAGLETRACE_LEVEL" not in found.env


def test_a_tree_gets_eight_nodes(tiny_pair: Path, tmp_path: Path) -> None:
    assert plan(tiny_pair, tmp_path, topk=4).flags["speculative-num-draft-tokens"] == 8
    assert plan(tiny_pair, tmp_path, topk=4, draft_tokens=6).flags["speculative-num-draft-tokens"] == 6


def test_several_ranks_get_a_core_each_and_no_nccl(
    tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {4, 2, 7})  # pyright: ignore[reportUnknownLambdaType]
    found = plan(tiny_pair, tmp_path, tp=2, dp=2)
    assert (found.flags["tp"], found.flags["dp"]) == (2, 2)
    assert found.env["SGLANG_CPU_OMP_THREADS_BIND"] == "2|4|7|2"
    assert not Path(found.env["SGLANG_NCCL_SO_PATH"]).exists()
    alone = plan(tiny_pair, tmp_path)
    assert not {"tp", "dp"} & set(alone.flags) and "SGLANG_CPU_OMP_THREADS_BIND" not in alone.env


def test_tracing_off_and_inherited(tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLETRACE_SAMPLE", "0.5")
    monkeypatch.setenv("EAGLETRACE_LAB_SGLANG_0_5_9_PYTHON", sys.executable)
    off = plan(tiny_pair, tmp_path, tracing="off").env
    assert not [name for name in off if name.startswith("EAGLETRACE")]
    inherited = plan(tiny_pair, tmp_path, tracing="inherit").env
    assert "EAGLETRACE" not in inherited
    assert inherited["EAGLETRACE_SAMPLE"] == "0.5"
    assert not [name for name in inherited if name.startswith("EAGLETRACE_LAB")]


@pytest.mark.parametrize("name", CASES)
def test_the_server_cannot_learn_the_faults_name(
    name: str, tiny_pairs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLETRACE_LAB_SGLANG_0_5_9_PYTHON", sys.executable)
    found = plan(tiny_pairs[CASES[name].pair], tmp_path, fault=name)
    told = json.dumps([command(found.engine, found.flags), dict(found.env)])
    assert f'"{name}"' not in told
    assert f"/{name}" not in told
    assert f"/{found.case.variant}/" not in told


def test_a_fault_sets_engine_and_worker(tiny_pair: Path, tmp_path: Path) -> None:
    found = plan(tiny_pair, tmp_path, fault="layer-keys-0.5.9-v2")
    assert found.engine.version == "0.5.9"
    assert found.env["SGLANG_ENABLE_SPEC_V2"] == "1"
    with pytest.raises(EagletraceError, match="sets the engine itself"):
        plan(tiny_pair, tmp_path, fault="d2t-zero", engine="0.5.9")


def test_the_pair_is_the_cases_own_or_the_one_asked_for(tmp_path: Path) -> None:
    def served(**more: object) -> str:
        found = serving(ServeOptions(dir=tmp_path / "runs", **more))  # pyright: ignore[reportArgumentType]
        return json.loads((found.target / "config.json").read_text())["architectures"][0]

    assert served() == served(pair="llama") == "LlamaForCausalLM"
    assert served(pair="kimi") == served(fault="kimi-tree") == "KimiK25ForConditionalGeneration"
    assert served(fault="kimi-tree", pair="kimi") == "KimiK25ForConditionalGeneration"
    with pytest.raises(EagletraceError, match="sets the pair itself"):
        served(fault="kimi-tree", pair="llama")
    with pytest.raises(UnknownNameError, match="llama"):
        served(pair="lama")


def test_a_fault_on_a_draft_of_the_users_own(tiny_pair: Path, tmp_path: Path) -> None:
    own = tiny_pair / "drafts" / "default"
    found = plan(tiny_pair, tmp_path, fault="no-lm-head", draft=own, target=tiny_pair / "target")
    keys = set(safe_open(found.draft / "model.safetensors", "pt").keys())
    assert "lm_head.weight" not in keys
    assert "lm_head.weight" in set(safe_open(own / "model.safetensors", "pt").keys())
    other = plan(tiny_pair, tmp_path, fault="layer-ids-unread-key", draft=own)
    assert "eagle_config" not in json.loads((other.draft / "config.json").read_text())
    shallow = plan(tiny_pair, tmp_path, fault="target-too-shallow", draft=own, target=tiny_pair / "target")
    assert json.loads((shallow.target / "config.json").read_text())["num_hidden_layers"] == 6
    alone = shutil.copytree(own, tmp_path / "alone")
    with pytest.raises(EagletraceError, match="none beside"):
        plan(tiny_pair, tmp_path, fault="layer-ids-unread-key", draft=alone)


def test_contradictions(tiny_pair: Path, tmp_path: Path) -> None:
    with pytest.raises(EagletraceError, match="has no speculative worker 'v1'"):
        plan(tiny_pair, tmp_path, worker="v1")
    with pytest.raises(EagletraceError, match="drafts chains only"):
        plan(tiny_pair, tmp_path, engine="0.5.9", worker="v2", topk=4)
    with pytest.raises(UnknownNameError, match=r"0\.5\.23"):
        plan(tiny_pair, tmp_path, engine="0.5.2")
    with pytest.raises(EagletraceError, match=r"no config\.json"):
        plan(tiny_pair, tmp_path, draft=tmp_path)


def test_a_folder_that_cannot_be_written(tiny_pair: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(EagletraceError, match="choose another --dir"):
        plan(tiny_pair, tmp_path)


def test_a_missing_environment_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LAB", tmp_path / "a" / "b")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(engines, "_here_is", not_here)
    with pytest.raises(EngineMissingError, match=r"make setup-0\.5\.9"):
        engine_python("0.5.9")
    monkeypatch.setenv("EAGLETRACE_LAB_SGLANG_0_5_9_PYTHON", str(tmp_path / "none"))
    with pytest.raises(EngineMissingError, match="no such interpreter"):
        engine_python("0.5.9")
    monkeypatch.setenv("EAGLETRACE_LAB_SGLANG_0_5_9_PYTHON", sys.executable)
    assert engine_python("0.5.9") == Path(sys.executable)


def test_the_environment_beside_the_project_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv-sglang-0.5.9" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(engines, "LAB", tmp_path / "eagletrace" / "lab")
    monkeypatch.setattr(engines, "_here_is", not_here)
    assert engine_python("0.5.9") == python


def test_kernel_folders_exist() -> None:
    for spec in engines.ENGINES.values():
        assert all((engines.LAB / folder).is_dir() for folder in spec.kernels)
        assert spec.environment(spec.workers[0])["OMP_NUM_THREADS"] == "1"
    assert engine("0.5.9").worker(None) == "v1"


class Updated:
    """A server that takes new weights after some refusals."""

    def __init__(self, *refusals: str) -> None:
        self.answers = [Exchange(400, {"message": text}) for text in refusals]

    def post(self, _path: str, _body: dict[str, str]) -> Exchange:
        return self.answers.pop(0) if self.answers else Exchange(200, {"success": True})


def test_new_weights_wait_for_the_last_batch(tiny_pair: Path, tmp_path: Path) -> None:
    from eagletrace.lab.load import LoadOptions
    from eagletrace.lab.run import load_of

    update: Any = load_of(plan(tiny_pair, tmp_path, fault="target-updated"), LoadOptions()).midway
    busy = Updated("the cache was not flushed because requests are still running", "the cache was not flushed")
    update(busy)
    assert busy.answers == []
    with pytest.raises(EagletraceError, match="refused new weights"):
        update(Updated("no such folder"))


def test_a_case_brings_its_own_load(tiny_pair: Path, tmp_path: Path) -> None:
    from eagletrace.lab.load import LoadOptions
    from eagletrace.lab.run import load_of, prompts_of

    asked = LoadOptions(rounds=20)
    assert load_of(plan(tiny_pair, tmp_path), asked) == asked
    short = load_of(plan(tiny_pair, tmp_path, fault="first-round-lost"), asked)
    assert (short.max_new_tokens, short.rounds, short.midway) == (16, 20, None)
    assert load_of(plan(tiny_pair, tmp_path, fault="eight-requests"), asked).concurrency == 8
    assert load_of(plan(tiny_pair, tmp_path, fault="target-updated"), asked).midway is not None

    own = prompts_of(plan(tiny_pair, tmp_path), asked, 0)
    shared = prompts_of(plan(tiny_pair, tmp_path, fault="prefix-hits"), asked, 0)
    assert shared[1::2] == own[1::2]
    assert all(text.endswith(tail) for text, tail in zip(shared, own, strict=True))
    heads = {text.removesuffix(tail) for text, tail in zip(shared[::2], own[::2], strict=True)}
    assert len(heads) == 2 and min(map(len, heads)) > 100
    assert prompts_of(plan(tiny_pair, tmp_path), LoadOptions(prompts=["x"]), 0) == ["x"]
