"""What a replay does to a diagnosis: proofs, causes of its own, and findings that it shows to cost nothing."""

from __future__ import annotations

from dataclasses import replace

from eagletrace.diagnose import engine
from eagletrace.diagnose.checks import load_checks
from eagletrace.diagnose.judge import Judgement
from eagletrace.diagnose.proof import prove
from eagletrace.diagnose.reasoning import Reasoning
from eagletrace.diagnose.result import Cause, Check, RunInfo
from eagletrace.replay.result import Hypothesis, Potential, Replay, StageAgreement

FILES = load_checks()
POOR, HEALTHY = Judgement("poor", "only few"), Judgement("healthy", "many")
GOOD, BAD = Potential(3.5, 3.3, 3.7, 200), Potential(1.2, 1.1, 1.3, 200)
RUN = RunInfo("r", draft="/models/draft", target="/models/target")
SURE = next(c for c in FILES.values() if c.certainty == "sure" and c.causes[:1] == ("weights.not_loaded",))
POSSIBLE = next(c for c in FILES.values() if c.certainty == "possible" and c.causes[:1] == ("rope.mismatch",))


def replayed(*found: Hypothesis, explained: float = 1.0, **fields: object) -> Replay:
    base = Replay({1: 0.3}, 0.3, GOOD, BAD, explained, BAD, best=GOOD, found=found)
    return replace(base, **fields)  # type: ignore[arg-type]


def hypothesis(cause: str, repaired: float | None = 3.5, **fields: object) -> Hypothesis:
    return replace(Hypothesis(cause, "something", 1.0, repaired, 1.2), **fields)  # type: ignore[arg-type]


def reasoned(*checks: tuple[str, str]) -> Reasoning:
    """Alarms (id, cause), each of which named its cause."""
    found = tuple(Check(id, "alarm", f"{id} is wrong", causes=(cause,)) for id, cause in checks)
    causes = tuple(Cause(cause, 0.9, "critical", "title", (), "fix") for _, cause in checks)
    return Reasoning(causes, found)


def ids(reasoning: Reasoning) -> list[str]:
    return [cause.id for cause in reasoning.causes]


def test_a_named_cause_gets_its_proof() -> None:
    before = reasoned((SURE.id, "weights.not_loaded"))
    (cause,) = prove(before, replayed(hypothesis("weights.not_loaded")), POOR, FILES, RUN).causes
    assert cause.proof.to_json() == {
        "reproduces_served": 1.0, "served_accept_length": 1.2, "repaired_accept_length": 3.5,
    }  # fmt: skip
    assert cause.confidence > 0.95 and cause.evidence[-1].query == "replay"
    assert "3.50 (95 % interval 3.30 to 3.70) where 1.20 was served" in cause.evidence[-1].text


def test_a_cause_that_only_a_replay_finds_is_added_first() -> None:
    before = reasoned((POSSIBLE.id, "rope.mismatch"))
    after = prove(before, replayed(hypothesis("recurrence.hidden")), POOR, FILES, RUN)
    assert ids(after) == ["recurrence.hidden"]
    assert after.checks[0].reason.endswith("(a replay explains the loss by recurrence.hidden)")


def test_a_cause_is_found_where_acceptance_looks_healthy() -> None:
    after = prove(Reasoning((), ()), replayed(hypothesis("rope.mismatch")), HEALTHY, FILES, RUN)
    assert ids(after) == ["rope.mismatch"]


def test_what_costs_nothing_is_no_cause() -> None:
    before = reasoned((SURE.id, "weights.not_loaded"))
    after = prove(before, replayed(harmless=("weights.not_loaded",)), POOR, FILES, RUN)
    assert "weights.not_loaded" not in ids(after)
    assert after.checks[0].status == "alarm" and "costs nothing here" in after.checks[0].reason


