"""One verify launch as the hot path leaves it, and its rows. The arithmetic is done on the background thread.

Shapes: bs requests, D nodes of a verify tree (root included), S draft steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.record.requests import RequestState

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


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
    """Facts of one launch. Callables give host arrays once the device has copied them; None if not observed."""

    round: int
    start_ns: int
    requests: list[RequestState]
    request_rounds: list[int]
    nodes: int  # D
    draft_tokens: Callable[[], Ints] | None = None  # [bs * D]
    target_tokens: Callable[[], Ints] | None = None  # [bs * D]
    positions: Callable[[], Ints] | None = None  # [bs * D]
    next_token: Callable[[], Ints] | None = None  # [bs, D], first child within the request, -1 for none
    next_sibling: Callable[[], Ints] | None = None  # [bs, D], next sibling within the request, -1 for none
    accept_index: Callable[[], Ints] | None = None  # [bs, S + 1], global node ids, -1 padded
    draft_ids: Callable[[], Ints] | None = None  # [bs, D], draft-vocabulary ids, -1 unknown
    ranks: Callable[[], Ints] | None = None  # [bs, D], 0 unknown, -1 not in the draft vocabulary
    in_vocab: Callable[[], Ints] | None = None  # [bs, D], 1 or 0, -1 unknown
    rope_positions: Callable[[], Ints] | None = None  # [bs, D], -1 unknown
    draft_logprobs: Callable[[], Floats] | None = None  # [bs, D], NaN unknown
    draft_entropies: Callable[[], Floats] | None = None  # [bs, D], NaN unknown
    engine_has_probs: bool = False
    graph: bool | None = None
    target_hidden_width: int | None = None
    draft_input_widths: Sequence[int | None] = ()
    fc_applied: Sequence[bool | None] = ()
    committed: list[int] | None = None
    counted: list[bool] | None = None
    engine_accepted: list[int] | None = None
    cached_tokens: Sequence[int | None] = ()
    hidden: list[HiddenFacts] = field(default_factory=list[HiddenFacts])
    phases: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])


@dataclass(slots=True)
class Verdicts:
    """Host arrays of one launch, [bs, D] each."""

    draft_tokens: Ints
    target_tokens: Ints
    positions: Ints
    parents: Ints
    depths: Ints
    on_path: Bools
    accepted: Ints  # [bs], correct drafts


def verdicts(packet: RoundPacket) -> Verdicts | None:
    """Read the copied arrays and walk the trees; None if the launch died before its verify."""
    if packet.target_tokens is None or packet.draft_tokens is None or packet.accept_index is None:
        return None
    shape = (len(packet.requests), packet.nodes)
    parents, depths = _tree(packet, shape)
    accept = packet.accept_index()
    on_path = np.zeros(shape, dtype=np.bool_)
    rows = np.broadcast_to(np.arange(shape[0])[:, None], accept.shape)
    kept = accept >= 0
    on_path[rows[kept], accept[kept] - rows[kept] * packet.nodes] = True
    positions = packet.positions().reshape(shape) if packet.positions is not None else np.full(shape, -1)
    return Verdicts(
        packet.draft_tokens().reshape(shape), packet.target_tokens().reshape(shape), positions,
        parents, depths, on_path, on_path.sum(axis=1) - 1,
    )  # fmt: skip


def _tree(packet: RoundPacket, shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Parents ([bs, D], -1 for the root) and depths from first-child and next-sibling links."""
    bs, nodes = shape
    parents = np.full(shape, -1, dtype=np.int64)
    depths = np.zeros(shape, dtype=np.int64)
    if packet.next_token is None or packet.next_sibling is None:
        parents[:] = np.arange(-1, nodes - 1)
        depths[:] = np.arange(nodes)
        return parents, depths
    child, sibling = packet.next_token().reshape(shape), packet.next_sibling().reshape(shape)
    rows = np.arange(bs)
    # A node's index is greater than its parent's and its elder siblings', so one pass in order suffices.
    for node in range(nodes):
        has = child[:, node] > 0
        parents[rows[has], child[has, node]] = node
        has = sibling[:, node] > 0
        parents[rows[has], sibling[has, node]] = parents[has, node]
        if node:
            known = parents[:, node] >= 0
            depths[known, node] = depths[rows[known], parents[known, node]] + 1
    return parents, depths


