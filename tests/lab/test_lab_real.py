"""Real servers: each engine and worker serves the shipped pair, chains and trees, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eagletrace.lab.engines import EngineMissingError, engine_python
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
LIMITS = (48, 48, 5, 1)
PROMPTS = ("def parse(self, text):\n    ", "import re\n\nclass ", "for name in ", "def parse(self, text):\n    return ")
LOAD = LoadOptions(prompts=PROMPTS, max_new_tokens=LIMITS, concurrency=2)
NEWEST = ServeOptions(tracing="off")


def served(folder: Path, **more: object) -> LabResult:
    options = replace(NEWEST, dir=folder, **more)  # pyright: ignore[reportArgumentType]
    try:
        engine_python(options.engine or "0.5.23")
    except EngineMissingError as error:
        pytest.skip(str(error))
    return lab_run(options, LOAD)


def tokens(result: LabResult) -> list[list[int]]:
    return [answer.output_ids for answer in result.answers]


def assert_served(result: LabResult) -> None:
    assert not result.engine_died, result.reason
    assert [len(ids) for ids in tokens(result)] == list(LIMITS)
    assert result.run is None  # tracing was off
    assert result.accept_length is not None
    assert result.accept_length > 1.5


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> LabResult:
    return served(tmp_path_factory.mktemp("chain"))


def test_the_newest_engine_serves_a_chain(chain: LabResult) -> None:
    assert_served(chain)


def test_a_tree_keeps_the_tokens(chain: LabResult, tmp_path: Path) -> None:
    other = served(tmp_path, topk=4)
    assert_served(other)
    assert tokens(other) == tokens(chain)


@pytest.mark.lab_0_5_9
def test_the_old_engine_gives_the_same_tokens(chain: LabResult, tmp_path: Path) -> None:
    other = served(tmp_path, engine="0.5.9", worker="v2", extra_env={"SGLANG_TEST_RETRACT": "1"})
    assert_served(other)
    assert tokens(other) == tokens(chain)


def test_a_fault_that_kills_is_a_result(tmp_path: Path) -> None:
    result = served(tmp_path, fault="target-too-shallow")
    assert result.engine_died
    assert result.accept_length is None
    assert "its log ends" in result.reason
