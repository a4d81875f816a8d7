"""A draft that speculators trains and saves, repaired by `check --fix`, served by SGLang, and held against training."""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safe_open = pytest.importorskip("safetensors").safe_open
pytest.importorskip("transformers")
pytest.importorskip("speculators")

import eagletrace  # noqa: E402
from eagletrace.check import check  # noqa: E402
from eagletrace.diff import diff  # noqa: E402
from eagletrace.lab.engines import EngineMissingError, engine_python  # noqa: E402
from eagletrace.lab.load import LoadOptions  # noqa: E402
from eagletrace.lab.options import ServeOptions  # noqa: E402
from eagletrace.lab.run import lab_run  # noqa: E402
from tests.training.trained import path_of, target_folder, trained  # noqa: E402

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def served(export: Path, folder: Path) -> Path:
    """Serve an export of speculators' as the engine can read it."""
    repaired = folder / "repaired"
    result = check(export, target_folder(), "sglang==0.5.23", fix=repaired)
    assert result.repair is not None and result.repair.verdict == "healthy", result.repair
    found = lab_run(replace(ServeOptions(), draft=repaired, dir=folder / "runs"), LoadOptions(rounds=150))
    assert not found.engine_died and found.run is not None, found.reason
    return found.run


def test_what_0_5_9_drops_of_an_export_is_named_and_renamed(tmp_path: Path) -> None:
    """SGLang 0.5.9 knows `midlayer.*` alone, and speculators writes `layers.0.*`."""
    export = trained(texts_count=4, steps=1, shipped=True).export(tmp_path / "export")
    with safe_open(export / "model.safetensors", "np") as file:
        layer = {key for key in file.keys() if key.startswith("layers.0.")}  # noqa: SIM118 - no mapping
    assert len(layer) == 10
    old = check(export, target_folder(), "sglang==0.5.9", fix=tmp_path / "repaired")
    assert old.verdict == "fault"
    dropped = next(cause for cause in old.causes if cause.id == "weights.not_loaded")
    lost, ones = (evidence.rows for evidence in dropped.evidence)
    norms = {row["name"].replace("model.midlayer", "layers.0") for row in ones}
    assert {row["key"] for row in lost} | norms == layer and len(norms) == 3
    assert old.repair is not None and old.repair.verdict == "healthy", old.repair
    for release in ("0.5.9", "0.5.23"):
        assert check(tmp_path / "repaired", target_folder(), f"sglang=={release}").verdict == "healthy"


def test_the_good_export_is_the_same_draft_and_the_bad_one_is_named(tmp_path: Path) -> None:
    try:
        engine_python("0.5.23")
    except EngineMissingError as error:
        pytest.skip(str(error))
    draft = trained(texts_count=16, steps=4, shipped=True, rate=1e-4)
    with eagletrace.record_training(draft.model, dir=tmp_path / "training", target=target_folder()) as recording:
        metrics = draft.validation_epoch()
    assert metrics["loss_epoch"] > 0
    assert recording.problem is None and recording.accuracy[0] is not None and recording.accuracy[0] > 0.5
    good = served(draft.export(tmp_path / "good"), tmp_path / "a")
    said: Any = diff(path_of(recording), good)
    assert said.verdict == "same" and said.training.same_draft, said.why
    assert said.training.counts() == {"rounded": 12, "same": 4, "left_out": 2}
    assert said.training.departures == () and said.training.served.rate > 0.5
    with torch.no_grad():
        draft.model.fc.weight.mul_(1.5)
    bad = served(draft.export(tmp_path / "bad"), tmp_path / "b")
    said = diff(path_of(recording), bad)
    assert said.verdict == "changed" and [t.label for t in said.training.other] == ["fc.weight"], said.why