def test_what_too_few_rounds_show_is_neither_healthy_nor_weak() -> None:
    open_question = replayed(explained=1.0, undecided=(hypothesis("rope.mismatch", gain=0.2),))
    assert ids(prove(Reasoning((), ()), replayed(), POOR, FILES, RUN)) == ["draft.undertrained"]
    assert ids(prove(Reasoning((), ()), open_question, POOR, FILES, RUN)) == []
    for judgement in (HEALTHY, POOR):
        assert engine._verdict(Reasoning((), ()), judgement, False, open_question) == "inconclusive"  # pyright: ignore[reportPrivateUsage]
        why, then = engine._words("inconclusive", Reasoning((), ()), judgement, False, open_question)  # pyright: ignore[reportPrivateUsage]
        assert "something seems to make 0.20 accepted drafts a round (rope.mismatch)" in why and "send more" in then


def test_a_loss_that_only_a_replay_sees_is_not_healthy() -> None:
    lossy = replayed(explained=0.7)
    assert engine._verdict(Reasoning((), ()), HEALTHY, False, lossy) == "inconclusive"  # pyright: ignore[reportPrivateUsage]
    why, then = engine._words("inconclusive", Reasoning((), ()), HEALTHY, False, lossy)  # pyright: ignore[reportPrivateUsage]
    assert "reaches 3.50 on these tokens, where 1.20 was served" in why and "drafts 70.0% of what was served" in then
    for fine in (replayed(explained=1.0), replayed(explained=0.7, potential=BAD)):
        assert engine._verdict(Reasoning((), ()), HEALTHY, False, fine) == "healthy"  # pyright: ignore[reportPrivateUsage]


def test_a_sure_cause_that_cannot_be_repaired_stays_with_half_a_proof() -> None:
    before = reasoned((SURE.id, "weights.not_loaded"))
    (cause,) = prove(before, replayed(), POOR, FILES, RUN).causes
    assert cause.id == "weights.not_loaded"
    assert (cause.proof.reproduces_served, cause.proof.repaired_accept_length) == (1.0, None)


def test_a_possible_cause_goes_when_the_files_explain_everything() -> None:
    before = reasoned((POSSIBLE.id, "rope.mismatch"))
    assert ids(prove(before, replayed(), POOR, FILES, RUN)) == ["draft.undertrained"]
    assert ids(prove(before, replayed(), HEALTHY, FILES, RUN)) == []


def test_a_possible_cause_stays_where_the_replay_explains_nothing() -> None:
    before = reasoned((POSSIBLE.id, "rope.mismatch"))
    after = prove(before, replayed(explained=0.4), POOR, FILES, RUN)
    assert ids(after) == ["rope.mismatch"] and after.causes[0].proof.reproduces_served is None


def test_a_draft_that_does_not_hear_the_target_is_another_targets() -> None:
    after = prove(Reasoning((), ()), replayed(deaf=True), POOR, FILES, RUN)
    assert ids(after) == ["target.mismatch"]


def test_a_weak_draft_needs_a_faithful_replay() -> None:
    assert ids(prove(Reasoning((), ()), replayed(explained=0.9), POOR, FILES, RUN)) == []


def test_two_causes_say_that_the_figure_is_without_both() -> None:
    parts = ("aux.not_captured", "weights.not_loaded")
    found = [hypothesis(part, parts=parts) for part in parts]
    after = prove(Reasoning((), ()), replayed(*found), POOR, FILES, RUN)
    assert ids(after) == list(parts)
    assert "without it, and without the 1 other its accept length is 3.50" in after.causes[0].evidence[-1].text


def test_a_repair_is_told_as_one() -> None:
    found = hypothesis("rope.mismatch", repairs=True)
    (cause,) = prove(Reasoning((), ()), replayed(found), POOR, FILES, RUN).causes
    assert cause.evidence[-1].text.startswith("as it is, the reference drafts what was served (100.0%")
    assert "with something its accept length is 3.50" in cause.evidence[-1].text


def test_a_replay_that_cannot_explain_names_the_stage_that_parts() -> None:
    from eagletrace.diagnose.proof import parted

    stages = (StageAgreement("input_ids", None, None, None), StageAgreement("fc_out", 0.5, 1.4, 17))
    assert "part at fc_out, position 17" in parted(replayed(explained=0.6, stages=stages))
