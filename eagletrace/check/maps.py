"""A map from draft ids to target ids, and what can be said of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MapFacts:
    """A map from draft ids to target ids; `in_range` is None without a vocabulary, `agreement` without a `t2d`."""

    low: int
    high: int
    in_range: bool | None
    unique: bool
    monotone: bool
    agreement: float | None

    @property
    def sane(self) -> bool:
        """In the vocabulary, each token once."""
        return bool(self.in_range) and self.unique

    def to_json(self) -> dict[str, Any]:
        """As the facts `d2t.as_offsets` and `d2t.as_ids` of a trace."""
        return {"min": self.low, "max": self.high, "in_range": self.in_range, "unique": self.unique,
                "monotone": self.monotone, "t2d_agreement": self.agreement}  # fmt: skip


def map_facts(ids: Ids, vocabulary: int | None, t2d: npt.NDArray[np.bool_] | None) -> MapFacts:
    """Facts of a map of at least one id."""
    low, high = int(ids.min()), int(ids.max())
    inside = ids[(ids >= 0) & (ids < len(t2d))] if t2d is not None else ids
    return MapFacts(
        low, high,
        None if vocabulary is None else low >= 0 and high < vocabulary,
        len(np.unique(ids)) == len(ids),
        bool(np.all(ids[1:] > ids[:-1])),
        None if t2d is None else float(np.count_nonzero(t2d[inside])) / len(ids),
    )  # fmt: skip
