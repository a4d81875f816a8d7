"""What a replay adds to a diagnosis: proofs, causes that only it finds, and findings that it shows to cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eagletrace.diagnose import policy
from eagletrace.diagnose.causes import CAUSES, STAGES
from eagletrace.diagnose.checks import CheckFile, downgrade
from eagletrace.diagnose.judge import Judgement
from eagletrace.diagnose.reasoning import Reasoning
from eagletrace.diagnose.result import Cause, Check, Evidence, Proof, RunInfo
from eagletrace.replay.result import REPRODUCES, Hypothesis, Replay

QUERY = "replay"
SEND_MORE = "send more requests to the traced server, and diagnose again"
UNDERTRAINED = "draft.undertrained"
OTHER_TARGET = "target.mismatch"
TRAINING = (UNDERTRAINED, OTHER_TARGET, "vocab.coverage")
"""Causes that no change of the served draft repairs."""

COSTS_NOTHING = "a replay without it drafts no better: it costs nothing here"
OUTRANKED = "a replay explains the loss by {}"


def prove(
    reasoning: Reasoning, replayed: Replay, judgement: Judgement, files: Mapping[str, CheckFile], run: RunInfo
) -> Reasoning:
    """Fill in proofs, order causes by them, and drop those that a replay shows to be harmless.

    A cause that a replay found comes first, the one that costs most before the others. One that a sure check named
    and a replay cannot judge stays, behind them; one that was only possible goes when the replay explains the loss.
    """
    proved = [_proved(h, replayed, reasoning.causes, run) for h in replayed.found]
    known = {cause.id for cause in proved}
    rest = [cause for cause in reasoning.causes if cause.id not in known]
    kept = [_unrepaired(c, replayed) for c in rest if _stays(c, replayed, reasoning.checks, files)]
    if not proved and not kept and judgement.lossy and replayed.explained >= REPRODUCES and not replayed.undecided:
        kept = [_of_training(replayed, reasoning, run)]
    causes = (*proved, *kept)
    dropped = {cause.id for cause in rest} - {cause.id for cause in causes}
    return Reasoning(causes, tuple(_explained(c, dropped, replayed, causes) for c in reasoning.checks))


def _proved(found: Hypothesis, replayed: Replay, causes: Sequence[Cause], run: RunInfo) -> Cause:
    """The cause of a hypothesis that holds: that of the checks, with a proof, or one of its own."""
    info = CAUSES[found.cause]
    proof = Proof(found.reproduces_served, found.served_accept_length, found.repaired_accept_length)
    said = Evidence(QUERY, sentence(found, replayed), (dict(change=found.change, **proof.to_json()),))
    confidence = policy.CONFIDENCE_PROVED if replayed.explained >= REPRODUCES else policy.CONFIDENCE_REGAINED
    for cause in causes:
        if cause.id == found.cause:
            return replace(cause, proof=proof, confidence=confidence, evidence=(*cause.evidence, said))
    fix = info.fix.replace("{draft}", run.draft or "the draft").replace("{target}", run.target or "the target")
    severity = "critical" if info.loss == "total" else "warning"
    return Cause(found.cause, confidence, severity, info.title, (said,), fix, proof)


def sentence(found: Hypothesis, replayed: Replay) -> str:
    """The proof in words."""
    share = replayed.explained
    drafts = "drafts what was served" if share >= REPRODUCES else "drafts only a part of what was served"
    as_it_is = "as it is" if found.repairs or found.cause == OTHER_TARGET else f"with this fault ({found.change})"
    told = f"{as_it_is}, the reference {drafts} ({share:.1%} of the draft tokens)"
    if found.cause == OTHER_TARGET:
        return f"{told}; {found.change}"
    if found.repaired_accept_length is None or replayed.best is None:
        return f"{told}; what it would reach without cannot be computed from these files"
    others = len(found.parts) - 1
    mended = f"with {found.change}" if found.repairs else "without it"
    if others > 0:
        mended += f", and without the {others} other{'s' if others > 1 else ''}"
    return (
        f"{told}; {mended} its accept length is {found.repaired_accept_length:.2f} (95 % interval "
        f"{replayed.best.ci_low:.2f} to {replayed.best.ci_high:.2f}) where {found.served_accept_length:.2f} was served"
    )


def _stays(cause: Cause, replayed: Replay, checks: Sequence[Check], files: Mapping[str, CheckFile]) -> bool:
    """Whether a cause that the replay did not find is still one."""
    if cause.id in replayed.harmless:
        return False
    if not replayed.found:
        return replayed.explained < REPRODUCES or _sure(cause, checks, files)
    upstream = min(STAGES.index(CAUSES[h.cause].stage) for h in replayed.found)
    return _sure(cause, checks, files) and STAGES.index(CAUSES[cause.id].stage) <= upstream


def _sure(cause: Cause, checks: Sequence[Check], files: Mapping[str, CheckFile]) -> bool:
    return any(
        c.status == "alarm" and c.causes[:1] == (cause.id,) and c.id in files and files[c.id].certainty == "sure"
        for c in checks
    )


def _unrepaired(cause: Cause, replayed: Replay) -> Cause:
    """A cause that the replay reproduces and cannot take away."""
    if replayed.explained < REPRODUCES:
        return cause
    return replace(cause, proof=Proof(replayed.explained, replayed.served.accept_length, None))


def _of_training(replayed: Replay, reasoning: Reasoning, run: RunInfo) -> Cause:
    """The draft itself: it was served as its files say, and no change of them helps."""
    alarms = {c.id for c in reasoning.checks if c.status == "alarm"}
    named = "vocab.coverage" if "vocab.coverage" in alarms else UNDERTRAINED
    if replayed.embedding_copy == "other" or replayed.deaf:
        named = OTHER_TARGET
    info = CAUSES[named]
    text = (
        f"the reference drafts {replayed.explained:.1%} of what was served, from the checkpoint as it is; its accept "
        f"length is {replayed.as_served.accept_length:.2f}, and none of the changes tried regains any"
    )
    if named == OTHER_TARGET:
        text += "; it uses nothing of the served target's hidden states"
    proof = Proof(replayed.explained, replayed.served.accept_length, None)
    fix = info.fix.replace("{draft}", run.draft or "the draft").replace("{target}", run.target or "the target")
    return Cause(named, policy.CONFIDENCE_EXCLUDED, "warning", info.title, (Evidence(QUERY, text),), fix, proof)


def _explained(check: Check, dropped: set[str], replayed: Replay, causes: Sequence[Cause]) -> Check:
    """An alarm whose cause was dropped says why."""
    if check.status != "alarm" or not check.causes or check.causes[0] not in dropped:
        return check
    if check.causes[0] in replayed.harmless or not causes:
        return downgrade(check, COSTS_NOTHING)
    return downgrade(check, OUTRANKED.format(causes[0].id))


def unsettled(replayed: Replay) -> tuple[str, str] | None:
    """What a replay leaves open, and what to do next; None where all is settled.

    Either something may cost acceptance, and the rounds are too few to tell, or a loss is there that nothing explains.
    """
    if replayed.undecided:
        first = replayed.undecided[0]
        return (
            f"a replay finds what may cost acceptance, and {replayed.tokens:,} recorded tokens are too few to tell: "
            f"{first.change} seems to make {first.gain:.2f} accepted drafts a round ({first.cause})"
        ), SEND_MORE
    if replayed.unexplained_loss:
        return (
            f"the draft as its files say reaches {replayed.potential.accept_length:.2f} on these tokens, where "
            f"{replayed.served.accept_length:.2f} was served, and nothing that was tried explains it"
        ), parted(replayed)
    return None


def parted(replayed: Replay) -> str:
    """What to do where neither checks nor replay explain a loss: the stage at which both part, and what to record."""
    bad = next((s for s in replayed.stages if s.first_bad_position is not None), None)
    where = f"recorded and recomputed values part at {bad.stage}, position {bad.first_bad_position}" if bad else (
        "the recorded stages agree with the recomputed ones")  # fmt: skip
    return (
        f"the reference drafts {replayed.explained:.1%} of what was served; {where}. Compare the same prompts with "
        "--disable-cuda-graph, and with one request at a time"
    )
