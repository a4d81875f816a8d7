"""Rows of `rounds`, `drafts`, `verifies` and `hidden`, column by column, from launches that were read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import UNKNOWN, Bools, Ints, RoundPacket
from eagletrace.record.trees import Trees

Array = npt.NDArray[Any]
Column = Array | tuple[Array, Bools] | None  # values, values and which of them are NULL, or all NULL
Rows = Ints | slice
EVERY, DRAFTED = np.s_[:, :], np.s_[:, 1:]
"""Of the nodes of trees, [R, D]: all of them, and those behind the root."""
SEQ, RID = attrgetter("seq"), attrgetter("rid")
NUMPY_OF = {
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "float": np.float32,
}  # fmt: skip


class Columns:
    """Collects columns of one table."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[Array | None, Bools | None, int]]] = {}
        self.rows = 0

    def add(self, rows: int, **values: Column) -> None:
        """Add `rows` rows."""
        self.rows += rows
        for name, value in values.items():
            array, nulls = value if isinstance(value, tuple) else (value, None)
            self._parts.setdefault(name, []).append((array, nulls, rows))

    def arrow(self, types: Callable[[str], Any]) -> dict[str, Any]:
        """Arrow arrays by column; `types` gives each column's Arrow type. Columns that are all NULL are left out."""
        return {
            name: _arrow(parts, types(name))
            for name, parts in self._parts.items()
            if any(array is not None for array, _, _ in parts)
        }


def _arrow(parts: Sequence[tuple[Array | None, Bools | None, int]], type_: Any) -> Any:
    from eagletrace.record.columns import from_numpy, from_values

    dtype = NUMPY_OF.get(str(type_), object)
    values = [np.zeros(rows, dtype) if a is None else a.astype(dtype, copy=False) for a, _, rows in parts]
    mask = None
    if any(a is None or nulls is not None for a, nulls, _ in parts):
        mask = np.concatenate([np.full(n, a is None) if nulls is None else nulls for a, nulls, n in parts])
    whole = np.concatenate(values)
    if dtype is object:
        return from_values([None if null else v for v, null in zip(whole, mask, strict=True)] if mask is not None
                           else list(whole), type_)  # fmt: skip
    return from_numpy(whole, type_, mask)


def _known(values: Array | None, part: Any) -> Column:
    """A part of some values, flat, of which negative ones were not observed."""
    if values is None:
        return None
    flat_values = values[part].ravel()
    return flat_values, flat_values < 0


def _number(values: Array | None, part: Any) -> Column:
    """A part of some values, flat, of which NaN was not observed."""
    if values is None:
        return None
    flat_values = values[part].ravel()
    return flat_values, np.isnan(flat_values)


def _kept(keep: Bools) -> Rows:
    """What takes the kept rows of an array: all of them, as a rule, without a copy."""
    return slice(None) if keep.all() else np.flatnonzero(keep)


def flat(values: Sequence[Sequence[Any]], dtype: Any = np.int64) -> Array:
    """One array of the lists of some launches, most of which share theirs."""
    first = values[0]
    if all(one is first for one in values):
        return np.tile(np.array(first, dtype=dtype), len(values))
    return np.array(list(chain.from_iterable(values)), dtype=dtype)


def of_requests(packets: Sequence[RoundPacket], fact: Callable[[RequestState], Any], dtype: Any) -> Array:
    """A fact of the requests of some launches, [R]; looked at once for each list of them."""
    known: dict[int, list[Any]] = {}
    for requests in (p.requests for p in packets):
        if id(requests) not in known:
            known[id(requests)] = [fact(r) for r in requests]
    return flat([known[id(p.requests)] for p in packets], dtype)


def _facts(packets: Sequence[RoundPacket], name: str, index: Rows) -> Column:
    """A fact that launches have for each request, or for none."""
    unknown = [UNKNOWN] * len(packets[0].requests)
    values = flat([getattr(p, name) or unknown for p in packets])[index]
    return values, values == UNKNOWN


def _per_launch(packets: Sequence[RoundPacket], values: Sequence[Any], index: Rows) -> Array:
    return np.repeat(np.array(values, dtype=np.int64), len(packets[0].requests))[index]


def add_round_rows(out: Columns, packets: Sequence[RoundPacket], trees: Trees | None, keep: Bools) -> None:
    """Rows of `rounds`, one per kept request. `keep` is [R]."""
    index = _kept(keep)
    n, bs = int(np.count_nonzero(keep)), len(packets[0].requests)

    def launch(values: Sequence[Any]) -> Column:
        known = _per_launch(packets, [UNKNOWN if v is None else v for v in values], index)
        return known, known == UNKNOWN

    position = None if trees is None or trees.positions is None else trees.positions[index, 0]
    out.add(
        n,
        round=_per_launch(packets, [p.round for p in packets], index),
        request_round=flat([p.request_rounds for p in packets])[index]
        + _per_launch(packets, [p.later for p in packets], index),
        request_seq=of_requests(packets, SEQ, np.int64)[index],
        request_id=of_requests(packets, RID, object)[index],
        row=np.flatnonzero(keep) % bs,
        batch_size=np.full(n, bs),
        position=None if position is None else (position, position < 0),
        cached_tokens=_facts(packets, "cached_tokens", index),
        graph=launch([p.graph for p in packets]),
        drafted=np.full(n, packets[0].nodes - 1) if packets[0].nodes else None,
        accepted=None if trees is None else trees.accepted[index],
        committed=_facts(packets, "committed", index),
        counted=_facts(packets, "counted", index),
        engine_reported_accepted=_facts(packets, "engine_accepted", index),
        target_hidden_width=launch([p.target_hidden_width for p in packets]),
        draft_input_width=_facts(packets, "draft_input_widths", index),
        fc_applied=_facts(packets, "fc_applied", index),
        time_unix_nano=_per_launch(packets, [p.start_ns for p in packets], index),
    )


