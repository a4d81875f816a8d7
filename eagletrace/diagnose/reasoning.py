"""From alarms to causes: what explains the loss, what is only its effect, and what costs nothing.

An alarm of a `sure` check names its cause. An alarm of a `possible` check does so only when acceptance is clearly
lost and nothing sure explains it. A check that a named cause lists among its effects is evidence of that cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagletrace.diagnose import policy
from eagletrace.diagnose.causes import CAUSES, STAGES, SYMPTOMS, CauseInfo
from eagletrace.diagnose.checks import CheckFile, downgrade
from eagletrace.diagnose.judge import Judgement
from eagletrace.diagnose.result import Cause, Check, Evidence, RunInfo

EXPLAINED = "an effect of {}"
EXCELLENT = "costs nothing visible: {}"
OUTRANKED = "not needed to explain the loss: {} does"
HARMLESS = "costs nothing visible here: {}"
UNSEEN = "what it costs cannot be told: {}"


@dataclass(frozen=True)
class Finding:
    """A cause with the alarms that name it and those that follow from it."""

    info: CauseInfo
    named_by: tuple[Check, ...]
    effects: tuple[Check, ...]
    sure: bool
    fix: str


@dataclass(frozen=True)
class Reasoning:
    """Causes, best first, and all checks with why an alarm is no cause."""

    causes: tuple[Cause, ...]
    checks: tuple[Check, ...]


def reason(
    outcomes: Sequence[Check], files: Mapping[str, CheckFile], judgement: Judgement, died: bool, run: RunInfo
) -> Reasoning:
    """Rank the causes of a run. `outcomes` are all checks, with those of the counts (which have no file)."""
    alarms = {c.id: c for c in outcomes if c.status == "alarm"}
    excellent = judgement.level == "excellent" and not died
    sure = {} if excellent else _of_certainty(alarms, files, "sure")
    findings = _findings(sure, alarms, files, sure=True)
    if not findings and judgement.lossy:
        findings = _findings(_of_certainty(alarms, files, "possible"), alarms, files, sure=False)
    ranked = sorted(findings, key=lambda f: _rank(f, judgement, died))
    symptoms = [alarms[s] for s in SYMPTOMS if s in alarms]
    causes = tuple(
        _cause(f, place, len(ranked), symptoms if place == 0 else [], judgement, died, run)
        for place, f in enumerate(ranked)
    )
    return Reasoning(causes, tuple(_explained(c, files, ranked, judgement, excellent) for c in outcomes))


def _of_certainty(alarms: Mapping[str, Check], files: Mapping[str, CheckFile], certainty: str) -> dict[str, Check]:
    return {id: check for id, check in alarms.items() if id in files and files[id].certainty == certainty}


def _findings(
    naming: Mapping[str, Check], alarms: Mapping[str, Check], files: Mapping[str, CheckFile], *, sure: bool
) -> list[Finding]:
    """Walk the causes from upstream to downstream; the effects of one found no longer name others."""
    explained: set[str] = set()
    findings: list[Finding] = []
    for info in sorted(CAUSES.values(), key=lambda c: STAGES.index(c.stage)):
        named_by = [c for c in naming.values() if c.id not in explained and c.causes[0] == info.id]
        named_by.sort(key=lambda c: files[c.id].rank)
        if named_by:
            explained.update(c.id for c in named_by)
            effects = [alarms[e] for e in info.effects if e in alarms and e not in explained]
            explained.update(c.id for c in effects)
            fix = files[named_by[0].id].fix or info.fix
            findings.append(Finding(info, tuple(named_by), tuple(effects), sure, fix))
    return findings


def _rank(finding: Finding, judgement: Judgement, died: bool) -> tuple[bool, int]:
    """What takes all acceptance explains a total loss better than what takes a part; then the more upstream."""
    unlikely = (judgement.level == "poor" or died) and finding.info.loss == "partial"
    return unlikely, STAGES.index(finding.info.stage)


def _cause(
    finding: Finding, place: int, count: int, symptoms: Sequence[Check], judgement: Judgement, died: bool, run: RunInfo
) -> Cause:
    confidence = _confidence(finding, judgement, died) * policy.SECOND_CAUSE_FACTOR**place
    if not finding.sure:
        confidence = policy.CONFIDENCE_POSSIBLE / count
    shown = (*finding.named_by, *finding.effects, *symptoms)
    evidence = [e for c in shown for e in (c.evidence or (Evidence(c.id, c.reason),))]
    fix = finding.fix.replace("{draft}", run.draft or "the draft").replace("{target}", run.target or "the target")
    severity = "critical" if finding.sure and finding.info.loss == "total" else "warning"
    return Cause(finding.info.id, confidence, severity, finding.info.title, tuple(evidence), fix)


def _confidence(finding: Finding, judgement: Judgement, died: bool) -> float:
    if finding.info.loss == "total" and (died or judgement.level == "poor"):
        return policy.CONFIDENCE_SURE_LOSS
    if judgement.level in ("none", "too_few") and not died:
        return policy.CONFIDENCE_SURE_UNSEEN
    return policy.CONFIDENCE_SURE_DEGRADED


def _explained(
    check: Check, files: Mapping[str, CheckFile], findings: Sequence[Finding], judgement: Judgement, excellent: bool
) -> Check:
    """An alarm that names no cause says why."""
    if check.status != "alarm" or check.id not in files:
        return check
    if any(check in f.named_by for f in findings):
        return check
    parent = next((f for f in findings if check in f.effects), None)
    if parent:
        return downgrade(check, EXPLAINED.format(parent.info.id))
    certainty = files[check.id].certainty
    if certainty == "sure" and excellent:
        return downgrade(check, EXCELLENT.format(judgement.reason))
    if certainty != "possible":
        return check
    if findings:
        return downgrade(check, OUTRANKED.format(findings[0].info.id))
    if judgement.level in ("healthy", "excellent"):
        return downgrade(check, HARMLESS.format(judgement.reason))
    return downgrade(check, UNSEEN.format(judgement.reason))
