"""What only older releases need: verdicts from compiled kernels, a copied result, a tree that comes as lists.

`test_sglang_releases.py` holds the names and keywords against the sources of those releases.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.patching import install  # noqa: E402
from eagletrace.instrumentations.sglang import older, verdict  # noqa: E402
from eagletrace.instrumentations.sglang.launch_state import Launch  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402
from eagletrace.instrumentations.sglang.targets import BY_NAME  # noqa: E402
from eagletrace.lab.engines import engine, engine_python  # noqa: E402
from eagletrace.record.recorder import Recorder  # noqa: E402
from eagletrace.record.requests import RequestState  # noqa: E402
from eagletrace.record.rounds import RoundPacket  # noqa: E402
from eagletrace.settings import Settings  # noqa: E402
from eagletrace.store import open_run  # noqa: E402

PROCESS = {"host": "node", "pid": 7, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
BS, NODES, VOCAB = 3, 4, 9
HERE = __name__
CORRECT = [2, 0, 3]


def fill(accept_index: Any, predicts: Any) -> None:
    """What the compiled kernels do: paths of CORRECT drafts, and the token after each of their nodes, in place."""
    for row, correct in enumerate(CORRECT):
        accept_index[row, : correct + 1] = torch.arange(correct + 1) + row * NODES
        predicts[row * NODES : row * NODES + correct + 1] = DRAFTS[row].roll(-1)[: correct + 1]
        predicts[row * NODES + correct] = LAST


def verify_tree_greedy(predicts: Any, accept_index: Any, **_: Any) -> None:
    fill(accept_index, predicts)


def tree_speculative_sampling_target_only(predicts: Any, accept_index: Any, **_: Any) -> None:
    fill(accept_index, predicts)


DRAFTS = torch.arange(BS * NODES).reshape(BS, NODES) % (VOCAB - 1)
LAST = VOCAB - 1


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A launch of three requests in progress."""
    (tmp_path / "run.json").write_text('{"schema_version": 1, "run_id": "older", "settings": {"level": "tokens"}}')
    recorder = Recorder(tmp_path, Settings(), PROCESS, {})
    session = Session(recorder, "0.5.3", SimpleNamespace())
    states = [RequestState(n + 1, f"r{n}", "user", True, 0, None, 5) for n in range(BS)]
    packet = RoundPacket(1, 1, states, [1] * BS, 0, committed=[c + 1 for c in CORRECT], counted=[True] * BS)
    positions = (torch.arange(NODES) + 5).repeat(BS)
    session.launch = Launch(packet, [object()] * BS, positions=positions, topk=1)
    recorder.start()
    return session


def call(session: Session, hook: Any, name: str, **more: Any) -> None:
    """Call a kernel as `EagleVerifyInput.verify` does, with its hook on it."""
    kernel = name.rpartition(":")[2]
    patch = install(hook(replace(BY_NAME[name.partition(":")[0]], path=f"{HERE}:{kernel}"), session))
    assert patch is not None
    links = torch.tensor([1, 2, 3, -1]).repeat(BS, 1)
    try:
        globals()[kernel](
            predicts=torch.zeros(BS * NODES + 1, dtype=torch.int32),
            accept_index=torch.full((BS, NODES), -1, dtype=torch.int32),
            accept_token_num=torch.empty(BS, dtype=torch.int32), candidates=DRAFTS, retrive_index=None,
            retrive_next_token=links, retrive_next_sibling=torch.full_like(links, -1), **more,
        )  # fmt: skip
    finally:
        patch.undo()
    assert patch.hook.calls == 1 and patch.hook.last_error is None
    session.recorder.launch(session.launch.packet)
    session.recorder.stop()


def targets() -> Any:
    """The target's token after each node: the next draft on the path, LAST after it."""
    chosen = DRAFTS.roll(-1, dims=1).clone()
    for row, correct in enumerate(CORRECT):
        chosen[row, correct:] = LAST
    return chosen


