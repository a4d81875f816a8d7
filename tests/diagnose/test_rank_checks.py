"""Disagreements between the ranks of one run: which checks see them, which cause they name, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cases import REPLACED
from rank_cases import data_parallel, other_weights, sharded, tensor_parallel
from synthetic import DEFAULT_LAYERS, HIDDEN, Synthetic

from eagletrace.diagnose import Check, Diagnosis, policy
from eagletrace.diagnose.acceptance import measure
from eagletrace.diagnose.checks import CheckRunner, load_checks
from eagletrace.record.writer import TraceWriter
from eagletrace.store import open_run

CHECKS = {id: check for id, check in load_checks().items() if id.startswith("ranks.")}
Diagnose = Callable[[Synthetic], Diagnosis]


def outcomes(run: Synthetic, folder: Path) -> dict[str, Check]:
    with open_run(run.write(folder)) as opened:
        measure(opened)
        runner = CheckRunner(opened)
        return {id: runner.run(check) for id, check in CHECKS.items()}


def alarms(run: Synthetic, folder: Path) -> list[str]:
    return [id for id, check in outcomes(run, folder).items() if check.status == "alarm"]


@pytest.mark.parametrize("run", [tensor_parallel, data_parallel], ids=["tp", "dp"])
def test_healthy_ranks_agree(run: Callable[[], Synthetic], tmp_path: Path, diagnosed: Diagnose) -> None:
    found = outcomes(run(), tmp_path)
    expected = {"ranks.acceptance"} if run is tensor_parallel else {"ranks.rounds"}
    assert {id for id, c in found.items() if c.status == "not_applicable"} == expected
    assert {id for id, c in found.items() if c.status == "ok"} == {*CHECKS} - expected
    assert diagnosed(run()).verdict == "healthy"


def test_one_rank_has_nothing_to_disagree_with(tmp_path: Path) -> None:
    assert {c.status for c in outcomes(Synthetic(), tmp_path).values()} == {"not_applicable"}


def test_the_rounds_of_tensor_parallel_ranks_count_once(tmp_path: Path, diagnosed: Diagnose) -> None:
    assert diagnosed(tensor_parallel()).acceptance == diagnosed(Synthetic()).acceptance
    both = diagnosed(data_parallel()).acceptance
    assert both.rounds == 2 * diagnosed(Synthetic()).acceptance.rounds


def test_another_verdict_on_one_rank_is_named(diagnosed: Diagnose) -> None:
    found = diagnosed(tensor_parallel(sharded(seed=5)))
    assert (found.verdict, [c.id for c in found.causes]) == ("fault", ["batch.row"])
    text = found.causes[0].evidence[0].text
    assert "rank 1 saw another verdict than rank 0 in " in text and "request req-1 at position " in text


@pytest.mark.parametrize(
    ("column", "where", "status"),
    [("draft_token", "depth = 3", "alarm"), ("target_token", "depth = 0", "alarm"),
     ("target_token", "accepted", "alarm"), ("target_token", "NOT accepted", "ok")],
)  # fmt: skip
def test_equal_counts_of_other_tokens_are_a_disagreement(column: str, where: str, status: str, tmp_path: Path) -> None:
    """Where they decide something: what the target would choose off the accepted path does not."""
    run = tensor_parallel()
    with open_run(run.write(tmp_path, "as-written")) as opened:
        rounds = opened.rows("SELECT * FROM all_ranks.rounds WHERE tp_rank = 1")
        nodes = opened.rows(f"SELECT * FROM all_ranks.verifies WHERE tp_rank = 1 ORDER BY ({where}) DESC, round")
    nodes[0][column] += 1
    run.peers[0].rounds_recorded = False
    folder = run.write(tmp_path, "changed")
    writer = TraceWriter(folder, {"host": "node", "pp_rank": 0, "pid": 80, "tp_rank": 1, "dp_rank": None})
    writer.write("rounds", rounds)
    writer.write("verifies", nodes)
    with open_run(folder) as opened:
        measure(opened)
        found = CheckRunner(opened).run(CHECKS["ranks.rounds"])
    assert (found.status, found.evidence[0].rows[0]["differing"]) == (status, int(status == "alarm"))


def test_ranks_that_recorded_at_different_times_agree(tmp_path: Path) -> None:
    """The rounds of a rank that began later have other numbers; and its last ones are not on disk yet."""
    run = tensor_parallel()
    folder = run.write(tmp_path, "as-written")
    with open_run(folder) as opened:
        tables = {
            name: opened.rows(f"SELECT * FROM all_ranks.{name} WHERE tp_rank = 1 AND round BETWEEN 40 AND 250")
            for name in ("rounds", "verifies")
        }
    run.peers[0].rounds_recorded = False
    folder = run.write(tmp_path, "later")
    writer = TraceWriter(folder, {"host": "node", "pp_rank": 0, "pid": 80, "tp_rank": 1, "dp_rank": None})
    for name, rows in tables.items():
        writer.write(name, [{**row, "round": row["round"] - 39, "request_seq": row["request_seq"] + 5} for row in rows])
    with open_run(folder) as opened:
        measure(opened)
        found = CheckRunner(opened).run(CHECKS["ranks.rounds"])
    assert (found.status, found.evidence[0].rows[0]["compared"]) == ("ok", 211)


def test_tokens_of_a_redacted_trace_are_not_compared(tmp_path: Path) -> None:
    run = tensor_parallel().fact("trace.redacted", True)
    run.peers[0].fact("trace.redacted", True).rounds_recorded = False
    folder = run.write(tmp_path)
    writer = TraceWriter(folder, {"host": "node", "pp_rank": 0, "pid": 80, "tp_rank": 1, "dp_rank": None})
    with open_run(Synthetic().write(tmp_path, "one")) as opened:
        writer.write("rounds", opened.rows("SELECT * FROM all_ranks.rounds"))
        nodes = opened.rows("SELECT * FROM all_ranks.verifies")
    writer.write("verifies", [{**row, "draft_token": row["draft_token"] ^ 77} for row in nodes])
    with open_run(folder) as opened:
        measure(opened)
        assert CheckRunner(opened).run(CHECKS["ranks.rounds"]).status == "ok"


def test_ranks_without_a_round_in_common_say_unknown(tmp_path: Path) -> None:
    late = sharded()
    late.rounds_recorded = False
    run = tensor_parallel(late)
    assert outcomes(run, tmp_path)["ranks.rounds"].status == "not_applicable"  # one rank alone recorded rounds
    second = sharded(rounds=1, requests=1)
    found = outcomes(Synthetic(rounds=1, rounds_recorded=True).with_peer(second, tp=1), tmp_path / "b")["ranks.rounds"]
    assert found.status == "ok"
    folder = Synthetic(rounds=1).write(tmp_path / "c")
    writer = TraceWriter(folder, {"host": "node", "pp_rank": 0, "pid": 80, "tp_rank": 1, "dp_rank": None})
    writer.write("rounds", [{"round": 9, "request_seq": 9, "request_id": "other", "position": 4, "accepted": 1}])
    with open_run(folder) as opened:
        measure(opened)
        found = CheckRunner(opened).run(CHECKS["ranks.rounds"])
    assert (found.status, "EAGLETRACE_LEVEL=tokens" in found.reason) == ("unknown", True)


def test_a_parameter_that_differs_is_named(diagnosed: Diagnose, tmp_path: Path) -> None:
    for name, run in (("tp", tensor_parallel(other_weights(sharded()))), ("dp", data_parallel())):
        if name == "dp":
            other_weights(run.peers[0])
        found = diagnosed(run)
        assert (name, [c.id for c in found.causes]) == (name, ["batch.row"])
        assert "model.norm.weight" in found.causes[0].evidence[0].text


def test_parts_of_a_sharded_parameter_differ_by_nature(tmp_path: Path) -> None:
    run = tensor_parallel()
    assert run.params["lm_head.weight"]["checksum"] != run.peers[0].params["lm_head.weight"]["checksum"]
    found = outcomes(run, tmp_path)["ranks.weights"]
    assert found.status == "ok"
    assert found.evidence[0].rows[0]["compared"] == len(run.params) - 3  # head, qkv and the shared embedding


def test_a_parameter_that_one_rank_holds_in_part_is_a_disagreement(tmp_path: Path) -> None:
    half = Synthetic()
    half.params["model.fc.weight"] |= {"shape": [HIDDEN // 2, 3 * HIDDEN], "elements": HIDDEN * 3 * HIDDEN // 2}
    assert alarms(data_parallel(half), tmp_path) == ["ranks.weights"]


def test_a_checksum_that_was_not_taken_is_no_disagreement(tmp_path: Path) -> None:
    run = data_parallel()
    for row in run.peers[0].params.values():
        row["checksum"] = None
    found = outcomes(run, tmp_path)["ranks.weights"]
    assert (found.status, "EAGLETRACE=1" in found.reason) == ("unknown", True)


def test_sharing_that_differs_names_what_is_shared(diagnosed: Diagnose) -> None:
    alone = sharded().fact("embed.shared_with_target", False).fact("sharing.set_embed_calls", 0)
    run = tensor_parallel(other_weights(alone)).fact("sharing.set_embed_calls", 1)
    found = diagnosed(run)
    assert [c.id for c in found.causes] == ["embed.mismatch"]  # what follows from it is its evidence
    assert any(e.query == "ranks_weights" for e in found.causes[0].evidence)
    replaced = sharded().fact("head.replaced", {**REPLACED, "changed": True})
    assert [c.id for c in diagnosed(tensor_parallel(replaced)).causes] == ["lm_head.replaced"]


def test_how_far_the_parts_of_a_head_were_changed_may_differ(tmp_path: Path) -> None:
    run = tensor_parallel(sharded().fact("head.replaced", {**REPLACED, "relative_difference": 1.1}))
    run.fact("head.replaced", REPLACED)
    assert alarms(run, tmp_path) == []


def test_other_facts_that_differ_are_a_cause_only_with_a_loss(diagnosed: Diagnose, tmp_path: Path) -> None:
    shifted = Synthetic(seed=1).fact("aux.layers_captured", [DEFAULT_LAYERS[0], 5, 8])
    assert alarms(data_parallel(shifted), tmp_path) == ["ranks.facts"]
    assert diagnosed(data_parallel(shifted)).causes == ()
    unseen = Synthetic(seed=1).fact("aux.layers_captured", None)
    assert alarms(data_parallel(unseen), tmp_path / "unseen") == []


@pytest.mark.parametrize(("rate", "status"), [(0.2, "alarm"), (0.28, "ok")])
def test_a_rank_fails_below_a_third_of_the_others(rate: float, status: str, tmp_path: Path) -> None:
    run = data_parallel(Synthetic(rates=(rate, 0.7, 0.7), rounds=2000, seed=2))
    run.rounds = 2000
    found = outcomes(run, tmp_path)["ranks.acceptance"]
    assert found.status == status
    assert pytest.approx(0.24, abs=0.01) == policy.RANK_RATE_SHARE * 0.72


def test_few_rounds_of_a_rank_say_nothing(tmp_path: Path) -> None:
    run = data_parallel(Synthetic(rates=(0.0, 0.0, 0.0), rounds=policy.MIN_ROUNDS - 1))
    found = outcomes(run, tmp_path)["ranks.acceptance"]
    assert (found.status, "30 of each would do" in found.reason) == ("unknown", True)


def test_a_dead_replica_is_named(diagnosed: Diagnose) -> None:
    found = diagnosed(data_parallel(other_weights(Synthetic(rates=(0.01, 0.1, 0.1), seed=3))))
    assert (found.verdict, [c.id for c in found.causes]) == ("fault", ["batch.row"])
    assert {e.query for e in found.causes[0].evidence} >= {"ranks_weights", "ranks_acceptance"}
