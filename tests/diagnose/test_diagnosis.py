"""Verdicts, the contract's JSON, effects as evidence, several causes, and what cannot be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import (
    d2t_zero,
    embeddings_in_file,
    extra_key,
    layer_ids_unread,
    layer_keys_0_5_9,
    no_lm_head,
    no_v_proj,
    own_embeddings_replaced,
    served_as_eagle,
    simulated,
    t2d_disagrees,
    target_too_shallow,
    tied_embeddings,
    use_aux_false,
)
from conftest import Diagnose
from synthetic import HIDDEN, POOR, Synthetic

from eagletrace.diagnose import Diagnosis, diagnose, policy
from eagletrace.errors import EagletraceError
from eagletrace.record.writer import TraceWriter
from eagletrace.store import open_run

TOP_KEYS = ["schema_version", "run", "verdict", "acceptance", "causes", "checks"]
ACCEPTANCE_KEYS = ["rounds", "drafted", "accepted", "accept_length", "engine_reported_accept_length", "by_depth"]
CAUSE_KEYS = ["id", "confidence", "severity", "title", "evidence", "fix", "proof"]


def statuses(found: Diagnosis) -> dict[str, str]:
    return {c.id: c.status for c in found.checks}


def test_json_has_exactly_the_keys_of_the_contract(diagnosed: Diagnose) -> None:
    found: dict[str, Any] = json.loads(json.dumps(diagnosed(no_lm_head()).to_json(), allow_nan=False))
    assert list(found) == TOP_KEYS
    assert found["schema_version"] == 1
    assert found["run"] == {"id": "run-0", "sglang": "0.5.23", "draft": "/models/draft-b", "target": "/models/target-a"}
    assert list(found["acceptance"]) == ACCEPTANCE_KEYS
    assert list(found["acceptance"]["by_depth"][0]) == ["depth", "reached", "accepted", "rate"]
    cause = found["causes"][0]
    assert list(cause) == CAUSE_KEYS
    assert list(cause["evidence"][0]) == ["query", "text", "rows"]
    assert cause["evidence"][0]["rows"][0]["name"] == "lm_head.weight"
    assert cause["proof"] == {
        "reproduces_served": None, "served_accept_length": None, "repaired_accept_length": None,
    }  # fmt: skip
    assert all(list(check) == ["id", "status", "reason"] for check in found["checks"])
    assert "/models/draft-b" in cause["fix"]


def test_the_contracts_counts(diagnosed: Diagnose) -> None:
    """Every round drafts three; rates of 1, 1 and 0 accept two each time."""
    measured = diagnosed(Synthetic(rates=(1.0, 1.0, 0.0), rounds=60)).acceptance
    assert (measured.rounds, measured.drafted, measured.accepted, measured.accept_length) == (60, 180, 120, 3.0)
    assert [(d.reached, d.accepted, d.rate) for d in measured.by_depth] == [(60, 60, 1.0), (60, 60, 1.0), (60, 0, 0.0)]
    assert [d.unconditional for d in measured.by_depth] == [1.0, 1.0, 0.0]
    assert measured.histogram == (0, 0, 60, 0)
    assert measured.engine_reported_accept_length == pytest.approx((60 * 3 + 3) / 60)
    assert measured.engine_difference


def test_a_run_of_level_contract_is_judged_from_its_totals(diagnosed: Diagnose) -> None:
    tokens, totals = (diagnosed(Synthetic(level=level)) for level in ("tokens", "contract"))
    assert totals.acceptance.source == "totals"
    assert totals.acceptance.to_json() == tokens.acceptance.to_json()
    assert totals.acceptance.histogram == tokens.acceptance.histogram
    assert (totals.verdict, statuses(totals)["draft.target_rank"]) == ("healthy", "unknown")


@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_too_few_rounds_are_inconclusive_with_how_many_would_do(rounds: int, diagnosed: Diagnose) -> None:
    found = diagnosed(Synthetic(rounds=rounds, requests=1))
    assert (found.verdict, found.exit_code, found.causes) == ("inconclusive", 3, ())
    depth1 = next(c for c in found.checks if c.id == "acceptance.depth1")
    assert depth1.status == "unknown"
    assert str(policy.MIN_ROUNDS) in depth1.reason or "would do" in depth1.reason
    assert found.acceptance.to_json()["rounds"] == rounds


def test_a_sure_violation_is_a_fault_before_any_round(diagnosed: Diagnose) -> None:
    run = no_lm_head()
    run.rounds = 0
    found = diagnosed(run)
    assert (found.verdict, found.causes[0].id) == ("fault", "weights.missing")
    assert found.causes[0].confidence == policy.CONFIDENCE_SURE_UNSEEN


def test_poor_acceptance_without_a_violation_is_not_guessed_at(diagnosed: Diagnose) -> None:
    found = diagnosed(Synthetic(rates=POOR))
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert "cannot be told" in found.why and "replay" in found.next


def test_a_collapse_behind_depth_1_is_not_healthy(diagnosed: Diagnose) -> None:
    found = diagnosed(Synthetic(rates=(0.7, 0.02, 0.0)))
    assert statuses(found)["acceptance.deeper"] == "alarm"
    assert (found.verdict, [c.id for c in found.causes]) == ("fault", ["recurrence.hidden"])
    assert found.causes[0].confidence == policy.CONFIDENCE_POSSIBLE and "depth 2" in found.why


def test_no_speculation(diagnosed: Diagnose) -> None:
    run = Synthetic(rounds=0).fact("server.speculative_algorithm", None, None)
    found = diagnosed(run)
    assert (found.verdict, found.exit_code) == ("no_speculation", 3)


def test_an_empty_recording_is_inconclusive(diagnosed: Diagnose) -> None:
    found = diagnosed(Synthetic(rounds=0, facts={}, params={}, keys={}))
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
    assert set(statuses(found).values()) == {"unknown", "ok"}


def test_a_death_that_nothing_explains_is_inconclusive(diagnosed: Diagnose) -> None:
    run = Synthetic().event(
        "engine_exception", where="runner.forward", type="OutOfMemoryError", message="CUDA", phase=""
    )
    found = diagnosed(run)
    assert found.verdict == "inconclusive"
    assert "OutOfMemoryError" in found.why


def test_effects_are_evidence_of_the_cause_and_say_so(diagnosed: Diagnose) -> None:
    found = diagnosed(served_as_eagle())
    queries = {e.query for e in found.causes[0].evidence}
    assert {"config_algorithm", "fc_applied", "aux_width_hidden", "lm_head_replaced"} <= queries
    reasons = {c.id: c.reason for c in found.checks if c.status == "alarm"}
    assert "an effect of config.algorithm_mismatch" in reasons["fc.applied"]
    assert found.causes[0].confidence == policy.CONFIDENCE_SURE_LOSS


def test_nan_in_an_unwritten_parameter_is_evidence_for_it(diagnosed: Diagnose) -> None:
    found = diagnosed(no_lm_head())
    assert "weights_nan_unwritten" in {e.query for e in found.causes[0].evidence}


def test_independent_causes_are_all_reported(diagnosed: Diagnose) -> None:
    """No head in the file and a map of zeros: two faults of which neither explains the other."""
    run = d2t_zero().unwritten("lm_head.weight")
    del run.keys["lm_head.weight"]
    found = diagnosed(run)
    assert {c.id for c in found.causes} == {"weights.missing", "vocab.d2t_missing"}
    assert found.causes[0].confidence > found.causes[1].confidence


def test_what_takes_everything_ranks_before_what_takes_a_part(diagnosed: Diagnose) -> None:
    run = layer_ids_unread().unwritten("lm_head.weight")
    run.rates = POOR
    found = diagnosed(run)
    assert [c.id for c in found.causes] == ["weights.missing", "aux.layers_mismatch"]
    assert [c.severity for c in found.causes] == ["critical", "warning"]


def test_the_upstream_cause_ranks_first(diagnosed: Diagnose) -> None:
    run = served_as_eagle().unwritten("model.fc.weight")
    assert [c.id for c in diagnosed(run).causes] == ["config.algorithm_mismatch", "weights.missing"]


def test_possible_facts_explain_only_a_loss_that_nothing_surer_explains(diagnosed: Diagnose) -> None:
    alone = diagnosed(own_embeddings_replaced())
    assert [(c.id, c.confidence) for c in alone.causes] == [("embed.mismatch", policy.CONFIDENCE_POSSIBLE)]
    run = no_lm_head()
    for name in ("embed.in_checkpoint", "embed.replaced"):
        run.facts[name] = embeddings_in_file().facts[name]
    both = diagnosed(run)
    assert [c.id for c in both.causes] == ["weights.missing"]
    reason = next(c.reason for c in both.checks if c.id == "embed.replaced")
    assert "weights.missing" in reason


def test_two_possible_facts_share_the_confidence(diagnosed: Diagnose) -> None:
    run = own_embeddings_replaced().dropped("other.weight", [3 * HIDDEN])
    found = diagnosed(run)
    assert {c.id: c.confidence for c in found.causes} == {"embed.mismatch": 0.25, "weights.not_loaded": 0.25}


def test_a_violation_under_excellent_acceptance_is_an_alarm(diagnosed: Diagnose) -> None:
    run = no_v_proj()
    run.rates = (0.97, 0.97, 0.97)
    found = diagnosed(run)
    assert (found.verdict, found.causes) == ("healthy", ())
    reason = next(c.reason for c in found.checks if c.id == "weights.missing")
    assert "costs nothing visible" in reason


@pytest.mark.parametrize("build", [t2d_disagrees, extra_key, embeddings_in_file])
def test_harmless_facts_say_that_they_cost_nothing_visible(build: Any, diagnosed: Diagnose) -> None:
    found = diagnosed(build())
    reasons = [c.reason for c in found.checks if c.status == "alarm"]
    assert reasons and all("costs nothing visible here" in r for r in reasons)


def test_harmless_facts_without_rounds_say_that_it_cannot_be_told(diagnosed: Diagnose) -> None:
    run = extra_key()
    run.rounds = 0
    found = diagnosed(run)
    assert found.verdict == "inconclusive"
    assert "cannot be told" in next(c.reason for c in found.checks if c.id == "weights.unused_keys")


def test_a_wrong_number_of_the_engine_is_an_alarm_and_no_cause(diagnosed: Diagnose) -> None:
    found = diagnosed(Synthetic(engine_rounds_factor=1.5))
    assert (found.verdict, statuses(found)["metric.engine_counts"]) == ("healthy", "alarm")


def test_tied_embeddings_name_the_head_and_not_the_dropped_key(diagnosed: Diagnose) -> None:
    cause = diagnosed(tied_embeddings()).causes[0]
    assert {"lm_head_tied", "weights_unused_keys", "vocab_d2t_length"} <= {e.query for e in cause.evidence}


def test_simulated_acceptance_is_certain(diagnosed: Diagnose) -> None:
    assert diagnosed(simulated()).causes[0].confidence == policy.CONFIDENCE_SETTING


def test_diagnosing_twice_gives_the_same(tmp_path: Path) -> None:
    with open_run(layer_keys_0_5_9().write(tmp_path)) as run:
        assert diagnose(run).to_json() == diagnose(run).to_json()


def test_another_path_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(EagletraceError):
        open_run(tmp_path / "nothing")


def test_the_fix_is_that_of_the_most_telling_check(diagnosed: Diagnose) -> None:
    flag, shallow = diagnosed(use_aux_false()).causes[0], diagnosed(target_too_shallow()).causes[0]
    assert flag.evidence[0].query == "aux_flag"
    assert '"use_aux_hidden_state": true' in flag.fix and "/models/draft-b/config.json" in flag.fix
    assert shallow.evidence[0].query == "aux_states"
    assert "/models/target-a" in shallow.fix


def test_dropped_rows_are_told_by_reason_whatever_the_verdict(tmp_path: Path) -> None:
    """From events and totals, which count the same rows; also where nothing else is judged."""
    for number, run in enumerate((Synthetic(), simulated())):
        folder = run.event("rows_dropped", table="launch", rows=5, reason="queue full").write(tmp_path, f"run-{number}")
        writer = TraceWriter(folder, {"host": "node", "pid": 8, "tp_rank": 1})
        for lost in ({"queue full: launch": 2, "disk bound: spans": 40}, {"queue full: launch": 3}):
            writer.write("totals", [{"rounds": 0, "dropped_rows_by_reason": json.dumps(lost)}])
        with open_run(folder) as opened:
            found = diagnose(opened)
        (check,) = (c for c in found.to_json()["checks"] if c["id"] == "trace.rows_dropped")
        assert check["status"] == "alarm"
        assert check["reason"] == (
            "40 rows were not recorded: disk bound (spans 40); 5 rows were not recorded: queue full (launch 5)"
        )
