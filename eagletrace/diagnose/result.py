"""What a diagnosis says: the objects behind `diagnose --json`, the terminal and the report.

`to_json` gives exactly the contract's keys; what stands beside them is for people.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from eagletrace.diagnose.statistics import wilson

Verdict = Literal["fault", "healthy", "weak_draft", "inconclusive", "no_speculation"]
Status = Literal["ok", "alarm", "unknown", "not_applicable"]
Severity = Literal["critical", "warning"]

EXIT_CODES: dict[str, int] = {"healthy": 0, "fault": 1, "weak_draft": 1, "inconclusive": 3, "no_speculation": 3}


@dataclass(frozen=True)
class DepthRate:
    """Acceptance at one depth: `rate` is conditional on having reached it, `unconditional` is per round."""

    depth: int
    reached: int
    accepted: int
    rounds: int = 0

    @property
    def rate(self) -> float | None:
        """Accepted / reached, the conditional rate; None if never reached."""
        return self.accepted / self.reached if self.reached else None

    @property
    def unconditional(self) -> float | None:
        """Accepted / all rounds; None without rounds."""
        return self.accepted / self.rounds if self.rounds else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of `rate`."""
        return wilson(self.accepted, self.reached)

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {"depth": self.depth, "reached": self.reached, "accepted": self.accepted, "rate": self.rate}


@dataclass(frozen=True)
class Acceptance:
    """Own counts of user requests' counted rounds.

    `histogram[k]` is the number of rounds with k correct drafts; `source` says which table they come from;
    `engine_difference` says why the engine's own figure differs.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_depth: tuple[DepthRate, ...] = ()
    engine_reported_accept_length: float | None = None
    engine_difference: str = ""
    source: str = "verifies"

    @property
    def accept_length(self) -> float | None:
        """1 + accepted / rounds; None without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    @property
    def depth1(self) -> DepthRate:
        """Depth 1, with zeros where nothing was drafted."""
        return self.by_depth[0] if self.by_depth else DepthRate(1, 0, 0, self.rounds)

    @property
    def histogram(self) -> tuple[int, ...]:
        """A round has at least k correct drafts exactly when a node at depth k was accepted."""
        at_least = [self.rounds, *(d.accepted for d in self.by_depth), 0]
        return tuple(a - b for a, b in pairwise(at_least))

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accept_length": self.accept_length or 1.0,  # the contract's value where no round was recorded
            "engine_reported_accept_length": self.engine_reported_accept_length,
            "by_depth": [d.to_json() for d in self.by_depth],
        }


@dataclass(frozen=True)
class Evidence:
    """What one check found: `query` is the check's file name without `.sql`, `rows` its rows."""

    query: str
    text: str
    rows: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {"query": self.query, "text": self.text, "rows": list(self.rows)}


@dataclass(frozen=True)
class Proof:
    """What a replay says of the cause; all None where none was made.

    `reproduces_served` is the share of served draft tokens that the reference drafts under the fault.
    """

    reproduces_served: float | None = None
    served_accept_length: float | None = None
    repaired_accept_length: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {
            "reproduces_served": self.reproduces_served,
            "served_accept_length": self.served_accept_length,
            "repaired_accept_length": self.repaired_accept_length,
        }


@dataclass(frozen=True)
class Cause:
    """A named cause. `confidence` is in (0, 1]; where it comes from stands in `diagnose/policy.py`."""

    id: str
    confidence: float
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...]
    fix: str
    proof: Proof = field(default_factory=Proof)

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {
            "id": self.id,
            "confidence": round(self.confidence, 3),
            "severity": self.severity,
            "title": self.title,
            "evidence": [e.to_json() for e in self.evidence],
            "fix": self.fix,
            "proof": self.proof.to_json(),
        }


@dataclass(frozen=True)
class Check:
    """The outcome of one check; `title` and `causes` (the ids it bears on) are for people."""

    id: str
    status: Status
    reason: str
    title: str = ""
    causes: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {"id": self.id, "status": self.status, "reason": self.reason}


@dataclass(frozen=True)
class RunInfo:
    """What was served: run id, engine version, paths of draft and target as the server was given them."""

    id: str
    sglang: str | None = None
    draft: str | None = None
    target: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {"id": self.id, "sglang": self.sglang, "draft": self.draft, "target": self.target}


@dataclass(frozen=True)
class Diagnosis:
    """The whole answer. `why` and `next` are the verdict's reason and the next step, one or two sentences each."""

    run: RunInfo
    verdict: Verdict
    acceptance: Acceptance
    causes: tuple[Cause, ...] = ()
    checks: tuple[Check, ...] = ()
    why: str = ""
    next: str = ""

    @property
    def exit_code(self) -> int:
        """Exit status of `eagletrace diagnose`."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The object as `diagnose --json` prints it."""
        return {
            "schema_version": 1,
            "run": self.run.to_json(),
            "verdict": self.verdict,
            "acceptance": self.acceptance.to_json(),
            "causes": [c.to_json() for c in self.causes],
            "checks": [c.to_json() for c in self.checks],
        }
