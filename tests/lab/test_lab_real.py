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
LOAD = LoadOptions(rounds=60, concurrency=2, max_new_tokens=48)
NEWEST = ServeOptions(tracing="off")
V1 = replace(NEWEST, engine="0.5.9", worker="v1")
V2 = replace(NEWEST, engine="0.5.9", worker="v2")


def served(options: ServeOptions, folder: Path, load: LoadOptions = LOAD) -> LabResult:
    try:
        engine_python(options.engine or "0.5.23")
    except EngineMissingError as error:
        pytest.skip(str(error))
    return lab_run(replace(options, dir=folder), load)


def tokens(result: LabResult) -> list[list[int]]:
    return [answer.output_ids for answer in result.answers]


def healthy(result: LabResult) -> None:
    assert not result.engine_died
    assert result.rounds >= LOAD.rounds
    assert result.accept_length is not None
    assert result.accept_length > 1.8
    assert all(len(answer.output_ids) == 48 for answer in result.answers)
    assert result.run is None  # tracing was off


def test_chain_and_tree_give_the_same_tokens(tmp_path: Path) -> None:
    chain = served(NEWEST, tmp_path)
    tree = served(replace(NEWEST, topk=4), tmp_path)
    healthy(chain)
    healthy(tree)
    count = min(len(chain.answers), len(tree.answers))
    assert tokens(chain)[:count] == tokens(tree)[:count]


@pytest.mark.lab_0_5_9
@pytest.mark.parametrize("options", [V1, V2, replace(V1, topk=4)], ids=["v1", "v2", "v1-tree"])
def test_the_old_engine(options: ServeOptions, tmp_path: Path) -> None:
    healthy(served(options, tmp_path))


@pytest.mark.parametrize(
    "options",
    [NEWEST, pytest.param(V1, marks=pytest.mark.lab_0_5_9), pytest.param(V2, marks=pytest.mark.lab_0_5_9)],
    ids=["0.5.23", "v1", "v2"],
)
def test_retraction_keeps_the_tokens(options: ServeOptions, tmp_path: Path) -> None:
    load = LoadOptions(prompts=["def parse(self, text):\n    ", "import re\n\nclass "], max_new_tokens=32)
    retracting = replace(options, extra_env={"SGLANG_TEST_RETRACT": "1"})
    plain, retracted = served(options, tmp_path, load), served(retracting, tmp_path, load)
    assert not retracted.engine_died
    assert tokens(plain) == tokens(retracted)
    assert [len(ids) for ids in tokens(plain)] == [32, 32]


def test_stop_strings_and_length_limits(tmp_path: Path) -> None:
    prompts = ["def parse(self, text):\n    ", "import re\n\nclass "] * 2
    load = LoadOptions(prompts=prompts, max_new_tokens=[5, 17, 40, 1], stop=["return"], concurrency=4)
    result = served(NEWEST, tmp_path, load)
    reasons = [answer.meta_info["finish_reason"]["type"] for answer in result.answers]
    for answer, limit in zip(result.answers, (5, 17, 40, 1), strict=True):
        assert len(answer.output_ids) <= limit
    assert set(reasons) <= {"length", "stop"}
    assert len(result.answers) == 4


def test_a_fault_that_kills_is_a_result(tmp_path: Path) -> None:
    result = served(replace(NEWEST, fault="target-too-shallow"), tmp_path)
    assert result.engine_died
    assert result.accept_length is None
    assert "its log ends" in result.reason


def test_a_fault_that_costs_is_visible(tmp_path: Path) -> None:
    result = served(replace(NEWEST, fault="d2t-zero"), tmp_path)
    assert not result.engine_died
    assert result.accept_length is not None
    assert result.accept_length < 1.3
