"""Loading is followed without ever failing it, whatever tensors and loaders there are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from eagletrace.instrumentations import landing  # noqa: E402
from eagletrace.instrumentations.landing import LandingMode  # noqa: E402
from eagletrace.instrumentations.patching import Target  # noqa: E402
from eagletrace.instrumentations.sglang.load import LoadWeights  # noqa: E402

TARGET = Target("loader.load_weights", "a:b", True, "")


class Model(nn.Module):
    """Two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(4, 2))


class Rows:
    """A recorder that keeps rows and events."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def row(self, table: str, /, **values: Any) -> None:
        self.rows.append((table, values))

    def event(self, kind: str, /, **detail: Any) -> None:
        self.rows.append((kind, detail))

    def fact(self, key: str, *values: Any, **named: Any) -> None:
        self.rows.append((key, named))

    settings = SimpleNamespace(redact=False)


def load(load_weights: Any, weights: list[tuple[str, Any]]) -> tuple[Model, Rows, Any]:
    """Run a loader through the hook; gives the model, what was recorded, and the session."""
    recorder = Rows()
    session: Any = SimpleNamespace(
        phase="load_draft", recorder=recorder, params={}, keys=[], target_runner=None, from_file={}, checksums={},
        loading=None, unseen=set(), server_args=None,
    )  # fmt: skip
    model, hook = Model(), LoadWeights(TARGET, session)

    def wrapped(model: Any, weights: Any, target_device: Any) -> None:
        load_weights(model, weights)

    assert hook(wrapped, None, (model, iter(weights), "cpu"), {}) is None
    assert hook.errors == 0, hook.last_error
    return model, recorder, session


def copy(model: Model, weights: Any) -> None:
    for name, tensor in weights:
        getattr(model, name).data.copy_(tensor.to(torch.float32) if tensor.element_size() > 1 else torch.ones(4, 2))


def fates(recorder: Rows) -> dict[str, Any]:
    return {row["key"]: row["fate"] for table, row in recorder.rows if table == "checkpoint_keys"}


def test_a_key_that_nobody_uses_is_dropped() -> None:
    def half(model: Model, weights: Any) -> None:
        copy(model, ((n, t) for n, t in weights if n == "a"))

    _, recorder, session = load(half, [("a", torch.ones(4, 2)), ("b", torch.ones(4, 2))])
    assert fates(recorder) == {"a": "loaded", "b": "dropped"}
    assert session.params["b"]["elements_loaded"] == 0


@pytest.mark.parametrize("used", [True, False])
def test_tensors_put_one_below_the_other_land_each_in_its_rows(used: bool) -> None:
    """As the two down projections of latent attention are (kimi_k25_eagle3.py, 0.5.23), which it may throw away."""

    def joining(model: Model, weights: Any) -> None:
        upper, lower, whole = (tensor for _, tensor in weights)
        joined = torch.cat([upper, lower], dim=0)
        if used:
            model.a.data.copy_(joined)
        model.b.data.copy_(whole)

    parts = [("upper", torch.ones(1, 2)), ("lower", torch.full((3, 2), 2.0)), ("b", torch.ones(4, 2))]
    model, recorder, session = load(joining, parts)
    assert fates(recorder) == {"upper": "loaded" if used else "dropped", "lower": "loaded" if used else "dropped",
                               "b": "loaded"}  # fmt: skip
    assert session.params["a"]["elements_loaded"] == (8 if used else 0)
    landed = {row["key"]: row["landed_in"] for table, row in recorder.rows if table == "checkpoint_keys"}
    if used:
        assert model.a[:, 0].tolist() == [1.0, 2.0, 2.0, 2.0]
        assert landed["upper"] == [{"parameter": "a", "offset": 0, "elements": 2}]
        assert landed["lower"] == [{"parameter": "a", "offset": 2, "elements": 6}]


def test_a_packed_type_without_a_conversion_loads_all_the_same() -> None:
    packed = torch.zeros(4, 1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    model, recorder, _ = load(copy, [("a", packed), ("b", torch.ones(4, 2))])
    assert model.b.eq(1).all()
    row = next(row for table, row in recorder.rows if table == "checkpoint_keys" and row["key"] == "a")
    assert (row["checksum"], row["rms"]) == (None, None)


def test_an_error_while_observing_never_reaches_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tensor: Any) -> Any:
        raise RuntimeError("no storage")

    class Broken(LandingMode):
        def __init__(self, model: Any, passed_over: Any) -> None:
            super().__init__(model, passed_over)
            monkeypatch.setattr(landing, "place", broken)

    monkeypatch.setattr("eagletrace.instrumentations.sglang.load.LandingMode", Broken)
    model, recorder, session = load(copy, [("a", torch.ones(4, 2))])
    assert model.a.eq(1).all() and session.params["a"]["elements_loaded"] is None
    assert fates(recorder)["a"] != "dropped"


def test_what_a_thread_loaded_is_unknown_not_missing() -> None:
    def threaded(model: Model, weights: Any) -> None:
        for name, tensor in list(weights):
            thread = threading.Thread(target=copy, args=(model, [(name, tensor)]))
            thread.start()
            thread.join()

    _, recorder, session = load(threaded, [("a", torch.ones(4, 2))])
    assert session.params["a"]["elements_loaded"] is None and session.params["b"]["elements_loaded"] == 0
    assert fates(recorder) == {"a": None}


def test_what_a_pool_s_threads_load_belongs_to_its_tensors() -> None:
    """As deepseek_weight_loader.py (0.5.23) loads: each task is run when later tensors have been handed out."""
    go = threading.Event()

    def late(model: Model, weights: Any) -> None:
        assert go.wait(5)
        copy(model, weights)

    def pooled(model: Model, weights: Any) -> None:
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(late, model, [pair]) for pair in weights if pair[0] != "unused"]
            go.set()
        assert [future.result() for future in futures] == [None, None]

    tensors = [("a", torch.ones(4, 2, dtype=torch.float64)), ("b", torch.full((4, 2), 2.0, dtype=torch.float64))]
    model, recorder, session = load(pooled, [*tensors, ("unused", torch.ones(4, 2))])
    assert (model.a.eq(1).all(), model.b.eq(2).all()) == (True, True)
    assert fates(recorder) == {"a": "loaded", "b": "loaded", "unused": "dropped"}
    assert [session.params[name]["checkpoint_keys"] for name in "ab"] == [["a"], ["b"]]
    assert [session.params[name]["elements_loaded"] for name in "ab"] == [8, 8]


def test_pools_are_as_they_were_after_the_load_and_for_others_meanwhile() -> None:
    submit, model = ThreadPoolExecutor.submit, Model()
    mode, elsewhere = LandingMode(model), ThreadPoolExecutor(1)
    written = torch.ones(4, 2, dtype=torch.float64)

    def others() -> None:
        elsewhere.submit(model.b.data.copy_, written).result()

    with mode:
        for _name, tensor in mode.feed([("a", written)]):
            other = threading.Thread(target=others)
            other.start()
            other.join()
            elsewhere.submit(model.a.data.copy_, tensor).result()
        during = ThreadPoolExecutor.submit
    assert during is not submit and ThreadPoolExecutor.submit is submit
    assert [place["parameter"] for place in mode.keys[0].landed] == ["a"]
    assert during(elsewhere, model.b.data.copy_, written).result() is not None
    assert [place["parameter"] for place in mode.keys[0].landed] == ["a"]


def test_an_error_of_a_pool_s_task_is_the_engine_s_own() -> None:
    def failing(model: Model, weights: Any) -> None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError, match="no such parameter"):
            for name, _ in weights:
                pool.submit({}.__getitem__, f"no such parameter {name}").result()

    _, recorder, _ = load(failing, [("a", torch.ones(4, 2))])
    assert fates(recorder) == {"a": "dropped"}


def test_memory_that_is_used_again_is_not_taken_for_the_first_tensor() -> None:
    memory, model = bytearray(32), Model()
    mode = LandingMode(model)

    def weights() -> Any:
        yield "gone", torch.frombuffer(memory, dtype=torch.float32).view(4, 2)
        yield "a", torch.ones(4, 2, dtype=torch.float64)

    with mode:
        for name, tensor in mode.feed(weights()):
            if name == "a":
                model.a.data.copy_(torch.frombuffer(memory, dtype=torch.float32).view(4, 2))
            del tensor
    assert [(k.key, bool(k.landed)) for k in mode.keys] == [("gone", False), ("a", True)]


def test_parameters_that_are_repacked_after_loading_are_free_to_go() -> None:
    model = Model()
    mode = LandingMode(model)
    old = StorageWeakRef(model.a.untyped_storage())
    model.a = nn.Parameter(torch.zeros(8))
    assert old.expired() and mode.keys == []
