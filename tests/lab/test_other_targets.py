"""Targets of other classes than Llama and Kimi-K2.5: Qwen2, Qwen3 and gpt-oss, the pair's Llama rewritten as each, so
that all of them say the same and every draft of the pair serves on them.

What the classes do with layer ids in all cases is in `tests/hooks/test_capture_of_classes.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosed import assert_counts_are_the_engine_s, assert_neutral, diagnosed, named, proved
from judged import Judged, assert_reproduced, judged

from eagletrace.check import check
from eagletrace.lab.load import accept_length

pytest.importorskip("torch")
pytestmark = [pytest.mark.lab, pytest.mark.slow]
LAYERS = [4, 8, 10]
TWICE = {"aux.ids_unread"}
"""The lab's drafts have their ids at the top of config.json too."""
CLASSES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gpt_oss": "GptOssForCausalLM"}


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judged("qwen2-healthy", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judged("qwen3-healthy", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judged("gpt-oss-healthy", tmp_path_factory.mktemp("gpt-oss"))


@pytest.mark.parametrize("name", CLASSES)
def test_a_target_served_right_is_healthy_and_replayed(name: str, request: pytest.FixtureRequest) -> None:
    found: Judged = request.getfixturevalue(name)
    assert (found.diagnosis.verdict, found.alarms) == ("healthy", TWICE)
    assert found.result.accept_length is not None and found.result.accept_length > 2.5
    assert_counts_are_the_engine_s(found.result)
    assert found.facts["target.architecture"] == CLASSES[name]
    assert found.facts["aux.layers_requested"] == [layer - 1 for layer in LAYERS]
    assert found.facts["aux.layers_captured"] == LAYERS
    assert_reproduced(found.result)
    files = check(found.result.draft, found.result.target, "sglang==0.5.23")
    assert files.verdict == "healthy"
    assert [c.reason for c in files.checks if c.id == "aux.layers"] == [
        f"the inputs of layers {LAYERS} are captured: as config.json says"
    ]


def test_all_say_the_same_in_as_many_rounds(qwen2: Judged, qwen3: Judged, gpt_oss: Judged) -> None:
    said = [answer.output_ids for answer in qwen2.result.answers]
    for other in (qwen3, gpt_oss):
        assert [answer.output_ids for answer in other.result.answers] == said
        assert other.result.accept_length == qwen2.result.accept_length


def test_shifted_layer_ids_of_a_qwen2_are_named_and_proved(qwen2: Judged, tmp_path: Path) -> None:
    name = "qwen2-layer-ids-shifted"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis)
    due = accept_length(qwen2.result.answers[: len(found.result.answers)])
    assert due is not None
    proved(found.diagnosis, due)
    assert [cause["id"] for cause in found.diagnosis["causes"]] == ["aux.layers_mismatch"]
    assert "captures the inputs of layers [1, 5, 7]" in found.diagnosis["causes"][0]["evidence"][0]["text"]
    assert_counts_are_the_engine_s(found.result)
    said = [answer.output_ids for answer in found.result.answers]
    assert said == [answer.output_ids for answer in qwen2.result.answers][: len(said)]


@pytest.mark.parametrize(
    ("target", "name", "captured"),
    [("qwen3", "qwen3-layer-ids-shifted", [1, 5, 7]), ("gpt_oss", "gpt-oss-layer-ids-as-inputs", [5, 9, 11])],
    ids=["qwen3", "gpt_oss"],
)
def test_other_layers_of_a_target_are_named_by_the_run_alone(
    target: str, name: str, captured: list[int], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    healthy: Judged = request.getfixturevalue(target)
    found = judged(name, tmp_path)
    assert found.diagnosis.verdict == "fault"
    assert [cause.id for cause in found.diagnosis.causes] == ["aux.layers_mismatch"]
    assert str(captured) in found.diagnosis.causes[0].evidence[0].text
    assert found.facts["target.architecture"] == CLASSES[target]
    assert found.facts["aux.layers_captured"] == captured
    assert_neutral(name, found.result)
    assert_counts_are_the_engine_s(found.result)
    said = [answer.output_ids for answer in found.result.answers]
    assert said == [answer.output_ids for answer in healthy.result.answers][: len(said)]
    due = accept_length(healthy.result.answers[: len(said)])
    assert found.result.accept_length is not None and due is not None and found.result.accept_length < 0.8 * due
