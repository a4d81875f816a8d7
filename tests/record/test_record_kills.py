"""Writers that are killed at random moments, some of them while they merge."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

GRACE_S = "4"  # several writers share a machine that other tests use as well


@pytest.mark.slow
def test_no_kill_loses_or_doubles_a_row() -> None:
    command = [sys.executable, "-m", "benchmarks.soak_kills", "--kills", "20", "--grace-s", GRACE_S]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert result["problems"] == [] and done.returncode == 0, result["seed"]
    assert result["kills"] == 20 and result["launches_due"] > 0 and result["temporaries_seen"] > 0
    assert result["repair"]["live_writers"] == [] and result["repair"]["unreadable"] == []
