"""The diagnosis of a run: checks, evidence, ranked causes, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import duckdb

from eagletrace.diagnose import acceptance as counts
from eagletrace.diagnose import judge, policy
from eagletrace.diagnose.checks import CheckFile, CheckRunner, load_checks
from eagletrace.diagnose.judge import Judgement
from eagletrace.diagnose.proof import SEND_MORE, parted, prove, unsettled
from eagletrace.diagnose.reasoning import Reasoning, reason
from eagletrace.diagnose.result import Acceptance, Check, Diagnosis, RunInfo, Verdict
from eagletrace.errors import DamagedRunError
from eagletrace.replay.result import Replay
from eagletrace.store import Run

SIMULATED = "config.simulated"
EXCEPTION = "engine.exception"
DROPPED = "trace.rows_dropped"
UNEXPLAINED = (
    "record some requests with EAGLETRACE_LEVEL=tensors and EAGLETRACE_AUX_LAYERS=all, and diagnose again with --draft "
    "and --target: a replay of the draft tells engine from training"
)
WEAK = ("draft.undertrained",)
"""Causes with which the draft is weak, and nothing is wrong with how it is served."""


def diagnose(run: Run, replayed: Replay | None = None) -> Diagnosis:
    """Say why the drafts of a recorded run were rejected, or that they were not.

    The run may be live, cut off, or hold load-time facts only; what cannot be told is said to be unknown. With
    `replayed`, what `eagletrace.replay.engine.replay` found of this run, causes are proved or dropped.
    Raises DamagedRunError for values that cannot be counted with.
    """
    try:
        before = run.warnings_so_far
        diagnosis = _diagnose(run, replayed)
        # A large file may turn out to be damaged only when its pages are read: counts made before are made again.
        return diagnosis if run.warnings_so_far == before else _diagnose(run, replayed)
    except (duckdb.Error, OverflowError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedRunError(f"{run.path} holds values that no server records: {what}") from None


def _diagnose(run: Run, replayed: Replay | None) -> Diagnosis:
    info = run_info(run)
    measured = counts.measure(run)
    seen = True if measured.source == "verifies" and measured.rounds else None
    files, runner = load_checks(), CheckRunner(run, verdicts=seen)
    simulated = runner.run(files[SIMULATED])
    if simulated.status == "alarm":
        return _simulated(info, measured, simulated, files, runner)
    judgement = judge.judge(measured)
    if not measured.rounds and not _speculates(run):
        return _no_speculation(info, measured, files, runner)
    outcomes = [*judge.checks(measured, judgement), *(runner.run(check) for check in files.values())]
    died = any(c.id == EXCEPTION and c.status == "alarm" for c in outcomes)
    reasoning = reason(outcomes, files, judgement, died, info)
    if replayed is not None:
        reasoning = prove(reasoning, replayed, judgement, files, info)
    verdict = _verdict(reasoning, judgement, died, replayed)
    why, then = _words(verdict, reasoning, judgement, died, replayed)
    return Diagnosis(info, verdict, measured, reasoning.causes, reasoning.checks, why, then)


def run_info(run: Run) -> RunInfo:
    """What was served, from run.json and the facts."""
    ((version, draft, target),) = run.execute(
        "SELECT fact('engine.version'), fact('server.speculative_draft_model_path'), fact('server.model_path')"
    )
    return RunInfo(run.info.id, version or run.info.sglang, draft, target)


def _speculates(run: Run) -> bool:
    """False only when it was recorded that the server has no speculative algorithm."""
    ((none,),) = run.execute(
        "SELECT count(*) > 0 AND fact('server.speculative_algorithm') IS NULL FROM contract "
        "WHERE key = 'server.speculative_algorithm'"
    )
    return not none


def _simulated(
    info: RunInfo, measured: Acceptance, found: Check, files: Mapping[str, CheckFile], runner: CheckRunner
) -> Diagnosis:
    """Acceptance is made up: a fault, and nothing else is judged."""
    nothing = Judgement("none", "acceptance is faked")
    reasoning = reason([found], files, nothing, died=False, run=info)
    causes = tuple(replace(c, confidence=policy.CONFIDENCE_SETTING) for c in reasoning.causes)
    why = "acceptance is faked by a setting; nothing else is judged"
    skipped = _skipped(files, why, runner, but=SIMULATED)
    return Diagnosis(info, "fault", measured, causes, (found, *skipped), found.reason, causes[0].fix)


def _skipped(files: Mapping[str, CheckFile], why: str, runner: CheckRunner, but: str = "") -> tuple[Check, ...]:
    """All checks as not applicable, except that rows were lost while recording: that is always told."""
    lost = runner.run(files[DROPPED])
    return tuple(
        lost if c.id == DROPPED and lost.status == "alarm" else c.check("not_applicable", why)
        for c in files.values()
        if c.id != but
    )


def _no_speculation(
    info: RunInfo, measured: Acceptance, files: Mapping[str, CheckFile], runner: CheckRunner
) -> Diagnosis:
    why = "the server runs without speculative decoding"
    skipped = _skipped(files, why, runner)
    then = "start it with --speculative-algorithm EAGLE3 and --speculative-draft-model-path"
    return Diagnosis(info, "no_speculation", measured, (), skipped, why, then)


def _verdict(reasoning: Reasoning, judgement: Judgement, died: bool, replayed: Replay | None) -> Verdict:
    if reasoning.causes:
        return "weak_draft" if reasoning.causes[0].id in WEAK else "fault"
    if replayed is not None and unsettled(replayed) is not None:
        return "inconclusive"
    return "healthy" if judgement.level in ("healthy", "excellent") and not died else "inconclusive"


def _words(
    verdict: Verdict, reasoning: Reasoning, judgement: Judgement, died: bool, replayed: Replay | None
) -> tuple[str, str]:
    """Why this verdict, and what to do next."""
    if verdict in ("fault", "weak_draft"):
        cause = reasoning.causes[0]
        return cause.evidence[0].text, cause.fix
    if verdict == "healthy":
        alarms = sum(c.status == "alarm" for c in reasoning.checks)
        then = f"nothing; {alarms} finding(s) below cost nothing visible here" if alarms else "nothing"
        return judgement.reason, then
    if died:
        why = next(c.reason for c in reasoning.checks if c.id == EXCEPTION)
        return f"the engine died ({why}), and no check explains it", "see the server's log"
    if replayed is not None and (found := unsettled(replayed)) is not None:
        return found
    if judgement.lossy:
        why = f"{judgement.reason}, and no check that could be made explains it: the cause cannot be told"
        return why, UNEXPLAINED if replayed is None else parted(replayed)
    return judgement.reason, SEND_MORE
