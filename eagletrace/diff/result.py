"""What a diff says: the objects behind `diff --json` and the terminal.

`to_json` gives the contract's keys, and a few more beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from eagletrace.diagnose.result import Proof, RunInfo
from eagletrace.diff import policy
from eagletrace.diff.trained import TrainingComparison

Verdict = Literal["same", "changed"]
Kind = Literal["added", "gone", "changed"]
Importance = Literal["decisive", "relevant", "minor", "noise"]
"""decisive: says what is drafted or verified; relevant: may act on it, and is judged by what it did; minor: is not
known to act on it; noise: differs between any two runs."""
State = Literal["changed", "same", "undetectable"]

EXIT_CODES: dict[str, int] = {"same": 0, "changed": 1}
LEVELS: tuple[Importance, ...] = ("decisive", "relevant", "minor", "noise")


@dataclass(frozen=True)
class FactChange:
    """One load-time fact that differs. `unrecorded`: the other run did not record it, so that it may be the same."""

    key: str
    a: Any
    b: Any
    kind: Kind
    importance: Importance
    why: str = ""
    unrecorded: bool = False

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "key": self.key, "a": self.a, "b": self.b, "kind": self.kind, "importance": self.importance,
            "unrecorded": self.unrecorded, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One comparison of behaviour: `difference` is b - a; the interval is of this comparison alone.

    `p` is None where nothing could be tested, and `p_corrected` is after correction for all comparisons. `detectable`
    is the smallest difference that these runs show with the chance of `policy.POWER`; `rounds_needed` are the rounds
    of each run with which the one seen would show. `observations` are the rounds (or positions) of a and b.
    """

    name: str
    a: float | None
    b: float | None
    difference: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    significant: bool = False
    p: float | None = None
    p_corrected: float | None = None
    state: State = "undetectable"
    detectable: float | None = None
    rounds_needed: int | None = None
    observations: tuple[int, int] = (0, 0)
    group: str = ""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "name": self.name, "a": self.a, "b": self.b, "difference": self.difference, "ci_low": self.ci_low,
            "ci_high": self.ci_high, "significant": self.significant, "p": self.p, "p_corrected": self.p_corrected,
            "state": self.state, "detectable": self.detectable, "rounds_needed": self.rounds_needed,
            "observations": list(self.observations), "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True)
class StageDifference:
    """States of one stage at the same positions of matched requests: worst cosine and relative error."""

    stage: str
    layer: int | None
    depth: int | None
    positions: int
    cosine: float
    max_rel_error: float
    tolerance: float
    first_bad_position: int | None
    request: str = ""

    @property
    def name(self) -> str:
        """The stage with its layer or depth, in words."""
        place = f" {self.layer}" if self.layer is not None else ""
        return f"{self.stage}{place}" + (f", depth {self.depth}" if self.depth is not None else "")

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "stage": self.stage, "layer": self.layer, "depth": self.depth, "positions": self.positions,
            "cosine": self.cosine, "max_rel_error": self.max_rel_error, "tolerance": self.tolerance,
            "first_bad_position": self.first_bad_position, "request": self.request,
        }  # fmt: skip


@dataclass(frozen=True)
class Parting:
    """Where two matched requests part first. `output_index` counts output tokens from 0; `depth` is that of the node
    (0: the root); `a` and `b` are the tokens there, `accepted_*` the verdicts."""

    what: Literal["output_token", "drafted_token", "tree", "target_token", "verdict"]
    request_a: str
    request_b: str
    prompt_hash: str
    output_index: int
    position: int
    depth: int
    a: Any
    b: Any

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "what": self.what, "request_a": self.request_a, "request_b": self.request_b,
            "prompt_hash": self.prompt_hash, "output_index": self.output_index, "position": self.position,
            "depth": self.depth, "a": self.a, "b": self.b,
        }  # fmt: skip


