"""One verify launch as the hot path leaves it. The arithmetic is done on the background thread.

Shapes: bs requests, D nodes of a verify tree (root included), S draft steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.record.requests import RequestState

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
UNKNOWN = -1  # of numbers that are never negative
# What the draft's logits say of drafted tokens, in the order in which it is computed and read; see `Values`.
DRAFT_FLOATS = ("better", "draft_probs", "draft_logits", "draft_means")


def on_host() -> bool:
    """Values on the host are ready."""
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """`bs * width` values in a packed array: row-major [bs, width], or [width, bs] if `by_step`.

    A part of nodes that is narrower than the tree speaks of its last nodes.
    """

    name: str
    width: int
    by_step: bool = False


@lru_cache(maxsize=1024)
def interned(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The same object for the same parts."""
    return parts


@dataclass(slots=True)
class Values:
    """What the device gave for one launch: one array of integers and one of float32, each a sequence of parts.

    The callables give host arrays once the device has copied them. Launches whose parts are the same object are read
    together, so parts are made once for each shape and kept.

    Integer parts: `draft_tokens`, `target_tokens`, `positions` (D each), `accept_index` (S + 1: node ids within the
    launch, -1 padded), `next_token`, `next_sibling` (D, within the request, -1 for none; without them the tree is a
    chain), `draft_ids` (draft vocabulary), `rope_positions`; float parts: `better` (how many tokens the draft preferred
    to the target's choice), `draft_probs` and `draft_logits` (of the drafted tokens, by the draft's own logits),
    `draft_means` (of the logits under the draft's distribution).
    """

    int_parts: tuple[Part, ...]
    ints: Callable[[], Ints]
    float_parts: tuple[Part, ...] = ()
    floats: Callable[[], Floats] | None = None
    ready: Callable[[], bool] = on_host

    @staticmethod
    def of(arrays: Mapping[str, npt.NDArray[Any]]) -> Values:
        """Pack host arrays of shape [bs, width]."""
        chosen: list[tuple[tuple[Part, ...], npt.NDArray[Any]]] = []
        for floating, dtype in ((False, np.int64), (True, np.float32)):
            mine = {n: a for n, a in arrays.items() if np.issubdtype(a.dtype, np.floating) == floating}
            packed = np.concatenate([a.ravel() for a in mine.values()] or [np.empty(0)]).astype(dtype)
            chosen.append((tuple(Part(n, a.shape[1]) for n, a in mine.items()), packed))
        (int_parts, ints), (float_parts, floats) = ((interned(parts), packed) for parts, packed in chosen)
        return Values(int_parts, lambda: ints, float_parts, lambda: floats)


@dataclass(slots=True)
class DraftedTogether:
    """What the draft's logits say of chains of some launches, computed at once: `launches` times `bs` requests."""

    steps: int  # S
    bs: int
    launches: int = 0
    ids: Callable[[], Ints] | None = None  # [S * launches * bs], draft-vocabulary ids
    floats: Callable[[], Floats] | None = None  # as many for each of `DRAFT_FLOATS`
    closed: bool = False  # nothing more will be known


@dataclass(slots=True)
class Drafted:
    """One launch's part of what was computed together, or that of some of its requests."""

    together: DraftedTogether
    index: int


@dataclass(slots=True)
class HiddenFacts:
    """Statistics of one stage of a launch, [bs, slots] each."""

    stage: str
    slots: int
    width: int
    rms: Callable[[], Floats]
    nan_count: Callable[[], Ints]
    kurtosis: Callable[[], Floats]


@dataclass(slots=True)
class RoundPacket:
    """Facts of one launch. Lists have one entry a request; -1 in them, or no list, is what was not observed."""

    round: int
    start_ns: int
    requests: list[RequestState]
    request_rounds: list[int]
    nodes: int  # D; 0 before the verify
    values: Values | None = None
    drafted: tuple[Drafted, ...] = ()  # of a chain; its requests one part after the other
    engine_has_probs: bool = False
    graph: bool | None = None
    target_hidden_width: int | None = None
    draft_input_widths: Sequence[int] = ()
    fc_applied: Sequence[int] = ()
    committed: list[int] | None = None
    counted: list[bool] | None = None
    engine_accepted: list[int] | None = None
    cached_tokens: Sequence[int] = ()
    hidden: Sequence[HiddenFacts] = ()
    phases: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    later: int = 0  # added to each of `request_rounds`, a list that launches of the same requests share

    @property
    def bytes(self) -> int:
        """About what it holds in memory, the device's copies included."""
        # Of a request's values: 2 D tokens, D positions, and a few for each drafted token.
        return 1500 + len(self.requests) * (200 + 80 * self.nodes) + 600 * len(self.hidden)
