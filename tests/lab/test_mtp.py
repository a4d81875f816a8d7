"""A layer of multi-token prediction on SGLang's own class, `DeepseekV3ForCausalLMNextN`, behind a DeepSeek-V3: traced,
diagnosed and replayed. The faults and controls that are not here are in `make matrix`.
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

from eagletrace.check.engine import gather
from eagletrace.lab.load import accept_length
from eagletrace.lab.pair import shipped_pair

pytest.importorskip("torch")
pytestmark = [pytest.mark.lab, pytest.mark.slow]
HIDDEN, LAYERS, EXPERTS = 128, 10, 8


def assert_files_foretold_it(found: Diagnosed) -> None:
    """What `check` says of each key, and of each parameter that is the draft's own, is what the trace says."""
    landing = gather(found.result.draft, found.result.target, "sglang==0.5.23").landing
    assert landing is not None
    with opened(found) as run:
        fates = dict(run.execute("SELECT key, fate FROM checkpoint_keys"))
        own = dict(run.execute("SELECT name, coalesce(elements_loaded, 0) < elements FROM params "
                               "WHERE side = 'draft' AND shared_with IS NULL"))  # fmt: skip
    assert landing.fates == fates
    assert {name for name, lacks in own.items() if lacks} == set(landing.missing()) & set(own)
    shared = {"model.embed_tokens.weight", "lm_head.weight"}
    assert set(landing.parameters) == set(own) | shared


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """The layer in the target's own checkpoint, asked for by nothing but the algorithm."""
    return diagnosed("mtp-in-target", tmp_path_factory.mktemp("healthy"))


def test_a_layer_served_right_is_healthy_and_its_counts_are_the_engine_s(healthy: Diagnosed) -> None:
    result, diagnosis, status = healthy
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    assert result.accept_length is not None and result.accept_length > 2.5
    assert status_of(diagnosis, "metric.engine_counts") == {"metric.engine_counts": "ok"}
    assert_counts_are_the_engine_s(result)


def test_tokens_are_what_the_target_says_without_an_engine(healthy: Diagnosed) -> None:
    assert_tokens_are_the_target_s(healthy.result, shipped_pair("kimi") / "target")


def test_facts_are_those_of_the_family(healthy: Diagnosed) -> None:
    with opened(healthy) as run:
        facts = facts_of(run)
        expected = dict(run.execute("SELECT key, expected FROM contract"))
        shared = dict(run.execute("SELECT name, shared_with FROM params WHERE side = 'draft'"))
        gaps = run.execute("SELECT name FROM params WHERE side = 'draft' AND shared_with IS NULL "
                           "AND elements_loaded IS DISTINCT FROM elements")  # fmt: skip
        ((width, given, fused),) = run.execute(
            "SELECT min(target_hidden_width), max(draft_input_width), bool_and(fc_applied) FROM rounds"
        )
    assert (facts["draft.architecture"], facts["draft.family"]) == ("DeepseekV3ForCausalLMNextN", "nextn")
    assert (facts["server.speculative_algorithm"], expected["server.speculative_algorithm"]) == ("EAGLE", '"EAGLE"')
    assert facts["server.speculative_draft_model_path"] == facts["server.model_path"]  # decided by the engine
    assert (facts["server.speculative_num_steps"], facts["server.speculative_eagle_topk"]) == (3, 1)
    assert facts["draft.fc"] == {"in_features": 2 * HIDDEN, "out_features": HIDDEN, "name": "model.eh_proj"}
    assert facts["forward.fc_applied"] is True
    assert [shape[-1] for shape in facts["forward.fc_shapes"]] == [2 * HIDDEN, HIDDEN]
    assert (width, given, fused) == (HIDDEN, HIDDEN, True)
    assert facts["embed.shared_with_target"] is True and facts["head.shared_with_target"] is True
    assert facts["sharing.set_embed_and_head_calls"] == 1
    assert shared.pop("lm_head.weight") == "target:lm_head.weight"
    assert shared.pop("model.embed_tokens.weight") == "target:model.embed_tokens.weight"
    assert gaps == [] and set(shared.values()) == {None}


def test_the_target_s_own_tensors_are_no_part_of_the_draft(healthy: Diagnosed) -> None:
    """The engine's loader reads them on its way, in threads of its own."""
    with opened(healthy) as run:
        fates = run.execute(
            "SELECT key LIKE ? AS own, list(DISTINCT fate), count(*), count(checksum) FROM checkpoint_keys "
            "GROUP BY own ORDER BY own",
            [f"model.layers.{LAYERS}.%"],
        )
    (_, target_fates, target_keys, target_sums), (_, own_fates, own_keys, own_sums) = fates
    assert (target_fates, own_fates) == (["ignored_by_engine"], ["loaded"])
    assert own_keys == own_sums > 3 * EXPERTS and target_keys > LAYERS * own_keys / 2 and target_sums == 0
    weights = status_of(healthy.diagnosis, "weights.")
    assert {weights[f"weights.{name}"] for name in ("not_loaded", "missing", "unused_keys", "neutral")} == {"ok"}


def test_the_files_foretold_what_was_loaded(healthy: Diagnosed) -> None:
    assert_files_foretold_it(healthy)


def test_checks_that_do_not_apply_say_so(healthy: Diagnosed) -> None:
    aux = status_of(healthy.diagnosis, "aux.")
    assert len(aux) == 7 and set(aux.values()) == {"not_applicable"}
    assert set(status_of(healthy.diagnosis, "vocab.d2t").values()) == {"not_applicable"}
    assert status_of(healthy.diagnosis, "fc.applied") == {"fc.applied": "ok"}
    assert status_of(healthy.diagnosis, "recurrence.rms") == {"recurrence.rms": "ok"}


def test_the_reference_drafts_what_was_served(healthy: Diagnosed) -> None:
    replayed = json.loads(command("replay", healthy.result).stdout)
    assert set(replayed["fidelity"]) == {"1", "2", "3"}
    assert min(replayed["fidelity"].values()) >= 0.98
    assert {stage["stage"]: stage["first_bad_position"] for stage in replayed["stages"]} == {
        "input_ids": None, "fc_out": None, "draft_out": None
    }  # fmt: skip


def test_a_layer_that_the_engine_looks_for_under_another_number_is_named_and_proved(
    healthy: Diagnosed, tmp_path: Path
) -> None:
    name = "mtp-layer-number"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis)
    due = accept_length(healthy.result.answers[: len(found.result.answers)])
    assert due is not None
    proved(found.diagnosis, due)
    assert [cause["id"] for cause in found.diagnosis["causes"]] == ["weights.not_loaded"]
    assert found.result.accept_length is not None and found.result.accept_length < 1.3
    assert_files_foretold_it(found)