@dataclass(frozen=True)
class Divergence:
    """The matched requests: how many there are, how many part and at what, and the first place of all."""

    matched: int
    compared: int
    parted: int
    same_outputs: int
    by_kind: dict[str, int]
    first: Parting | None
    stages: tuple[StageDifference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first_stage(self) -> StageDifference | None:
        """The most upstream stage whose states part."""
        return next((s for s in self.stages if s.first_bad_position is not None), None)

    @property
    def other_state(self) -> StageDifference | None:
        """The most upstream stage with other states, not other roundings; of those that no drafted token is in."""
        early = (s for s in self.stages if (s.depth or 1) == 1 or (s.stage == "draft_in" and s.depth == 2))
        return next((s for s in early if s.cosine < policy.OTHER_STATE_COSINE), None)

    def to_json(self) -> dict[str, Any] | None:
        """The object as `diff --json` prints it; None where no requests match, or none parts."""
        stage = self.first_stage
        if self.first is None and stage is None:
            return None
        return {
            **(self.first.to_json() if self.first is not None else {"what": "state"}),
            "matched_requests": self.matched, "compared_requests": self.compared, "parted_requests": self.parted,
            "same_outputs": self.same_outputs, "by_kind": self.by_kind,
            "first_stage": None if stage is None else stage.to_json(), "stages": [s.to_json() for s in self.stages],
        }  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """The changes of facts that bear on a cause that was gained or lost (`cause` None: on a change without one).

    `proof` is what a replay says of the cause, of the run that has it; all None where none was made. `fix` is the
    remedy of a cause that was gained.
    """

    cause: str | None
    delta: Literal["gained", "lost", "behaviour"]
    changes: tuple[FactChange, ...]
    proof: Proof = field(default_factory=Proof)
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        keys = [c.key for c in self.changes]
        return {"cause": self.cause, "delta": self.delta, "keys": keys, "proof": self.proof.to_json(), "fix": self.fix}


@dataclass(frozen=True)
class CauseDelta:
    """Causes and alarms of B that A has not, the reverse, and those of both. `sure` are the causes gained or lost that
    are a change by themselves."""

    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    sure: tuple[str, ...] = ()
    checks_gained: tuple[str, ...] = ()
    checks_lost: tuple[str, ...] = ()
    checks_kept: tuple[str, ...] = ()
    verdicts: tuple[str, str] = ("", "")

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {"gained": list(self.gained), "lost": list(self.lost), "kept": list(self.kept)}

    def checks_json(self) -> dict[str, Any]:
        """Checks in alarm, as `diff --json` prints them."""
        return {"gained": list(self.checks_gained), "lost": list(self.checks_lost), "kept": list(self.checks_kept)}


@dataclass(frozen=True)
class Diff:
    """The whole answer for two runs. `why` says what made the verdict; `training` is there where one of the two is a
    validation step of the draft's training."""

    a: RunInfo
    b: RunInfo
    verdict: Verdict
    why: str
    contract: tuple[FactChange, ...]
    facts_same: int
    behaviour: tuple[Difference, ...]
    divergence: Divergence
    causes: CauseDelta
    explanations: tuple[Explanation, ...] = ()
    paired: bool = False
    notes: tuple[str, ...] = field(default=())
    training: TrainingComparison | None = None

    @property
    def exit_code(self) -> int:
        """Exit status of `eagletrace diff`."""
        return EXIT_CODES[self.verdict]

    def counts(self) -> dict[str, int]:
        """Facts by importance, and those that are the same."""
        changed = {level: sum(c.importance == level for c in self.contract) for level in LEVELS}
        return {"same": self.facts_same, **changed}

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "schema_version": 1,
            "runs": {"a": self.a.to_json(), "b": self.b.to_json()},
            "verdict": self.verdict,
            "why": self.why,
            "contract": [c.to_json() for c in self.contract],
            "contract_counts": self.counts(),
            "behaviour": [d.to_json() for d in self.behaviour],
            "paired": self.paired,
            "first_divergence": self.divergence.to_json(),
            "causes": self.causes.to_json(),
            "checks": self.causes.checks_json(),
            "explanations": [e.to_json() for e in self.explanations],
            "notes": list(self.notes),
            **({"training": self.training.to_json()} if self.training is not None else {}),
        }
