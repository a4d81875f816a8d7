"""The diff of two runs: facts, behaviour, the first divergence, causes, and a verdict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import duckdb

from eagletrace.diagnose import Diagnosis, diagnose
from eagletrace.diff import training
from eagletrace.diff.bearing import explain
from eagletrace.diff.behaviour import Behaviour, compare_behaviour
from eagletrace.diff.causes import compare_causes
from eagletrace.diff.contract import Contract, compare_contract
from eagletrace.diff.divergence import find_divergence
from eagletrace.diff.facts import Facts, read_facts
from eagletrace.diff.measures import ACCEPT_LENGTH, Measured, measure
from eagletrace.diff.result import CauseDelta, Diff, Divergence, Verdict
from eagletrace.diff.trained import TrainingComparison
from eagletrace.errors import DamagedRunError
from eagletrace.replay.result import Replay
from eagletrace.store import Run, open_run

RunOrPath: TypeAlias = "Run | str | os.PathLike[str]"
MEMORY = "640MB"  # of each run that a path is given of; both are open at once
TRAFFIC = 0.5
"""Share of prompts in common below which a difference may be that of the prompts."""


@dataclass(frozen=True)
class Digest:
    """What a comparison needs of one run; independent of the others."""

    facts: Facts
    measured: Measured
    diagnosis: Diagnosis
    replayed: bool = False


def diff(a: RunOrPath, b: RunOrPath, replayed: Sequence[Replay | None] = (None, None)) -> Diff:
    """What changed from run `a` to run `b`, and what it did to acceptance.

    Takes open runs or paths (then opened, and closed again). With `replayed`, what `eagletrace.replay.engine.replay`
    found of each run, causes are proved or dropped before they are compared. Raises NotARunError for a path that holds
    no run and DamagedRunError for values that cannot be counted with.
    """
    with contextlib.ExitStack() as stack:
        opened = [r if isinstance(r, Run) else stack.enter_context(open_run(r, memory=MEMORY)) for r in (a, b)]
        return diff_many(opened, replayed)[0]


def read(run: Run, replayed: Replay | None = None) -> Digest:
    """Count and diagnose a run; read again when a file turned out to be damaged meanwhile."""
    try:
        before = run.warnings_so_far
        digest = _read(run, replayed)
        return digest if run.warnings_so_far == before else _read(run, replayed)
    except (duckdb.Error, OverflowError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedRunError(f"{run.path} holds values that no server records: {what}") from None


def _read(run: Run, replayed: Replay | None) -> Digest:
    facts, measured = read_facts(run), measure(run)
    return Digest(facts, measured, diagnose(run, replayed), replayed is not None)


def compare(a: Run, of_a: Digest, b: Run, of_b: Digest) -> Diff:
    """The diff of two runs that were read."""
    beside = _beside_training(a, of_a, b, of_b)
    contract = compare_contract(of_a.facts, of_b.facts) if beside is None else training.contract_of(beside)
    behaviour = compare_behaviour(of_a.measured, of_b.measured)
    causes = compare_causes(of_a.diagnosis, of_b.diagnosis)
    divergence = find_divergence(a, b)
    if beside is None:
        verdict, why = judge(contract, behaviour, causes, divergence)
        notes = _notes(of_a, of_b, behaviour)
    else:
        verdict, why = training.judge(beside, causes)
        notes = list(beside.notes)
    told = explain(causes, contract.changes, of_a.diagnosis, of_b.diagnosis, changed=verdict == "changed")
    return Diff(
        of_a.diagnosis.run, of_b.diagnosis.run, verdict, why, contract.changes, contract.same, behaviour.differences,
        divergence, causes, told, behaviour.paired, tuple(notes), beside,
    )  # fmt: skip


def _beside_training(a: Run, of_a: Digest, b: Run, of_b: Digest) -> TrainingComparison | None:
    """Training beside serving, where one of the two runs is a recorded validation step."""
    if training.is_training(of_a.facts) == training.is_training(of_b.facts):
        return None
    first_a, first_b = (digest.diagnosis.acceptance.depth1 for digest in (of_a, of_b))
    states = training.read_states(a), training.read_states(b)
    return training.compare_training(of_a.facts, of_b.facts, first_a, first_b, *states)


def judge(contract: Contract, behaviour: Behaviour, causes: CauseDelta, divergence: Divergence) -> tuple[Verdict, str]:
    """The verdict and what made it: behaviour, causes, other states, or a fact that says what is drafted."""
    why: list[str] = []
    if behaviour.changed:
        first = behaviour.changed[0]
        more = f" and {len(behaviour.changed) - 1} more" if len(behaviour.changed) > 1 else ""
        name = first.name.replace("_", " ").replace(".", " ")
        why.append(f"behaviour changed significantly: {name}{more}")
    sure = [f"{word} {id_}" for word, ids in (("gained", causes.gained), ("lost", causes.lost)) for id_ in ids
            if id_ in causes.sure or behaviour.changed]  # fmt: skip
    if sure:
        why.append(f"causes changed: {', '.join(sure)}")
    if (state := divergence.other_state) is not None:
        why.append(f"the same tokens give other states: {state.name} (cosine {state.cosine:.2f})")
    if (decisive := contract.of("decisive")) and not why:
        why.append(f"{len(decisive)} fact(s) that say what is drafted changed, though no effect can be shown")
    if why:
        return "changed", "; ".join(why)
    return "same", _nothing(contract, behaviour)


def _nothing(contract: Contract, behaviour: Behaviour) -> str:
    """Why two runs are called the same, with what could not be seen."""
    length = next((d for d in behaviour.differences if d.name == ACCEPT_LENGTH), None)
    said = "no difference beyond what two runs of one configuration show"
    if length is not None and length.difference and length.state == "undetectable":
        needed = f": about {length.rounds_needed:,} rounds in each would" if length.rounds_needed else ""
        said = f"the accept length differs by {length.difference:+.2f}, which runs of this size cannot show{needed}"
    if relevant := len(contract.of("relevant")):
        said += f"; {relevant} fact(s) that may act on acceptance changed without an effect that shows"
    return said


def _notes(a: Digest, b: Digest, behaviour: Behaviour) -> list[str]:
    notes: list[str] = []
    for name, digest in (("A", a), ("B", b)):
        if not digest.measured.rounds:
            notes.append(
                f"run {name} holds no rounds to compare: send requests to the traced server, "
                "with EAGLETRACE_LEVEL=tokens"
            )
    prompts = min(a.measured.user_prompts, b.measured.user_prompts)
    if prompts and not notes and behaviour.shared_prompts < TRAFFIC * prompts:
        notes.append(
            f"only {behaviour.shared_prompts} prompts were sent to both runs: a difference may be that of the prompts; "
            "send both servers the same requests to be sure"
        )
    if a.replayed != b.replayed:
        one, other = ("A", "B") if a.replayed else ("B", "A")
        notes.append(
            f"run {one} was replayed and run {other} was not: causes that only a replay names, or drops, may come and "
            f"go for that; record {other} with EAGLETRACE_LEVEL=tensors"
        )
    return notes


def diff_many(runs: Sequence[Run], replayed: Sequence[Replay | None] = ()) -> list[Diff]:
    """Each run after the first against the first; `replayed` is empty or has what a replay found of each run."""
    digests = [read(run, found) for run, found in zip(runs, replayed or [None] * len(runs), strict=True)]
    return [compare(runs[0], digests[0], run, digest) for run, digest in zip(runs[1:], digests[1:], strict=True)]