def add_node_rows(
    drafts: Columns, verifies: Columns, packets: Sequence[RoundPacket], trees: Trees, keep: Bools,
    token: Callable[[Ints], Ints], draft_id_of: Ints | None, redacted: bool,
) -> None:  # fmt: skip
    """Rows of `drafts` (nodes 1..D-1) and `verifies` (nodes 0..D-1) for kept requests.

    `draft_id_of` is the served vocabulary map, [V], -1 where the draft has no such token; None if unknown.
    """
    rows, count = _kept(keep), int(np.count_nonzero(keep))
    nodes = trees.parents.shape[1]
    shape = (count, nodes)
    node = np.broadcast_to(np.arange(nodes), shape)
    root = node == 0
    seq = of_requests(packets, SEQ, np.int64)[rows]
    round_ = _per_launch(packets, [p.round for p in packets], rows)
    expected = trees.expected_tokens[rows]
    parents, depths, positions = trees.parents[rows], trees.depths[rows], _rows(trees.positions, rows)
    draft_tokens = token(trees.draft_tokens[rows].ravel()).reshape(shape)
    inside = None if draft_id_of is None else _inside(expected, draft_id_of)
    probs, better = _rows(trees.probs, rows), _rows(trees.better, rows)
    ranks = None
    if better is not None:
        known = np.isfinite(better) if probs is None else np.isfinite(better) & ~np.isnan(probs)
        ranks = np.where(known if inside is None else known & inside, better + 1, 0).astype(np.int64)
    verifies.add(
        node.size,
        round=np.repeat(round_, nodes),
        request_seq=np.repeat(seq, nodes),
        node=node.ravel(),
        parent_node=(parents.ravel(), root.ravel()),
        depth=depths.ravel(),
        position=_known(positions, EVERY),
        draft_token=draft_tokens.ravel(),
        expected_token=(token(expected.ravel()), root.ravel()),
        target_token=token(trees.target_tokens[rows].ravel()),
        reached=trees.reached[rows].ravel(),
        accepted=(trees.on_path[rows].ravel(), root.ravel()),
        target_token_in_draft_vocab=None if inside is None else (inside.ravel(), root.ravel()),
        draft_rank_of_target_token=None if ranks is None else (ranks.ravel(), (ranks < 1).ravel() | root.ravel()),
    )
    drafts.add(
        count * (nodes - 1),
        round=np.repeat(round_, nodes - 1),
        request_seq=np.repeat(seq, nodes - 1),
        node=node[DRAFTED].ravel(),
        parent_node=parents[DRAFTED].ravel(),
        depth=depths[DRAFTED].ravel(),
        position=_known(positions, DRAFTED),
        rope_position=_known(_rows(trees.rope_positions, rows), DRAFTED),
        token=draft_tokens[DRAFTED].ravel(),
        draft_vocab_id=None if redacted else _known(_rows(trees.draft_ids, rows), DRAFTED),
        draft_prob=_number(probs, DRAFTED) if packets[0].engine_has_probs else None,
        draft_logprob=_number(_rows(trees.logprobs, rows), DRAFTED),
        draft_entropy=_number(_rows(trees.entropies, rows), DRAFTED),
    )


def _rows(values: Array | None, rows: Rows) -> Array | None:
    return None if values is None else values[rows]


def _inside(tokens: Ints, draft_id_of: Ints) -> Bools:
    """Whether the draft can say a token."""
    safe = np.clip(tokens, 0, len(draft_id_of) - 1)
    return (draft_id_of[safe] >= 0) & (safe == tokens)


def add_hidden_rows(out: Columns, packet: RoundPacket, keep: Bools) -> None:
    """Rows of `hidden` of one launch: one per kept request, stage and slot. Values that are not finite stay so."""
    index = np.flatnonzero(keep)
    seqs = np.array([r.seq for r in packet.requests])[index]
    for facts in packet.hidden:
        size = len(index) * facts.slots
        out.add(
            size,
            round=np.full(size, packet.round),
            request_seq=np.repeat(seqs, facts.slots),
            stage=np.full(size, facts.stage, dtype=object),
            slot=None if facts.slots == 1 else np.tile(np.arange(facts.slots), len(index)),
            width=np.full(size, facts.width),
            rms=facts.rms()[index].ravel(),
            nan_count=facts.nan_count()[index].ravel(),
            kurtosis=facts.kurtosis()[index].ravel(),
        )
