"""Faults of each family on the real engine: the served run names its cause, and nothing else could have told it.

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
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ROUNDS = 240
FAULTS = [
    pytest.param("layer-keys-0.5.9", marks=pytest.mark.lab_0_5_9),
    "no-v-proj", "d2t-absolute", "d2t-missing", "d2t-partly-wrong", "eagle3-served-as-eagle", "use-aux-false",
    "layer-ids-unread-key", "target-too-shallow", "head-overwritten", "own-embeddings-replaced", "simulated-acceptance",
]  # fmt: skip
KILLS = ("d2t-absolute", "target-too-shallow")  # the first under real decoding, the second at its first request
CONTROLS = {"healthy": None, "random-embed": "embed.replaced", "no-final-norm": "weights.neutral"}


def diagnosed(name: str, folder: Path) -> tuple[LabResult, dict[str, Any], int]:
    """Serve a case and diagnose its run as a user would."""
    result = lab_run(ServeOptions(fault=name, dir=folder), LoadOptions(rounds=ROUNDS))
    assert result.run is not None, result.reason
    command = [sys.executable, "-m", "eagletrace.cli", "diagnose", str(result.run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return result, json.loads(done.stdout), done.returncode


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_first(name: str, tmp_path: Path) -> None:
    result, diagnosis, status = diagnosed(name, tmp_path)
    assert diagnosis["verdict"] == "fault"
    assert status == 1
    assert diagnosis["causes"][0]["id"] in case(name).expected
    assert diagnosis["causes"][0]["evidence"]
    assert diagnosis["causes"][0]["fix"]
    assert result.engine_died == (name in KILLS)
    assert_neutral(name, result)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_healthy(name: str, tmp_path: Path) -> None:
    result, diagnosis, status = diagnosed(name, tmp_path)
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    alarms = {check["id"] for check in diagnosis["checks"] if check["status"] == "alarm"}
    suspicious = CONTROLS[name]
    assert alarms == ({suspicious} if suspicious else set())
    assert result.accept_length is not None
    assert result.accept_length > 2.5


def assert_neutral(name: str, result: LabResult) -> None:
    """No file of the run contains the name of its fault, nor does a path of what was served."""
    assert result.run is not None
    assert name not in str(result.run) + str(result.draft)
    for file in (f for f in result.run.rglob("*") if f.is_file()):
        assert name.encode() not in file.read_bytes(), file
