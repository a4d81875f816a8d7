"""EAGLE-1 drafts on SGLang's own class, `LlamaForCausalLMEagle`: traced, diagnosed and replayed. The faults and
controls that are not here are in `make matrix`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnosed import (
    Diagnosed,
    assert_counts_are_the_engine_s,
    assert_tokens_are_the_target_s,
    command,
    diagnosed,
    facts_of,
    named,
    opened,
    proved,
    status_of,
)

from eagletrace.lab.load import accept_length
from eagletrace.lab.pair import shipped_pair

pytest.importorskip("torch")
pytestmark = [pytest.mark.lab, pytest.mark.slow]
HIDDEN, VOCAB, MAPPED = 128, 512, 384


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """The draft with a bias, served as it was trained."""
    return diagnosed("eagle1-healthy", tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """The same with a token map."""
    return diagnosed("eagle1-token-map", tmp_path_factory.mktemp("mapped"))


def outputs(served: Diagnosed) -> list[list[int]]:
    return [answer.output_ids for answer in served.result.answers]


def test_a_draft_served_right_is_healthy_and_its_counts_are_the_engine_s(healthy: Diagnosed) -> None:
    result, diagnosis, status = healthy
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    assert result.accept_length is not None and result.accept_length > 2.5
    assert status_of(diagnosis, "metric.engine_counts") == {"metric.engine_counts": "ok"}
    assert_counts_are_the_engine_s(result)


def test_facts_are_those_of_the_family(healthy: Diagnosed) -> None:
    with opened(healthy) as run:
        facts = facts_of(run)
        params = {name: (loaded, shared) for name, loaded, shared in run.execute(
            "SELECT name, elements_loaded, shared_with FROM params WHERE side = 'draft'")}  # fmt: skip
        expected = dict(run.execute("SELECT key, expected FROM contract"))
        ((width, given, fused),) = run.execute(
            "SELECT min(target_hidden_width), max(draft_input_width), bool_and(fc_applied) FROM rounds"
        )
    assert (facts["draft.architecture"], facts["draft.family"]) == ("LlamaForCausalLMEagle", "eagle")
    assert (facts["server.speculative_algorithm"], expected["server.speculative_algorithm"]) == ("EAGLE", '"EAGLE"')
    assert facts["draft.fc"] == {"in_features": 2 * HIDDEN, "out_features": HIDDEN, "name": "model.fc"}
    assert facts["forward.fc_applied"] is True
    assert [shape[-1] for shape in facts["forward.fc_shapes"]] == [2 * HIDDEN, HIDDEN]
    assert (width, given, fused) == (HIDDEN, HIDDEN, True)
    assert facts["embed.shared_with_target"] is True and facts["head.shared_with_target"] is True
    assert (facts["sharing.set_embed_and_head_calls"], facts["sharing.set_embed_calls"]) == (1, 0)
    assert (facts["d2t.in_checkpoint"], facts["hot_token_id"], facts["draft.draft_vocab_size"]) == (False, None, VOCAB)
    assert params.pop("lm_head.weight")[1] == "target:lm_head.weight"
    assert params.pop("model.embed_tokens.weight")[1] == "target:model.embed_tokens.weight"
    assert params["model.fc.bias"] == (HIDDEN, None)
    assert all(shared is None and loaded for loaded, shared in params.values())


def test_checks_that_do_not_apply_say_so(healthy: Diagnosed) -> None:
    aux = status_of(healthy.diagnosis, "aux.")
    assert len(aux) == 7 and set(aux.values()) == {"not_applicable"}
    assert set(status_of(healthy.diagnosis, "vocab.d2t").values()) == {"not_applicable"}
    assert status_of(healthy.diagnosis, "fc.") == {"fc.applied": "ok", "fc.norm": "not_applicable"}


def test_the_reference_drafts_what_was_served(healthy: Diagnosed, mapped: Diagnosed) -> None:
    for served in (healthy, mapped):
        replayed = json.loads(command("replay", served.result).stdout)
        assert set(replayed["fidelity"]) == {"1", "2", "3"}
        assert min(replayed["fidelity"].values()) >= 0.98
        assert {stage["stage"]: stage["first_bad_position"] for stage in replayed["stages"]} == {
            "input_ids": None, "fc_out": None, "draft_out": None
        }  # fmt: skip


def test_tokens_are_what_the_target_says_without_an_engine(healthy: Diagnosed) -> None:
    assert_tokens_are_the_target_s(healthy.result, shipped_pair() / "target")


def test_a_token_map_gives_the_draft_its_vocabulary(mapped: Diagnosed, healthy: Diagnosed) -> None:
    result, diagnosis, status = mapped
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    assert outputs(mapped) == outputs(healthy)  # greedy text does not depend on the draft
    assert result.accept_length is not None and result.accept_length > 2.5
    with opened(mapped) as run:
        facts = facts_of(run)
        head = run.execute("SELECT shape, shared_with FROM params WHERE side = 'draft' AND name = 'lm_head.weight'")
        ((known, outside),) = run.execute(
            "SELECT count(*), count(*) FILTER (WHERE NOT target_token_in_draft_vocab) FROM verifies "
            "WHERE target_token_in_draft_vocab IS NOT NULL"
        )
    assert facts["draft.draft_vocab_size"] == MAPPED
    assert (facts["hot_token_id"]["length"], facts["hot_token_id"]["unique"]) == (MAPPED, True)
    assert head == [([MAPPED, HIDDEN], "target:lm_head.weight[hot_token_id]")]
    assert known > 0 and outside < 0.05 * known
    assert status_of(diagnosis, "vocab.d2t_missing") == {"vocab.d2t_missing": "ok"}
    assert status_of(diagnosis, "weights.missing") == {"weights.missing": "ok"}


def test_states_before_the_target_s_final_norm_are_named_and_proved(healthy: Diagnosed, tmp_path: Path) -> None:
    name = "eagle1-before-norm"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis)
    due = accept_length(healthy.result.answers[: len(found.result.answers)])
    assert due is not None
    proved(found.diagnosis, due)
    assert [cause["id"] for cause in found.diagnosis["causes"]] == ["fc.norm_mismatch"]
    assert found.result.accept_length is not None and found.result.accept_length < 1.4
    aux = status_of(found.diagnosis, "aux.")
    assert set(aux.values()) == {"not_applicable"}
