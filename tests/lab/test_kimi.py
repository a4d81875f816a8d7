"""Kimi-K2.5 on SGLang's own class: it computes what transformers computes, and both draft classes are traced, diagnosed
and replayed. The faults that are not here are in `make matrix`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from diagnosed import Diagnosed, command, diagnosed, facts_of, named, proved

from eagletrace.checkpoint import describe, open_checkpoint
from eagletrace.lab.engines import engine_python
from eagletrace.lab.load import accept_length
from eagletrace.lab.pair import shipped_pair
from eagletrace.store import open_run

torch = pytest.importorskip("torch")
PAIR = shipped_pair("kimi")
HIDDEN, DEFAULT_LAYERS = 128, (2, 5, 7)
TEXTS = 6
CLASSES = {"kimi-healthy": "LlamaForCausalLMEagle3", "kimi-latent": "Eagle3DeepseekV2ForCausalLM"}
served = pytest.mark.lab
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Diagnosed]:
    """Both draft classes, served right."""
    return {name: diagnosed(name, tmp_path_factory.mktemp(name)) for name in CLASSES}


def outputs(served: Diagnosed) -> list[list[int]]:
    return [answer.output_ids for answer in served.result.answers]


def of_same_requests(healthy: Diagnosed, faulty: Diagnosed) -> float:
    """The healthy accept length of the requests that a faulty server answered, as the matrix compares it."""
    found = accept_length(healthy.result.answers[: len(faulty.result.answers)])
    assert found is not None
    return found


@served
@slow
def test_the_engine_computes_what_transformers_computes(healthy: dict[str, Diagnosed]) -> None:
    """Greedy tokens are equal, states of every layer and what was captured are near: cached keys are as wide as no
    others, so that a kernel that mistakes one for another cannot pass."""
    from eagletrace.lab.pair.evaluate import load_target
    from eagletrace.lab.pair.rollout import states_of
    from eagletrace.replay import recorded

    model = load_target(PAIR / "target")
    run = healthy["kimi-healthy"].result.run
    assert run is not None
    with open_run(run) as opened:
        sequences = recorded.read(opened).sequences[:TEXTS]
    assert len(sequences) == TEXTS
    for sequence in sequences:
        tokens = sequence.tokens[None]
        inputs, final = states_of(model, tokens)
        choices = model.lm_head(final)[0].argmax(-1)
        assert torch.equal(choices[sequence.prompt - 1 : -1], tokens[0, sequence.prompt :])
        assert sorted(sequence.layers) == list(range(len(inputs)))
        for layer, states in sequence.layers.items():
            torch.testing.assert_close(states, inputs[layer][0, : len(states)], atol=2e-3, rtol=1e-3)
        due = torch.cat([inputs[layer] for layer in DEFAULT_LAYERS], -1)[0, : sequence.rows]
        torch.testing.assert_close(sequence.captured, due, atol=2e-3, rtol=1e-3)


@served
@slow
@pytest.mark.parametrize("name", CLASSES)
def test_a_draft_of_each_class_is_traced_and_replayed(name: str, healthy: dict[str, Diagnosed]) -> None:
    result, diagnosis, status = healthy[name]
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    assert result.accept_length is not None and result.accept_length > 2.5
    assert outputs(healthy[name]) == outputs(healthy["kimi-healthy"])  # greedy text does not depend on the draft
    assert result.run is not None
    with open_run(result.run) as run:
        facts = facts_of(run)
        ((rounds, width, given, fused),) = run.execute(
            "SELECT count(*), min(target_hidden_width), min(draft_input_width), bool_and(fc_applied) FROM rounds"
        )
        engine = sum(answer.rounds for answer in result.answers)
        fates = dict(run.execute("SELECT key, fate FROM checkpoint_keys"))
    assert facts["draft.architecture"] == CLASSES[name]
    assert facts["target.architecture"] == "KimiK25ForConditionalGeneration"
    assert facts["aux.layers_captured"] == list(DEFAULT_LAYERS)
    assert (rounds, width, given, fused) == (engine, 3 * HIDDEN, 3 * HIDDEN, True)
    assert {key for key, fate in fates.items() if fate != "loaded"} == {"d2t", "t2d"}
    replayed = json.loads(command("replay", result).stdout)
    assert set(replayed["fidelity"]) == {"1", "2", "3"}
    assert min(replayed["fidelity"].values()) >= 0.98


@served
@slow
def test_a_wrapper_that_swallows_the_request_is_named_with_widths_and_proved(
    healthy: dict[str, Diagnosed], tmp_path: Path
) -> None:
    name = "kimi-capture-swallowed"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis)
    proved(found.diagnosis, of_same_requests(healthy["kimi-healthy"], found))
    assert [cause["id"] for cause in found.diagnosis["causes"]] == ["aux.not_captured"]
    said = " ".join(evidence["text"] for evidence in found.diagnosis["causes"][0]["evidence"])
    assert "KimiK25ForConditionalGeneration was asked for the states of its default layers [2, 5, 7]" in said
    assert "128 wide, 1 x hidden size, where 3 x 128 = 384 are due" in said
    assert "the fusion layer (384 to 128) did not run" in said
    assert outputs(found) == outputs(healthy["kimi-healthy"])[: len(outputs(found))]


@served
@slow
def test_keys_that_the_latent_draft_drops_are_named_and_proved(healthy: dict[str, Diagnosed], tmp_path: Path) -> None:
    name = "kimi-latent-prefixed-keys"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis)
    proved(found.diagnosis, of_same_requests(healthy["kimi-latent"], found))


@served
@slow
def test_a_wrapper_without_the_method_is_named_though_nothing_was_served(tmp_path: Path) -> None:
    name = "kimi-capture-lacking"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis, dies=True)
    assert found.result.answers == []
    assert [cause["id"] for cause in found.diagnosis["causes"]] == ["aux.not_captured"]
    assert "has no set_eagle3_layers_to_capture" in found.diagnosis["causes"][0]["evidence"][0]["text"]


@served
@slow
@pytest.mark.lab_0_5_9
def test_0_5_9_is_named_by_the_trace(tmp_path: Path) -> None:
    found = diagnosed("kimi-0.5.9", tmp_path)
    named("kimi-0.5.9", found.result, found.diagnosis, dies=True)
    assert "has no set_eagle3_layers_to_capture" in found.diagnosis["causes"][0]["evidence"][0]["text"]


@pytest.mark.lab_0_5_9
def test_0_5_9_is_named_by_doctor() -> None:
    line = [str(engine_python("0.5.9")), "-m", "eagletrace.cli", "doctor", "--json", "--target", str(PAIR / "target")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    target: dict[str, Any] = json.loads(done.stdout)["target"]
    assert (done.returncode, target["captures_aux_hidden_states"]) == (3, False)
    assert target["detail"].startswith("KimiK25ForConditionalGeneration has no set_eagle3_layers_to_capture in SGLang")
    line[0] = sys.executable
    here = subprocess.run(line, capture_output=True, text=True, check=False)
    assert json.loads(here.stdout)["target"]["captures_aux_hidden_states"] is True


@pytest.mark.parametrize("variant", ["default", "latent", "other_layers", "latent_full_vocab"])
def test_check_reads_the_files_of_both_classes(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    from eagletrace.cli.main import main

    line = ["check", str(PAIR / "drafts" / variant), "--target", str(PAIR / "target"), "--json", "--engine"]
    assert main([*line, "sglang==0.5.23"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "healthy"
    assert main([*line, "sglang==0.5.9"]) == 1
    causes = json.loads(capsys.readouterr().out)["causes"]
    assert "aux.not_captured" in {cause["id"] for cause in causes}


def test_the_widths_of_latent_attention_differ_cached_and_written_out() -> None:
    latent = describe(open_checkpoint(PAIR / "drafts" / "latent"))
    assert latent.attention == "mla"
    for settings in (latent.settings, json.loads((PAIR / "target" / "config.json").read_text())["text_config"]):
        cached = settings["kv_lora_rank"] + settings["qk_rope_head_dim"]
        assert len({cached, settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"], settings["v_head_dim"]}) == 3
