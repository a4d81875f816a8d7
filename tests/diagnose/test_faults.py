"""The lab's catalogue as synthetic runs: an expected cause first, controls healthy with the fact as an alarm."""

from __future__ import annotations

import pytest
from cases import CONTROLS, FAULTS, Build, simulated
from conftest import Diagnose


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_first_and_alone(name: str, diagnosed: Diagnose) -> None:
    build, expected = FAULTS[name]
    found = diagnosed(build())
    assert (found.verdict, found.exit_code) == ("fault", 1)
    assert [c.id for c in found.causes] == [expected]
    cause = found.causes[0]
    assert 0 < cause.confidence <= 1
    assert cause.evidence and all(e.text for e in cause.evidence)
    assert len({e.query for e in cause.evidence}) == len(cause.evidence)
    assert "{" not in cause.fix.replace('{"', "")
    assert found.why and found.next


@pytest.mark.parametrize("name", CONTROLS)
def test_control_is_healthy_with_the_fact_as_an_alarm(name: str, diagnosed: Diagnose) -> None:
    build, suspicious = CONTROLS[name]
    found = diagnosed(build())
    assert (found.verdict, found.exit_code, found.causes) == ("healthy", 0, ())
    assert [c.id for c in found.checks if c.status == "alarm"] == ([suspicious] if suspicious else [])


def test_simulated_acceptance_leaves_everything_else_unjudged(diagnosed: Diagnose) -> None:
    found = diagnosed(simulated())
    assert {c.status for c in found.checks if c.id != "config.simulated"} == {"not_applicable"}


@pytest.mark.parametrize("build", [build for build, _ in FAULTS.values() if build is not simulated])
def test_faults_are_named_from_facts_alone_when_the_server_died(build: Build, diagnosed: Diagnose) -> None:
    run = build()
    run.rounds = 0
    run.event("engine_exception", where="runner.forward", type="RuntimeError", message="gone", phase="draft")
    found = diagnosed(run)
    named = {id for b, id in FAULTS.values() if b is build}
    if named <= {"embed.mismatch"} or build.__name__ == "d2t_partly_wrong_but_sane":
        assert found.verdict == "inconclusive"  # what these cost is only seen in rounds
    else:
        assert (found.verdict, found.causes[0].id) == ("fault", named.pop())
