"""The sequences and rounds of a run, as a replay needs them.

Positions count tokens of a sequence from 0. The draft pairs the target's hidden state at position p with the token at
p + 1, and predicts the token at p + 2: `anchor` p drafts for the round whose root stands at p + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagletrace.replay.result import NotRecordedError
from eagletrace.store import Run

MAX_POSITIONS = 16_384
"""Positions replayed unless more are asked for."""
_RECORD = (
    "record some requests with EAGLETRACE_LEVEL=tensors (and EAGLETRACE_AUX_LAYERS=all, so that other layers can be "
    "tried)"
)


@dataclass(frozen=True)
class Round:
    """One served verify round: `nodes` are the drafted ones in the engine's order, parents as indices into `nodes`
    (-1: the root); `correct` counts the accepted drafts."""

    number: int
    request_round: int
    anchor: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    rope_positions: tuple[int | None, ...]
    correct: int
    row: int = 0
    batch_size: int = 1
    time_ns: int = 0

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from depth 1 to each node."""
        found: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return found


@dataclass
class Sequence:
    """One request: prompt and output, and the target's states at its positions.

    `captured` [n, width] is what the draft was given at positions 0 to n - 1; `layers` has the inputs of further target
    layers, [n, H] each (the index of layers is the last layer's output). `n` is at most the number of tokens less one.
    """

    seq: int
    tokens: Tensor
    prompt: int
    cached: int
    captured: Tensor
    layers: Mapping[int, Tensor]
    rounds: list[Round]
    stages: dict[tuple[str, int, int], Tensor] = field(default_factory=dict[tuple[str, int, int], Tensor])
    given_tokens: Tensor | None = None
    """Token ids that the draft's extends were given, [n]; -1 where they were not recorded."""
    fused: Tensor | None = None
    """Recorded output of `fc`, [n, H]; NaN where it was not recorded."""
    chunk_ends: tuple[int, ...] = ()
    """First position after each prefill chunk of the prompt, the last one included."""

    @property
    def rows(self) -> int:
        """Positions with a hidden state and a token after it."""
        return self.captured.shape[0]


@dataclass(frozen=True)
class Recording:
    """What a replay works on. `steps`, `topk` and `nodes` (of a tree, the root left out) are the server's."""

    sequences: list[Sequence]
    steps: int
    topk: int
    nodes: int
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """Served rounds in all sequences."""
        return sum(len(s.rounds) for s in self.sequences)

    @property
    def positions(self) -> int:
        """Recorded positions in all sequences."""
        return sum(s.rows for s in self.sequences)


def tensor(dtype: str, shape: list[int], data: bytes) -> Tensor:
    """A stored tensor; floats as float32, integers as int64."""
    kind: Any = getattr(torch, dtype)
    value = torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)
    return value.float() if value.is_floating_point() else value.long()


def read(run: Run, max_positions: int = MAX_POSITIONS) -> Recording:
    """The user requests of a run whose states were recorded, the longest part of each that has no hole.

    NotRecordedError when there is none: the message says what to record.
    """
    if ("standalone",) in run.execute("SELECT actual ->> '$' FROM contract WHERE key = 'draft.family'"):
        raise NotRecordedError(
            f"{run.path} cannot be replayed: its draft is a language model of its own, which is given none of the "
            "target's hidden states; drafts of EAGLE-1 to EAGLE-3 and of multi-token prediction are replayed"
        )
    if not run.execute("SELECT 1 FROM tensors WHERE stage = 'target_aux' LIMIT 1"):
        raise NotRecordedError(f"{run.path} holds no hidden states to replay: {_RECORD}")
    keys = run.execute(
        "SELECT DISTINCT t.host, t.pid, t.request_seq, q.prompt_tokens, q.cached_tokens FROM tensors t "
        "JOIN requests q USING (host, pid, request_seq) WHERE t.stage = 'prompt_ids' ORDER BY ALL"
    )
    outputs = {
        (host, pid, seq): (list(ids), first)
        for host, pid, seq, ids, first in run.execute(
            "SELECT host, pid, request_seq, output_ids, first_index FROM outputs"
        )
    }
    rounds = _rounds(run)
    sequences: list[Sequence] = []
    prefixes: list[tuple[Tensor, Tensor, dict[int, Tensor]]] = []
    total = 0
    notes: list[str] = []
    for host, pid, seq, prompt, cached in keys:
        if total >= max_positions:
            notes.append(f"the first {len(sequences)} of {len(keys)} recorded requests were replayed")
            break
        output, first = outputs.get((host, pid, seq), ([], 0))
        if first:
            continue
        found = _sequence(run, (host, pid, seq), output, int(prompt), int(cached or 0), prefixes)
        if found is None:
            continue
        last = found.rows
        found.rounds = [r for r in rounds.get((host, pid, seq), []) if r.anchor < last]
        sequences.append(found)
        total += found.rows
    sequences = [s for s in sequences if s.rounds]
    if not sequences:
        raise NotRecordedError(f"{run.path} holds no request with both states and rounds: {_RECORD}")
    facts = dict(run.execute("SELECT key, actual FROM contract WHERE key LIKE 'server.speculative_%'"))
    depth = max(max(r.depths, default=1) for s in sequences for r in s.rounds)
    nodes = max(len(r.tokens) for s in sequences for r in s.rounds)
    topk = int(facts.get("server.speculative_eagle_topk") or 1)
    steps = int(facts.get("server.speculative_num_steps") or depth)
    return Recording(sequences, steps, topk, nodes, tuple(notes))


