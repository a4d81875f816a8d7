"""Faults of each family on the real engine: the served run names its cause and proves it, nothing else could have told.

The whole catalogue, with accept lengths, is `make matrix`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagletrace.lab.faults import case
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.matrix import ALL_LAYERS
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ROUNDS = 120
PROVED = [
    pytest.param("layer-keys-0.5.9", marks=pytest.mark.lab_0_5_9),
    "d2t-missing", "eagle3-served-as-eagle", "layer-ids-unread-key", "own-embeddings-replaced", "rope-theta",
    "stale-extend-states",
]  # fmt: skip
UNPROVED = ("no-v-proj", "target-too-shallow", "simulated-acceptance")
"""No file has what is missing; the server dies before it drafts; acceptance is made up."""
KILLS = ("d2t-absolute", "target-too-shallow")  # the first under real decoding, the second at its first request
CONTROLS = {"healthy": set[str](), "random-embed": {"embed.replaced"}}


def diagnosed(name: str, folder: Path) -> tuple[LabResult, dict[str, Any], int]:
    """Serve a case with hidden states recorded, and diagnose its run as a user would, with draft and target."""
    options = ServeOptions(fault=name, dir=folder, level="tensors", extra_env=ALL_LAYERS)
    result = lab_run(options, LoadOptions(rounds=ROUNDS))
    assert result.run is not None, result.reason
    command = [sys.executable, "-m", "eagletrace.cli", "diagnose", str(result.run), "--json"]
    command += ["--draft", str(result.draft), "--target", str(result.target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return result, json.loads(done.stdout), done.returncode


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabResult, dict[str, Any], int]:
    return diagnosed("healthy", tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("name", PROVED)
def test_a_fault_is_named_first_and_proved(
    name: str, healthy: tuple[LabResult, dict[str, Any], int], tmp_path: Path
) -> None:
    result, diagnosis, _ = diagnosed(name, tmp_path)
    named(name, result, diagnosis)
    proof = diagnosis["causes"][0]["proof"]
    assert proof["reproduces_served"] >= 0.98
    assert proof["repaired_accept_length"] >= 0.95 * healthy[1]["acceptance"]["accept_length"]
    assert proof["served_accept_length"] < proof["repaired_accept_length"]


@pytest.mark.parametrize("name", UNPROVED)
def test_a_fault_that_no_file_repairs_is_named_first(name: str, tmp_path: Path) -> None:
    result, diagnosis, _ = diagnosed(name, tmp_path)
    named(name, result, diagnosis)
    assert diagnosis["causes"][0]["proof"]["repaired_accept_length"] is None


def test_a_fault_that_kills_under_decoding_is_named_first(tmp_path: Path) -> None:
    """How much is regained depends on how many rounds there were before the death."""
    result, diagnosis, _ = diagnosed("d2t-absolute", tmp_path)
    named("d2t-absolute", result, diagnosis)


def named(name: str, result: LabResult, diagnosis: dict[str, Any]) -> None:
    assert diagnosis["verdict"] == "fault"
    assert diagnosis["causes"][0]["id"] in case(name).expected
    assert diagnosis["causes"][0]["evidence"]
    assert diagnosis["causes"][0]["fix"]
    assert result.engine_died == (name in KILLS)
    assert_neutral(name, result)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_healthy(name: str, healthy: tuple[LabResult, dict[str, Any], int], tmp_path: Path) -> None:
    result, diagnosis, status = healthy if name == "healthy" else diagnosed(name, tmp_path)
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    alarms = {check["id"] for check in diagnosis["checks"] if check["status"] == "alarm"}
    assert alarms == CONTROLS[name]
    assert result.accept_length is not None
    assert result.accept_length > 2.5


def assert_neutral(name: str, result: LabResult) -> None:
    """No file of the run contains the name of its fault, nor does a path of what was served."""
    assert result.run is not None
    assert name not in str(result.run) + str(result.draft)
    for file in (f for f in result.run.rglob("*") if f.is_file()):
        assert name.encode() not in file.read_bytes(), file