@pytest.mark.parametrize("kernel", ["greedy", "sampling"])
def test_a_kernel_gives_the_verdict(session: Session, tmp_path: Path, kernel: str) -> None:
    if kernel == "greedy":
        call(session, verdict.Greedy, "verify.greedy_kernel:verify_tree_greedy", target_predict=targets())
    else:
        probs = torch.nn.functional.one_hot(targets(), VOCAB).float()
        call(session, older.SamplingKernel, "verify.sampling_kernel:tree_speculative_sampling_target_only",
             target_probs=probs)  # fmt: skip
    with open_run(tmp_path) as run:
        assert [r["accepted"] for r in run.rows("SELECT accepted FROM rounds ORDER BY request_seq")] == CORRECT
        rows = run.rows("SELECT * FROM verifies WHERE depth > 0 ORDER BY request_seq, node")
    assert [r["draft_token"] for r in rows] == DRAFTS[:, 1:].flatten().tolist()
    assert [r["expected_token"] for r in rows if r["reached"]] == [
        int(t) for row, c in enumerate(CORRECT) for t in targets()[row, : min(c + 1, NODES - 1)]
    ]


def engine_function(module: str, name: str) -> Any:
    """A function of the installed engine, from its source: importing the engine takes long and changes the process."""
    package = importlib.util.find_spec("sglang")
    if package is None or package.origin is None:
        pytest.skip("no sglang is installed here")
    file = Path(package.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (node,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    node.decorator_list.clear()
    names: dict[str, Any] = {"torch": torch, "List": list, "maybe_detect_oob": print}  # a probe for indices
    exec(compile(ast.Module([node], []), str(file), "exec"), names)
    return names[name]


@pytest.mark.parametrize(("steps", "topk", "nodes"), [(3, 1, 4), (3, 4, 8), (4, 2, 5), (1, 4, 4)])
def test_lists_of_a_draft_are_organized_as_newer_releases_do(steps: int, topk: int, nodes: int) -> None:
    """0.5.3 organizes them outside of `draft_forward`; the installed release's own function does the same inside."""
    organize = engine_function("sglang.srt.speculative.eagle_utils", "organize_draft_results")
    torch.manual_seed(steps)
    scores = [torch.rand(BS, 1 if i == 0 else topk, topk) for i in range(steps)]
    tokens = [torch.randint(VOCAB, (BS, topk if i == 0 else topk * topk)) for i in range(steps)]
    parents = [torch.randint(VOCAB, (BS, topk + 1 if i == 0 else topk)) for i in range(steps)]
    expected = organize(scores, tokens, parents, nodes)
    found = older.organized(scores, parents, nodes)
    assert torch.equal(found[0].float(), expected[0].float()) and torch.equal(found[1], expected[1])


def test_lists_become_the_topology(session: Session) -> None:
    session.launch.topk = 2
    scores = [torch.rand(BS, 1, 2), torch.rand(BS, 2, 2)]
    parents = [torch.randint(9, (BS, 3)), torch.randint(9, (BS, 2))]
    hook = older.DraftForwardOfLists(BY_NAME["v1.draft_forward"], session)
    worker = SimpleNamespace(speculative_num_draft_tokens=4)
    hook.after(None, (scores, [], parents), worker, (), {})
    topology = session.launch.topology
    assert topology.parent_list is not parents and torch.equal(topology.parent_list, parents[0])
    assert topology.selected.shape == (BS, 3) and bool((topology.selected.diff() > 0).all())
    tensors = torch.zeros(BS, 3), torch.zeros(BS, 3, dtype=torch.int64), None
    hook.after(None, tensors, worker, (), {})
    assert session.launch.topology.parent_list is tensors[0]
    session.recorder.stop()


@dataclass
class Result:
    """A GenerationBatchResult."""

    tokens: Any = None

    @classmethod
    def from_forward_batch_output(cls, forward_batch_output: Any, extend_input_len_per_req: Any) -> Result:
        return cls(forward_batch_output.tokens)


def test_a_launch_follows_its_result_into_the_copy(session: Session) -> None:
    target = replace(BY_NAME["scheduler.result_copied"], path=f"{HERE}:Result.from_forward_batch_output")
    patch = install(older.CarriedResult(target, session))
    assert patch is not None
    try:
        given = Result(1)
        copied: Any = Result.from_forward_batch_output(forward_batch_output=given, extend_input_len_per_req=None)
        assert isinstance(copied, Result) and copied.tokens == 1 and not hasattr(copied, "_eagletrace")
        given.__dict__["_eagletrace"] = session.launch
        copied = Result.from_forward_batch_output(forward_batch_output=given, extend_input_len_per_req=None)
        assert copied._eagletrace is session.launch and patch.hook.last_error is None
    finally:
        patch.undo()
    session.recorder.stop()


# -- workers that are not traced ---------------------------------------------------------------------------------------

ASK = """
import importlib, json
from eagletrace.instrumentations.sglang.targets import BY_NAME
from eagletrace.instrumentations.sglang.workers import unhooked
paths = {t.path for t in BY_NAME.values()}
def worker(module, name, draft=None):
    found = importlib.import_module("sglang.srt.speculative." + module)
    made = object.__new__(getattr(found, name))  # never built: its class is what counts
    if draft:
        made._draft_worker = object.__new__(getattr(found, draft))
    return made
def ask(*place, without=()):
    try:
        found = unhooked(worker(*place), paths - {BY_NAME[n].path for n in without})
    except ImportError as error:
        return str(error)
    return [[u.target, u.detail] for u in found]
eagle = "eagle_worker_v2", "EAGLEWorkerV2", "EagleDraftWorker"
of_steps = "multi_layer_eagle_worker_v2", "MultiLayerEagleWorkerV2", "MultiLayerEagleDraftWorker"
answers = {
    "none": [[u.target, u.detail] for u in unhooked(None, paths)],
    "eagle": ask(*eagle),
    "eagle without verify": ask(*eagle, without=["v2.verify"]),
    "eagle without launch": ask(*eagle, without=["v2.generate"]),
    "StandaloneWorkerV2": ask("standalone_worker_v2", "StandaloneWorkerV2", "StandaloneDraftWorker"),
    "MultiLayerEagleWorkerV2": ask(*of_steps),
    "MultiLayerEagleWorkerV2 without draft": ask(*of_steps, without=["multi_layer.draft"]),
}
for module, name in (
    ("frozen_kv_mtp_worker_v2", "FrozenKVMTPWorkerV2"),
    ("dflash_worker_v2", "DFlashWorkerV2"), ("dspark_components.dspark_worker_v2", "DSparkWorkerV2"),
):
    answers[name] = ask(module, name)
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_workers_that_are_not_traced_are_named() -> None:
    """The engine's own classes: EAGLE's worker is hooked whole; others are not, also where they inherit from it."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("no sglang is installed here")
    spec = engine()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("EAGLETRACE")}
    done = subprocess.run([engine_python(spec.version), "-c", ASK], capture_output=True, text=True, timeout=600,
                          env=environ | spec.environment(spec.worker(None)))  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    hooked = ("none", "eagle", "StandaloneWorkerV2", "MultiLayerEagleWorkerV2")
    assert [answers.pop(name) for name in hooked] == [[]] * len(hooked)
    (draft,) = answers.pop("MultiLayerEagleWorkerV2 without draft")
    assert draft[0] == BY_NAME["multi_layer.draft"].path and "no drafted trees" in draft[1]
    (verify,) = answers["eagle without verify"]
    assert verify[0] == BY_NAME["v2.verify"].path and "no verdicts" in verify[1]
    (launch,) = answers["eagle without launch"]
    assert launch[0] == BY_NAME["v2.generate"].path and "no rounds are recorded" in launch[1]
    others = {name: found for name, found in answers.items() if "eagle" not in name and found and found != []}
    assert set(others) == {"FrozenKVMTPWorkerV2", "DFlashWorkerV2", "DSparkWorkerV2"}
    for name, ((path, detail),) in others.items():
        assert path.endswith(f":{name}.forward_batch_generation") and name in detail and "not traced" in detail
