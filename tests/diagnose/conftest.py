from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import Synthetic

from eagletrace.diagnose import Diagnosis, diagnose
from eagletrace.store import open_run

Diagnose = Callable[[Synthetic], Diagnosis]


@pytest.fixture
def diagnosed(tmp_path: Path) -> Diagnose:
    """Write a synthetic run and diagnose it."""
    written = iter(range(1000))

    def call(synthetic: Synthetic) -> Diagnosis:
        with open_run(synthetic.write(tmp_path, f"run-{next(written)}")) as run:
            return diagnose(run)

    return call
