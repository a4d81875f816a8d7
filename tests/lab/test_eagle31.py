"""An EAGLE-3 draft with the settings of EAGLE-3.1 on SGLang's own class: two decoder layers, four aux states with a
norm each, the normed state fed back. Traced, diagnosed, checked and replayed; the faults that are not here are in
`make matrix`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnosed import assert_counts_are_the_engine_s, diagnosed, named, proved
from judged import Judged, assert_reproduced, judged

from eagletrace.check import check
from eagletrace.lab.load import accept_length
from eagletrace.store import open_run

pytest.importorskip("torch")
pytestmark = [pytest.mark.lab, pytest.mark.slow]
HIDDEN, LAYERS = 128, [2, 5, 8, 10]
TWICE = {"aux.ids_unread"}
"""The lab's drafts have their ids at the top of config.json too."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The draft served as it was trained."""
    return judged("eagle31-healthy", tmp_path_factory.mktemp("healthy"))


def test_a_draft_served_right_is_healthy_and_its_counts_are_the_engine_s(healthy: Judged) -> None:
    assert (healthy.diagnosis.verdict, healthy.diagnosis.causes) == ("healthy", ())
    assert healthy.alarms == TWICE
    assert healthy.result.accept_length is not None and healthy.result.accept_length > 2.5
    assert_counts_are_the_engine_s(healthy.result)


def test_facts_are_those_of_four_states_and_two_layers(healthy: Judged) -> None:
    assert healthy.result.run is not None
    with open_run(healthy.result.run) as run:
        expected = {key: json.loads(e or "null") for key, e in run.execute("SELECT key, expected FROM contract")}
        params = dict(run.execute("SELECT name, elements_loaded FROM params WHERE side = 'draft'"))
        ((width, given, fused),) = run.execute(
            "SELECT min(target_hidden_width), max(draft_input_width), bool_and(fc_applied) FROM rounds"
        )
        fates = {fate for (fate,) in run.execute("SELECT DISTINCT fate FROM checkpoint_keys")}
    facts = healthy.facts
    assert facts["aux.layers_captured"] == expected["aux.layers_captured"] == LAYERS
    assert facts["aux.layers_requested"] == [layer - 1 for layer in LAYERS]
    assert facts["aux.count"] == expected["aux.count"] == 4
    assert facts["draft.fc"] == {"in_features": 4 * HIDDEN, "out_features": HIDDEN, "name": "model.fc"}
    assert (width, given, fused) == (4 * HIDDEN, 4 * HIDDEN, True)
    assert {name: loaded for name, loaded in params.items() if "fc_norm" in name} == {
        f"model.fc_norm.{slot}.weight": HIDDEN for slot in range(4)
    }
    second = {name.removeprefix("model.layers.1."): loaded for name, loaded in params.items() if "layers.1" in name}
    assert second.pop("input_layernorm.weight") == 0  # the class has it, and never uses it
    assert all(second.values()) and second["self_attn.qkv_proj.weight"] == 2 * HIDDEN * HIDDEN
    assert fates == {"loaded", "consumed_as_attribute", "ignored_by_engine"}


def test_the_check_of_the_files_agrees(healthy: Judged) -> None:
    found = check(healthy.result.draft, healthy.result.target, "sglang==0.5.23")
    assert (found.verdict, found.causes) == ("healthy", ())
    assert {c.id for c in found.checks if c.status == "alarm"} == TWICE


def test_the_reference_drafts_what_was_served(healthy: Judged) -> None:
    assert_reproduced(healthy.result)


def test_a_second_layer_that_was_not_built_is_named_and_proved(healthy: Judged, tmp_path: Path) -> None:
    name = "eagle31-second-layer-unbuilt"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis)
    due = accept_length(healthy.result.answers[: len(found.result.answers)])
    assert due is not None
    proved(found.diagnosis, due)
    (cause,) = found.diagnosis["causes"]
    assert "the engine built 1 decoder layer, and num_hidden_layers is 1" in cause["evidence"][0]["text"]
    assert "num_hidden_layers" in cause["fix"]
    files = check(found.result.draft, found.result.target, "sglang==0.5.23", fix=tmp_path / "mended")
    assert [c.id for c in files.causes] == [cause["id"]]
    assert files.repair is not None and files.repair.verdict == "healthy"