def _sequence(
    run: Run, key: tuple[str, int, int], output: list[int], prompt: int, cached: int,
    prefixes: list[tuple[Tensor, Tensor, dict[int, Tensor]]],
) -> Sequence | None:  # fmt: skip
    """One request's states, cached positions taken from an earlier request with the same prefix."""
    rows = run.execute(
        "SELECT stage, layer, round, depth, position, dtype, shape, data FROM tensors "
        "WHERE host = ? AND pid = ? AND request_seq = ? ORDER BY round NULLS FIRST, position",
        list(key),
    )
    ids = next((tensor(d, s, b) for stage, *_, d, s, b in rows if stage == "prompt_ids"), None)
    if ids is None:
        return None
    tokens = torch.cat([ids.long(), torch.tensor(output, dtype=torch.int64)])
    aux = _Rows(len(tokens))
    layers: dict[int, _Rows] = {}
    stages: dict[tuple[str, int, int], Tensor] = {}
    ends: list[int] = []
    given, fused = _Rows(len(tokens)), _Rows(len(tokens))
    for stage, layer, number, depth, position, dtype, shape, data in rows:
        value = tensor(dtype, shape, data)
        if stage == "target_aux":
            aux.put(int(position), value)
            if number is None:
                ends.append(int(position) + len(value))
        elif stage == "target_layer":
            layers.setdefault(int(layer), _Rows(len(tokens))).put(int(position), value)
        elif stage == "input_ids":
            given.put(int(position), value[:, None])
        elif stage == "fc_out":
            fused.put(int(position), value)
        elif stage in ("draft_out", "draft_in", "draft_top_ids"):
            stages[stage, int(position), int(depth or 0)] = value
    if cached:
        for earlier, states, more in prefixes:
            if len(earlier) >= cached and torch.equal(earlier[:cached], tokens[:cached]) and len(states) >= cached:
                aux.put(0, states[:cached], keep=True)
                for layer, values in more.items():
                    layers.setdefault(layer, _Rows(len(tokens))).put(0, values[:cached], keep=True)
                break
    captured = aux.dense(len(tokens) - 1)
    if captured is None:
        return None
    dense = {n: d for n, r in layers.items() if (d := r.dense(len(captured))) is not None and len(d) == len(captured)}
    prefixes.append((tokens, captured, dense))
    ids_given = given.sparse(len(captured), -1)
    return Sequence(
        key[2], tokens, prompt, cached, captured, dense, [], stages,
        None if ids_given is None else ids_given[:, 0], fused.sparse(len(captured), torch.nan), tuple(ends),
    )  # fmt: skip


class _Rows:
    """States by position, some of which may be missing."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._values: Tensor | None = None
        self._known = np.zeros(length, dtype=bool)

    def put(self, position: int, values: Tensor, *, keep: bool = False) -> None:
        """Take states at `position` on; with `keep`, only where there are none."""
        if self._values is None:
            self._values = torch.zeros(self._length, values.shape[-1], dtype=values.dtype)
        end = min(position + len(values), self._length)
        if position >= end or values.shape[-1] != self._values.shape[-1]:
            return
        where = np.arange(position, end)
        if keep:
            where = where[~self._known[position:end]]
        self._values[torch.from_numpy(where)] = values[torch.from_numpy(where - position)]
        self._known[where] = True

    def dense(self, length: int) -> Tensor | None:
        """States from position 0 to the first that is missing, `length` at most."""
        holes = np.flatnonzero(~self._known[:length])
        end = int(holes[0]) if len(holes) else length
        return self._values[:end] if self._values is not None and end > 0 else None

    def sparse(self, length: int, missing: float) -> Tensor | None:
        """States at the first `length` positions, `missing` where there are none; None if there are none at all."""
        if self._values is None:
            return None
        values = self._values[:length].clone()
        values[torch.from_numpy(~self._known[:length])] = missing
        return values


def _rounds(run: Run) -> dict[tuple[str, int, int], list[Round]]:
    """Counted rounds of user requests with their drafted nodes, in order."""
    rows = run.execute(
        "SELECT r.host, r.pid, r.request_seq, r.round, r.request_round, r.position, r.accepted, r.row, r.batch_size, "
        "r.time_unix_nano, list(d.token ORDER BY d.node), list(d.parent_node ORDER BY d.node), "
        "list(d.depth ORDER BY d.node), list(d.rope_position ORDER BY d.node), list(d.node ORDER BY d.node) "
        "FROM rounds r JOIN drafts d USING (host, pid, round, request_seq) GROUP BY ALL ORDER BY r.round"
    )
    found: dict[tuple[str, int, int], list[Round]] = {}
    for host, pid, seq, number, nth, position, accepted, row, size, time_ns, *drafts in rows:
        tokens, parents, depths, ropes, nodes = drafts
        place = {0: -1, **{node: i for i, node in enumerate(nodes)}}
        found.setdefault((host, pid, seq), []).append(
            Round(
                int(number), int(nth), int(position) - 1, tuple(tokens), tuple(place.get(p, -1) for p in parents),
                tuple(depths), tuple(ropes), int(accepted or 0), int(row or 0), int(size or 1), int(time_ns or 0),
            )
        )  # fmt: skip
    return found
