"""Every check says of every known run what is stored, word for word."""

from __future__ import annotations

from pathlib import Path

import outcomes
import pytest

from eagletrace.diagnose.checks import load_checks
from eagletrace.store import open_run

STORED = outcomes.load()


@pytest.mark.parametrize("case", outcomes.CASES)
def test_the_checks_say_what_is_stored(case: str, tmp_path: Path) -> None:
    with open_run(outcomes.CASES[case].build().write(tmp_path)) as run:
        found = outcomes.observe(run, outcomes.CASES[case])
    assert found == outcomes.expected(STORED, case)


def test_stored_are_exactly_the_cases_and_checks() -> None:
    assert set(STORED) == set(outcomes.CASES)
    assert set(STORED[outcomes.HEALTHY]) == set(load_checks())


def test_every_check_that_can_alarm_does_so_in_some_case() -> None:
    alarms = {id for answers in STORED.values() for id, (status, *_) in answers.items() if status == "alarm"}
    assert alarms == set(load_checks())
