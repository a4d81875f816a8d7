"""What a replay says, as plain data: the objects behind `replay --json` and the `proof` of a diagnosis.

No torch here, so that a diagnosis without a replay needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagletrace.errors import EagletraceError

REPRODUCES = 0.98
"""Share of served draft tokens from which on a recipe is said to draft what the server drafted. Float32 against float32
leaves out ties alone; bfloat16 on a GPU costs about one token in fifty."""


class ReplayError(EagletraceError):
    """A run, draft or target that cannot be replayed: the message says what is missing, and what to do."""


class NotRecordedError(ReplayError):
    """The run holds no states to replay."""

    exit_code = 3


class UnknownDraftError(ReplayError):
    """A draft of a kind that the reference does not have."""


@dataclass(frozen=True)
class Potential:
    """Accept length that a recipe reaches on the recorded states and tokens, with a 95 % interval."""

    accept_length: float
    ci_low: float
    ci_high: float
    rounds: int = 0

    def to_json(self) -> dict[str, float]:
        """The object of `replay --json`."""
        return {"accept_length": self.accept_length, "ci_low": self.ci_low, "ci_high": self.ci_high}


@dataclass(frozen=True)
class StageAgreement:
    """Recorded against recomputed values of one stage; `first_bad_position` is where they part, None if they do not."""

    stage: str
    cosine: float | None
    max_rel_error: float | None
    first_bad_position: int | None
    values: int = 0

    def to_json(self) -> dict[str, Any]:
        """The object of `replay --json`."""
        return {
            "stage": self.stage, "cosine": self.cosine, "max_rel_error": self.max_rel_error,
            "first_bad_position": self.first_bad_position,
        }  # fmt: skip


@dataclass(frozen=True)
class Hypothesis:
    """One named change, or several together, and what it explains.

    With `repairs`, `change` is what has to be done to the files, else what the engine did. `reproduces_served` is the
    share of served draft tokens that the reference drafts under the fault, `repaired_accept_length` what it reaches
    when the fault is gone. `parts` are the cause ids of a joint hypothesis.
    """

    cause: str
    change: str
    reproduces_served: float | None
    repaired_accept_length: float | None
    served_accept_length: float | None = None
    parts: tuple[str, ...] = ()
    repairs: bool = False
    repaired_low: float | None = None
    gain: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The object of `replay --json`."""
        return {
            "cause": self.cause, "change": self.change, "reproduces_served": self.reproduces_served,
            "repaired_accept_length": self.repaired_accept_length,
        }  # fmt: skip


@dataclass(frozen=True)
class Replay:
    """The whole answer.

    `fidelity` and `potential` are of the draft as its checkpoint and configuration say; `explained` is the share of
    served tokens that the reference reproduces with all that was found, `best` the accept length with everything
    repaired. `found` are the hypotheses that hold, the best first; `others` those that were tried and came nearest;
    `harmless` the causes whose departure was seen and costs nothing, `undecided` what seems to cost something, or to
    regain it, by fewer rounds than show it. `embedding_copy` says what the embeddings in the
    draft's file are: none, the target's (`same`), `noise`, or those of an `other` model; `deaf` whether the draft uses
    nothing of the target's hidden states (None: it cannot be told).
    """

    fidelity: dict[int, float]
    overall: float
    potential: Potential
    served: Potential
    explained: float
    as_served: Potential
    best: Potential | None = None
    stages: tuple[StageAgreement, ...] = ()
    found: tuple[Hypothesis, ...] = ()
    others: tuple[Hypothesis, ...] = ()
    harmless: tuple[str, ...] = ()
    undecided: tuple[Hypothesis, ...] = ()
    embedding_copy: str = "none"
    deaf: bool | None = None
    requests: int = 0
    tokens: int = 0
    rounds: int = 0
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the draft as it should be drafts what was served."""
        return self.overall >= REPRODUCES

    @property
    def unexplained_loss(self) -> bool:
        """Whether the draft as its files say would surely be accepted more, and nothing that was tried explains why."""
        return self.explained < REPRODUCES and self.potential.ci_low > self.served.ci_high

    def to_json(self) -> dict[str, Any]:
        """The object of `replay --json`."""
        return {
            "schema_version": 1,
            "fidelity": {str(depth): share for depth, share in self.fidelity.items()},
            "potential": self.potential.to_json(),
            "stages": [stage.to_json() for stage in self.stages],
            "hypotheses": [h.to_json() for h in (*self.found, *self.others)],
        }
