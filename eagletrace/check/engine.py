"""The check of files: facts, outcomes, and the reasoning of a diagnosis about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from eagletrace.check.copying import refuse_occupied, write_copy
from eagletrace.check.declared import FUNCTIONS, declared
from eagletrace.check.facts import Facts
from eagletrace.check.outcome import Outcome
from eagletrace.check.repair import plan
from eagletrace.check.result import FileCheck, Repair
from eagletrace.checkpoint import CheckpointError, describe, open_checkpoint
from eagletrace.checkpoint.engines import release
from eagletrace.checkpoint.target import Target, describe_target
from eagletrace.diagnose.checks import CheckFile
from eagletrace.diagnose.judge import Judgement
from eagletrace.diagnose.reasoning import Reasoning, reason
from eagletrace.diagnose.result import RunInfo

FILES_ALONE = Judgement("none", "files alone show no acceptance")
DEADLY = "the engine would end with an error"


def check(
    draft: str | Path,
    target: str | Path | None = None,
    engine: str | None = None,
    *,
    fix: str | Path | None = None,
) -> FileCheck:
    """Check a draft's folder, against its target's if given, as a release of SGLang ("sglang==0.5.23") would read it.

    Nothing is run and no model is loaded. `fix` names a folder for a repaired copy. CheckpointError when a folder or
    file cannot be read, or `fix` is not free; EagletraceError for an engine whose rules are not known.
    """
    folder, of_target = Path(draft), Path(target) if target is not None else None
    if fix is not None:
        refuse_occupied(Path(fix), folder)
    facts = gather(folder, of_target, engine)
    result = judge(facts)
    return result if fix is None else replace(result, repair=_repair(facts, result, Path(fix), engine))


def _repair(facts: Facts, result: FileCheck, out: Path, engine: str | None) -> Repair:
    """Write the repaired copy, if anything can be repaired, and check it."""
    made = plan(facts)
    if result.verdict == "healthy" or not made.changed:
        return Repair(None, (), _left(result))
    write_copy(facts.draft.checkpoint, made, out)
    again = judge(gather(out, facts.target.checkpoint.path if facts.target else None, engine))
    return Repair(out, tuple(made.changed), _left(again), again.verdict)


def _left(result: FileCheck) -> tuple[str, ...]:
    """The causes that a result still names."""
    return tuple(f"{cause.id}: {cause.evidence[0].text}. {cause.fix}" for cause in result.causes)


def gather(draft: Path, target: Path | None, engine: str | None) -> Facts:
    """Open the folders and describe what is in them."""
    rules = release(engine)
    described = describe(open_checkpoint(draft))
    if target is not None and target.resolve() == draft.resolve() and described.algorithm != "NEXTN":
        raise CheckpointError(f"{draft} was given as draft and as target: give the target's folder with --target")
    return Facts(described, _target(target), rules)


def _target(target: Path | None) -> Target | None:
    return None if target is None else describe_target(open_checkpoint(target))


def judge(facts: Facts) -> FileCheck:
    """Run the checks and name the causes."""
    outcomes = {id: function(facts) for id, function in FUNCTIONS.items()}
    files = {id: _with_certainty(file, outcomes[id]) for id, file in declared().items()}
    found = [files[id].check(o.status, _reason(o), o.rows) for id, o in outcomes.items()]
    died = any(o.dies and o.status == "alarm" for o in outcomes.values())
    info = RunInfo("", facts.release.version, str(facts.draft.checkpoint.path),
                   str(facts.target.checkpoint.path) if facts.target else None)  # fmt: skip
    reasoning = reason(found, files, FILES_ALONE, died, info)
    why, then = _words(reasoning, facts)
    return FileCheck(
        draft=facts.draft.checkpoint.path,
        target=facts.target.checkpoint.path if facts.target else None,
        engine=facts.release.version,
        verdict="fault" if reasoning.causes else "healthy",
        causes=reasoning.causes,
        checks=reasoning.checks,
        why=why,
        next=then,
        notes=_notes(facts),
    )


def _with_certainty(file: CheckFile, outcome: Outcome) -> CheckFile:
    return file if outcome.certainty is None else replace(file, certainty=outcome.certainty)


def _reason(outcome: Outcome) -> str:
    if outcome.dies and outcome.status == "alarm" and "error" not in outcome.reason:
        return f"{outcome.reason} ({DEADLY})"
    return outcome.reason


def _words(reasoning: Reasoning, facts: Facts) -> tuple[str, str]:
    """Why this verdict, and what to do next."""
    if reasoning.causes:
        cause = reasoning.causes[0]
        certain = "; --fix OUT writes a copy with what can be repaired for certain" if plan(facts).changed else ""
        return cause.evidence[0].text, cause.fix.rstrip(".") + certain
    counts: Mapping[str, int] = {s: sum(c.status == s for c in reasoning.checks) for s in ("alarm", "unknown")}
    why = f"SGLang {facts.release.version} reads these files as the draft needs it"
    steps = [f"{counts['alarm']} finding(s) below are harmless by themselves"] if counts["alarm"] else []
    if facts.target is None and counts["unknown"]:
        steps.append("give --target for the checks that are unknown")
    return why, "; ".join(steps) or "nothing"


def _notes(facts: Facts) -> tuple[str, ...]:
    notes = [facts.release.note, *facts.draft.checkpoint.notes]
    if facts.target is not None:
        notes += facts.target.checkpoint.notes
    return tuple(note for note in notes if note)
