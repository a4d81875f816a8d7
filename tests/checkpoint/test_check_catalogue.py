"""Over the lab's catalogue: the check of files names what a traced run names, and nothing on a control."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from eagletrace.check import check
from eagletrace.checkpoint import CheckpointError
from eagletrace.lab.faults import CASES, materialize
from eagletrace.lab.faults.case import Case, draft_folder

PAIR = Path(__file__).resolve().parents[2] / "eagletrace" / "lab" / "pair" / "data" / "llama"

REPLAY_ALONE = {
    "aux-slots-in-another-order": "the same files as the control layer-ids-descending: only fc was trained otherwise",
    "norm-output-unset": "no tensor goes with norm_output: the files of a draft trained with it look like any other",
    "rope-theta": "drafts may be trained with another theta than the target's (rope.settings is an alarm, no cause)",
    "rope-theta-of-the-target": "the theta that the draft was trained with is in no file",
    "rope-scaling": "drafts may be trained with another scaling than the target's (rope.settings is an alarm)",
    "rope-interleaved": "the layout that the draft was trained with is in no file",
    "own-embeddings-replaced": "embeddings hardly trained look like random leftovers (embed.replaced is an alarm)",
    "undertrained": "how well a draft predicts is in no file",
    "labels-shifted": "how well a draft predicts is in no file",
}
"""Faults made of files that only a replay can tell from a healthy draft, with the reason."""


def only_files(case: Case) -> bool:
    """Nothing but the files differs from a healthy server."""
    return case.runtime is None and case.update is None and not case.flags and not case.env


FAULTS = [c for c in CASES.values() if c.kind == "fault" and only_files(c) and c.pair == "llama"]
CONTROLS = [c for c in CASES.values() if c.kind == "control" and c.pair == "llama" and c.variant != "standalone"]


def checked(case: Case, tmp_path: Path) -> tuple[list[str], set[str]]:
    """Causes and alarms of a case's files."""
    try:
        draft_folder(PAIR, case.variant)
    except Exception as error:  # noqa: BLE001 -- the pair that is installed may be older than the catalogue
        pytest.skip(str(error))
    prepared = materialize(case, PAIR, tmp_path)
    result = check(prepared.draft, prepared.target, case.engine)
    return [cause.id for cause in result.causes], {c.id for c in result.checks if c.status == "alarm"}


@pytest.mark.parametrize("case", FAULTS, ids=lambda c: c.name)
def test_an_expected_cause_comes_first(case: Case, tmp_path: Path) -> None:
    causes, alarms = checked(case, tmp_path)
    if case.name in REPLAY_ALONE:
        assert causes == [], "the check tells it now: take it off REPLAY_ALONE"
        return
    assert causes and causes[0] in case.expected, (causes, alarms)


@pytest.mark.parametrize("case", CONTROLS, ids=lambda c: c.name)
def test_a_control_has_no_cause(case: Case, tmp_path: Path) -> None:
    causes, alarms = checked(case, tmp_path)
    assert causes == [], (causes, alarms)


@pytest.mark.parametrize("name", ["rope-theta", "own-embeddings-replaced"])
def test_what_only_a_replay_tells_is_an_alarm_where_files_hint_at_it(name: str, tmp_path: Path) -> None:
    _, alarms = checked(CASES[name], tmp_path)
    assert alarms & {"rope.settings", "embed.replaced"}


def test_a_draft_model_of_its_own_is_not_checked_and_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a language model of its own, which STANDALONE serves"):
        checked(CASES["standalone-healthy"], tmp_path)


@pytest.mark.parametrize("name", ["mtp-healthy", "mtp-in-target"])
def test_a_layer_of_multi_token_prediction_has_no_cause(name: str, tmp_path: Path) -> None:
    prepared = materialize(CASES[name], PAIR.parent / "kimi", tmp_path)
    result = check(prepared.draft, prepared.target, CASES[name].engine)
    assert result.causes == ()
    status = {c.id: c.status for c in result.checks}
    weights = ("weights.not_loaded", "weights.missing", "weights.shapes", "weights.neutral", "weights.unused_keys")
    assert {id: status[id] for id in weights} == dict.fromkeys(weights, "ok")


def test_a_layer_under_another_number_than_its_class_looks_for_is_named(tmp_path: Path) -> None:
    prepared = materialize(CASES["mtp-layer-number"], PAIR.parent / "kimi", tmp_path)
    result = check(prepared.draft, prepared.target, "sglang==0.5.23")
    assert [cause.id for cause in result.causes] == ["weights.not_loaded"]
    assert "what begins with model.layers.10.: 42 tensors of the layer" in result.causes[0].evidence[0].text


def test_two_faults_at_once_are_both_named(tmp_path: Path) -> None:
    names = ("layer-keys-and-no-aux", "unknown-prefix-and-no-aux", "no-gate-proj-and-d2t-missing")
    for case in (CASES[name] for name in names if name in CASES):
        causes, _ = checked(case, tmp_path)
        assert set(case.expected) <= set(causes), case.name


def test_most_file_faults_are_told_from_files() -> None:
    """The list of exceptions stays a list of exceptions, and names cases that exist."""
    assert set(REPLAY_ALONE) <= set(CASES)
    assert len(REPLAY_ALONE) * 3 < len(FAULTS)
