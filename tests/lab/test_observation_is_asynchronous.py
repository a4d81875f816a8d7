"""No hook of the hot path waits for the device: not the verdict, trees, sampling, hidden states, either worker, graphs.

The hooks are installed on an engine that has SGLang's names and no work of its own (`tests/hooks`), and each is watched
while it runs. `test_the_guard_sees_a_wait_in_each_hook` puts a wait into each of them, so that a hook which the guard
does not reach, or which the engine here does not call, is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.instrumentations.sglang.hooks import HOOKS  # noqa: E402
from tests.hooks.fake_engine import Engine, Sizes  # noqa: E402
from tests.hooks.graph_replay import CudaGraph, NoGraph, needs_cuda  # noqa: E402
from tests.hooks.no_waiting import Guard  # noqa: E402
from tests.hooks.traced import OLDER, PLACES, Traced, traced  # noqa: E402

HAS_CUDA = torch.cuda.is_available()
DEVICES = ["stand-in", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_CUDA, reason=needs_cuda))]
LOAD_TIME = {"runner.load_model", "loader.load_weights"}  # before the server serves
ABORTS = {"scheduler.abort", "scheduler.abort_output"}  # no tensor is in sight there
UPDATES = {name for name in HOOKS if ".update_" in name or name in ("updater.end", "updater.load_distributed")}
# an update stops the engine: its hooks may wait
ELSEWHERE = {  # the same hook stands under another name of the engine here
    "verify.greedy_utils", "graph.draft_replay", "graph.extend_replay", "graph.capture_batch", "multi_layer.replay_one",
}  # fmt: skip
# Hooks of a verdict, by family, greedy or not, older or not.
VERDICTS = {
    ("v2", True, False): {"verify.greedy", "verify.sample"}, ("v2", False, False): {"verify.sample"},
    ("v2", True, True): {"verify.greedy", "verify.sample_mixin"}, ("v2", False, True): {"verify.sample_mixin"},
    ("v1", True, False): {"verify.greedy", "verify.sample"}, ("v1", False, False): {"verify.sample"},
    ("v1", True, True): {"verify.greedy_kernel"}, ("v1", False, True): {"verify.sampling_kernel"},
}  # fmt: skip
GRAPHS = {"graph.draft", "graph.extend", "graph.capture"}


def serve(
    folder: Path, patch: pytest.MonkeyPatch, guard: Guard, family: str = "v2", *, topk: int = 1, greedy: bool = True,
    graph: bool = False, taps: bool = False, level: str = "tokens", older: bool = False,
) -> Traced:  # fmt: skip
    """A prefill and three rounds of a batch of three under the guard."""
    with guard.engine(patch):
        kind = CudaGraph if guard.device == "cuda" else NoGraph
        engine = Engine(family, Sizes(device="cuda", topk=topk, graph=graph, graph_class=kind), greedy, older)
        with traced(engine, folder, guard=guard, record=False, level=level, graph_taps=taps) as found:
            if graph:
                engine.draft_side.init_cuda_graphs()
            found.ready()
            if found.session.fusion is not None:
                guard.watch("fc", found.session.fusion)
            engine.serve()
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["v2", "v1"])
@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampling"])
@pytest.mark.parametrize("graph", ["eager", "graphs", "taps", "older"])
def test_no_hook_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, family: str, topk: int, greedy: bool, graph: str
) -> None:
    guard = Guard(device)
    found = serve(
        tmp_path, monkeypatch, guard, family, topk=topk, greedy=greedy, graph=graph in ("graphs", "taps"),
        taps=graph == "taps", older=graph == "older",
    )  # fmt: skip
    assert guard.found == []
    found.check()
    expected = {"fc", *PLACES[family]} - GRAPHS - {"verify.greedy", "verify.sample"}
    expected |= VERDICTS[family, greedy, graph == "older"]
    expected |= GRAPHS if graph in ("graphs", "taps") else set[str]()
    expected |= {"scheduler.result_copied"} if graph == "older" else set[str]()
    assert guard.entered == expected
    queued = list(found.session.recorder._launches)  # pyright: ignore[reportPrivateUsage]
    assert len(queued) == 3 and all(p.values is not None for p in queued)
    stages = {h.stage for h in queued[-1].hidden}
    assert {"target_aux", "draft_in"} <= stages
    if graph != "graphs":
        assert "draft_out" in stages


@pytest.mark.parametrize("family", ["v2", "v1"])
def test_nor_at_level_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    guard = Guard("cuda" if HAS_CUDA else "stand-in")
    serve(tmp_path, monkeypatch, guard, family, level="contract").check()
    assert guard.found == []


def wait() -> Any:
    """What no hook may do."""
    return torch.ones(1, device="cuda").item()


def reached(family: str) -> list[str]:
    """Hooks that the engine here calls in one way or another."""
    verdicts = set[str]().union(*(hooks for (mine, *_), hooks in VERDICTS.items() if mine == family))
    return [n for n in (*PLACES[family], *OLDER, "fc") if n in verdicts or not n.startswith("verify.")]


@pytest.mark.parametrize(("family", "name"), [(f, n) for f in ("v2", "v1") for n in reached(f)])
def test_the_guard_sees_a_wait_in_each_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, name: str
) -> None:
    guard = Guard("cuda" if HAS_CUDA else "stand-in")
    guard.inject[name] = wait
    older, greedy = name in OLDER, name != "verify.sampling_kernel"
    serve(tmp_path, monkeypatch, guard, family, graph=name in GRAPHS, taps=True, older=older, greedy=greedy)
    assert {hook for hook, _ in guard.found} == {name}


def test_the_hooks_that_are_watched_are_all_of_the_hot_path() -> None:
    watched = set[str]().union(OLDER, *PLACES.values())
    assert set(HOOKS) <= watched | LOAD_TIME | UPDATES | ABORTS | ELSEWHERE


def device_tensor() -> Any:
    return torch.arange(6, device="cuda").view(2, 3)


def host_tensor(*, pinned: bool) -> Any:
    return torch.empty(2, 3, dtype=torch.int64, pin_memory=pinned)


WAITS: dict[str, Callable[[], Any]] = {
    "item": lambda: device_tensor().sum().item(),
    "tolist": lambda: device_tensor().tolist(),
    "numpy": lambda: device_tensor().numpy(),
    "cpu": lambda: device_tensor().cpu(),
    "to the host": lambda: device_tensor().to("cpu"),
    "copy_ to pinned memory": lambda: host_tensor(pinned=True).copy_(device_tensor()),
    "from the host": lambda: host_tensor(pinned=False).to("cuda"),
    "tensor from a list": lambda: torch.tensor([1, 2], device="cuda"),
    "bool": lambda: bool(device_tensor().sum() > 0),
    "int": lambda: int(device_tensor().sum()),
    "iteration": lambda: [int(x) for x in device_tensor()[0]],
    "nonzero": lambda: device_tensor().nonzero(),
    "mask": lambda: device_tensor()[device_tensor() > 2],
    "unique": lambda: device_tensor().unique(),
    "repeat_interleave": lambda: torch.repeat_interleave(device_tensor()[0]),
    "equal": lambda: torch.equal(device_tensor(), device_tensor()),
    "format": lambda: f"{device_tensor().sum():d}",
    "synchronize": lambda: torch.cuda.synchronize(),
}
STAND_IN_ONLY = {  # waits that CUDA's debug mode does not report, or reports otherwise
    "pageable": lambda: host_tensor(pinned=False).copy_(device_tensor(), non_blocking=True),
    "event": lambda: torch.cuda.Event().synchronize(),
}


@pytest.mark.parametrize("way", [*WAITS, *STAND_IN_ONLY])
def test_the_guard_sees_every_way_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    guard = Guard("stand-in")
    guard.inject["verify.greedy"] = (WAITS | STAND_IN_ONLY)[way]
    serve(tmp_path, monkeypatch, guard)
    assert guard.found and {hook for hook, _ in guard.found} == {"verify.greedy"}


@pytest.mark.skipif(not HAS_CUDA, reason=needs_cuda)
@pytest.mark.parametrize("way", [w for w in WAITS if w not in ("numpy", "synchronize")])
def test_so_does_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    guard = Guard("cuda")
    guard.inject["verify.greedy"] = WAITS[way]
    serve(tmp_path, monkeypatch, guard)
    assert guard.found and {hook for hook, _ in guard.found} == {"verify.greedy"}


def test_what_does_not_wait_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fine() -> None:
        values = device_tensor()
        host_tensor(pinned=True).copy_(values, non_blocking=True)
        torch.cuda.Event().record()
        torch.tensor([0, 1], pin_memory=True).to("cuda", non_blocking=True)
        values.gather(1, torch.zeros(2, 1, dtype=torch.int64, device="cuda"))
        torch.where(values > 2, values, 0)
        values[torch.zeros(1, dtype=torch.int64, device="cuda")]

    guard = Guard("cuda" if HAS_CUDA else "stand-in")
    guard.inject["verify.greedy"] = fine
    serve(tmp_path, monkeypatch, guard).check()
    assert guard.found == []
