"""A case served and judged in this process, without the search of a replay: what its run alone says, and whether the
reference drafts what was served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from diagnosed import ROUNDS, facts_of

from eagletrace.diagnose import Diagnosis, diagnose
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run
from eagletrace.replay import material, recorded
from eagletrace.replay.changes.intended import intended
from eagletrace.replay.scoring import score
from eagletrace.replay.stages import agreement
from eagletrace.store import open_run


class Judged(NamedTuple):
    """A lab run, its diagnosis by the run alone, and its facts."""

    result: LabResult
    diagnosis: Diagnosis
    facts: dict[str, Any]

    @property
    def alarms(self) -> set[str]:
        """Ids of the checks that found something."""
        return {check.id for check in self.diagnosis.checks if check.status == "alarm"}


def judged(name: str, folder: Path) -> Judged:
    """Serve a case with the hidden states that its draft is given, and judge its run."""
    result = lab_run(ServeOptions(fault=name, dir=folder, level="tensors"), LoadOptions(rounds=ROUNDS))
    assert result.run is not None, result.reason
    with open_run(result.run) as run:
        return Judged(result, diagnose(run), facts_of(run))


def assert_reproduced(result: LabResult) -> None:
    """The reference drafts what was served, by the draft's files alone, and computes each recorded stage alike."""
    assert result.run is not None
    with open_run(result.run) as run:
        recording = recorded.read(run, recorded.MAX_POSITIONS)
        recipe = intended(material.load(run, result.draft, result.target), recording)
    by_depth = score(recipe, recording, fidelity_only=True).by_depth
    assert set(by_depth) == {1, 2, 3} and min(by_depth.values()) >= 0.98
    stages = {stage.stage: stage.first_bad_position for stage in agreement(recipe, recording)}
    assert stages == {"input_ids": None, "fc_out": None, "draft_out": None}
