"""What is said of a draft in training and the draft that is served: the objects behind `training` of `diff --json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from eagletrace.diagnose.result import DepthRate

State = Literal["same", "rounded", "from_target", "left_out", "unknown", "differs", "missing", "not_loaded", "extra"]
"""same: the file has training's values; rounded: it has them in a narrower dtype; from_target: the file has none, the
served tensor is the target's, and so were training's values; left_out: only training needs it; differs: other values or
another shape; missing: the file has none; not_loaded: the file has it, and the engine dropped it; extra: the file has a
tensor that training has not."""
OTHER: tuple[State, ...] = ("differs", "missing", "not_loaded", "extra")
"""States with which another draft is served than was trained."""


@dataclass(frozen=True)
class TrainedTensor:
    """One tensor: `name` is training's, `key` the file's; `trained` None where training has none; `detail` in words.
    `checksums` are those of training and of the file."""

    name: str | None
    key: str | None
    state: State
    trained: bool | None
    detail: str = ""
    checksums: tuple[str | None, str | None] = (None, None)

    @property
    def label(self) -> str:
        """The name by which it is told."""
        return self.name or self.key or ""

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "name": self.name, "key": self.key, "state": self.state, "trained": self.trained, "detail": self.detail,
        }  # fmt: skip


@dataclass(frozen=True)
class Departure:
    """A setting in which serving departs from training: `key` is the contract's, or that of `hidden`."""

    key: str
    training: Any
    served: Any
    text: str

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {"key": self.key, "training": self.training, "served": self.served, "text": self.text}


@dataclass(frozen=True)
class Frozen:
    """A parameter that was not trained, and whether it is the target's (None: not known)."""

    name: str
    equals_target: bool | None

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {"name": self.name, "equals_target": self.equals_target}


@dataclass(frozen=True)
class TrainingComparison:
    """Training beside serving. `side` is the run of training, a or b; `training` and `served` are the counts of first
    drafts: right in the validation step, accepted when served."""

    side: Literal["a", "b"]
    tensors: tuple[TrainedTensor, ...]
    departures: tuple[Departure, ...]
    trained: tuple[str, ...]
    frozen: tuple[Frozen, ...]
    training: DepthRate
    served: DepthRate
    first_drafts_lost: bool
    notes: tuple[str, ...] = ()

    @property
    def other(self) -> tuple[TrainedTensor, ...]:
        """The tensors with which another draft is served."""
        return tuple(t for t in self.tensors if t.state in OTHER)

    @property
    def unknown(self) -> tuple[TrainedTensor, ...]:
        """The tensors that could not be compared."""
        return tuple(t for t in self.tensors if t.state == "unknown")

    @property
    def same_draft(self) -> bool | None:
        """Whether the served draft is the trained one; None where nothing could be compared."""
        if self.other:
            return False
        return True if any(t.state in ("same", "rounded") for t in self.tensors) else None

    def counts(self) -> Counter[str]:
        """Tensors by state."""
        return Counter(t.state for t in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """The object as `diff --json` prints it."""
        return {
            "run": self.side,
            "same_draft": self.same_draft,
            "tensors": [t.to_json() for t in self.tensors],
            "departures": [d.to_json() for d in self.departures],
            "trained": list(self.trained),
            "frozen": [f.to_json() for f in self.frozen],
            "first_drafts": {
                "training": {"positions": self.training.reached, "right": self.training.accepted,
                             "rate": self.training.rate},
                "served": {"rounds": self.served.reached, "accepted": self.served.accepted, "rate": self.served.rate},
            },
            "notes": list(self.notes),
        }  # fmt: skip