class Columns:
    """Collects columns of many launches; values of -1 (or NaN) marked unknown become NULL."""

    def __init__(self) -> None:
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}
        self._nulls: dict[str, list[Bools]] = {}
        self.rows = 0

    def add(self, rows: int, **values: tuple[npt.NDArray[Any] | None, Bools | None] | npt.NDArray[Any]) -> None:
        """Add `rows` rows; a value is an array, or (array, mask of NULLs), or (None, None) for all NULL."""
        self.rows += rows
        for name, value in values.items():
            array, nulls = value if isinstance(value, tuple) else (value, None)
            if array is None:
                array, nulls = np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.bool_)
            self._parts.setdefault(name, []).append(array)
            self._nulls.setdefault(name, []).append(np.zeros(rows, dtype=np.bool_) if nulls is None else nulls)

    def arrow(self, types: Callable[[str], Any]) -> dict[str, Any]:
        """Arrow arrays by column; `types` gives each column's Arrow type."""
        import pyarrow as pa

        columns: dict[str, Any] = {}
        for name, parts in self._parts.items():
            values = np.concatenate([p.astype(object) if p.dtype == object else p for p in parts])
            columns[name] = pa.array(
                values, type=types(name), mask=np.concatenate(self._nulls[name]), from_pandas=False, safe=False
            )
        return columns


def _optional(values: Sequence[Any] | None, size: int) -> tuple[npt.NDArray[Any] | None, Bools | None]:
    if not values:
        return None, None
    nulls = np.array([v is None for v in values], dtype=np.bool_)
    kind = np.bool_ if any(isinstance(v, bool) for v in values) else np.int64
    return np.array([0 if v is None else v for v in values], dtype=kind)[:size], nulls[:size]


def _negative(values: npt.NDArray[Any]) -> Bools:
    return values < 0


def _below_one(values: npt.NDArray[Any]) -> Bools:
    return values < 1


def add_round_rows(out: Columns, packet: RoundPacket, seen: Verdicts | None, keep: Bools) -> None:
    """Rows of `rounds`, one per kept request."""
    bs = len(packet.requests)
    index = np.flatnonzero(keep)
    n = len(index)

    def pick(values: Sequence[Any] | None) -> tuple[npt.NDArray[Any] | None, Bools | None]:
        array, nulls = _optional(values, bs)
        return (None, None) if array is None or nulls is None else (array[index], nulls[index])

    def whole(value: int | bool | None) -> tuple[npt.NDArray[Any] | None, Bools | None]:
        return (None, None) if value is None else (np.full(n, value), None)

    out.add(
        n,
        round=np.full(n, packet.round),
        request_round=np.array(packet.request_rounds)[index],
        request_seq=np.array([r.seq for r in packet.requests])[index],
        request_id=np.array([r.rid for r in packet.requests], dtype=object)[index],
        row=index.astype(np.int64),
        batch_size=np.full(n, bs),
        position=(None, None) if seen is None else (seen.positions[index, 0], seen.positions[index, 0] < 0),
        cached_tokens=pick(packet.cached_tokens),
        graph=whole(packet.graph),
        drafted=np.full(n, packet.nodes - 1),
        accepted=(None, None) if seen is None else seen.accepted[index],
        committed=pick(packet.committed),
        counted=pick(packet.counted),
        engine_reported_accepted=pick(packet.engine_accepted),
        target_hidden_width=whole(packet.target_hidden_width),
        draft_input_width=pick(packet.draft_input_widths),
        fc_applied=pick(packet.fc_applied),
        time_unix_nano=np.full(n, packet.start_ns),
    )


def add_node_rows(
    drafts: Columns, verifies: Columns, packet: RoundPacket, seen: Verdicts, keep: Bools,
    token: Callable[[Ints], Ints], redacted: bool,
) -> None:  # fmt: skip
    """Rows of `drafts` (nodes 1..D-1) and `verifies` (nodes 0..D-1) for kept requests."""
    index = np.flatnonzero(keep)
    shape = (len(index), packet.nodes)
    node = np.broadcast_to(np.arange(packet.nodes), shape)
    seq = np.broadcast_to(np.array([r.seq for r in packet.requests])[index][:, None], shape)
    parents, depths = seen.parents[index], seen.depths[index]
    safe = np.maximum(parents, 0)
    path = seen.on_path[index]
    target = seen.target_tokens[index]
    expected = np.take_along_axis(target, safe, axis=1)
    root = node == 0
    floating = seen.positions[index] < 0

    def host(source: Callable[[], Any] | None) -> npt.NDArray[Any] | None:
        return None if source is None else source().reshape(len(packet.requests), packet.nodes)[index]

    def known(values: npt.NDArray[Any] | None, unknown: Callable[[Any], Any], part: Bools) -> Any:
        return (None, None) if values is None else (values[part], unknown(values[part]))

    every = np.ones(shape, dtype=np.bool_)
    ranks, inside = host(packet.ranks), host(packet.in_vocab)
    verifies.add(
        node.size,
        round=np.full(node.size, packet.round),
        request_seq=seq.ravel(),
        node=node.ravel(),
        parent_node=(parents.ravel(), root.ravel()),
        depth=depths.ravel(),
        position=(seen.positions[index].ravel(), floating.ravel()),
        draft_token=token(seen.draft_tokens[index].ravel()),
        expected_token=(token(expected.ravel()), root.ravel()),
        target_token=token(target.ravel()),
        reached=np.where(root, True, np.take_along_axis(path, safe, axis=1)).ravel(),
        accepted=(path.ravel(), root.ravel()),
        target_token_in_draft_vocab=known(inside, _negative, every),
        draft_rank_of_target_token=known(ranks, _below_one, every),
        target_logprob_of_draft_token=(None, None),
        grammar_masked=(None, None),
    )
    drafted = ~root
    ids = None if redacted else host(packet.draft_ids)
    logprobs, entropies = host(packet.draft_logprobs), host(packet.draft_entropies)
    engine_probs = np.exp(logprobs) if logprobs is not None and packet.engine_has_probs else None
    drafts.add(
        int(drafted.sum()),
        round=np.full(int(drafted.sum()), packet.round),
        request_seq=seq[drafted],
        node=node[drafted],
        parent_node=parents[drafted],
        depth=depths[drafted],
        position=(seen.positions[index][drafted], floating[drafted]),
        rope_position=known(host(packet.rope_positions), _negative, drafted),
        token=token(seen.draft_tokens[index][drafted]),
        draft_vocab_id=known(ids, _negative, drafted),
        draft_prob=known(engine_probs, np.isnan, drafted),
        draft_logprob=known(logprobs, np.isnan, drafted),
        draft_entropy=known(entropies, np.isnan, drafted),
    )


def add_hidden_rows(out: Columns, packet: RoundPacket, keep: Bools) -> None:
    """Rows of `hidden`: one per kept request, stage and slot. Values that are not finite stay as they are."""
    index = np.flatnonzero(keep)
    seqs = np.array([r.seq for r in packet.requests])[index]
    for facts in packet.hidden:
        size = len(index) * facts.slots
        one = facts.slots == 1
        out.add(
            size,
            round=np.full(size, packet.round),
            request_seq=np.repeat(seqs, facts.slots),
            stage=np.full(size, facts.stage, dtype=object),
            slot=(None, None) if one else np.tile(np.arange(facts.slots), len(index)),
            width=np.full(size, facts.width),
            rms=facts.rms()[index].ravel(),
            nan_count=facts.nan_count()[index].ravel(),
            kurtosis=facts.kurtosis()[index].ravel(),
        )
