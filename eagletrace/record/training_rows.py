"""Rows of a validation step of a draft in training, in the tables of a served run.

An anchor is a position of a text at which a chain of K drafts begins: one round with one node at each depth. Row i of
the step's arrays is the anchor whose root is token i; its draft at depth k is compared with the target's choice at row
i + k - 1, as the training's own accuracy does. Shapes: B rows of texts, S positions, K depths.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.launch_rows import Column, Columns
from eagletrace.record.requests import prompt_hash
from eagletrace.record.rounds import Bools, Floats, Ints
from eagletrace.record.totals import Totals
from eagletrace.record.writer import TraceWriter

PUBLISH_ROWS = 50_000  # rows of `verifies` that wait for a file
_TABLES = ("rounds", "drafts", "verifies")
_TYPES = {name: {f.name: f.type for f in arrow_schema(TABLES[name])} for name in _TABLES}


@dataclass(frozen=True)
class Step:
    """What one forward of a validation step drafted; of the optional arrays -1 or NaN is what was not observed.

    `tokens`, `positions` and `texts` (the number of the text that a position belongs to) are [B, S], and so are
    `counted` (positions that the loss looks at), `targets` (target-vocabulary ids of the target's choice) and
    `targets_in_vocab`; what was drafted is [K, B, S].
    """

    tokens: Ints
    positions: Ints
    texts: Ints
    counted: Bools
    targets: Ints
    drafted: Ints
    draft_ids: Ints
    width: int
    targets_in_vocab: Bools | None = None
    better: Ints | None = None
    logprobs: Floats | None = None
    entropies: Floats | None = None


@dataclass(frozen=True)
class _Chains:
    """Chains of the anchors of a step, one row each: A anchors, K depths."""

    batch: Ints  # [A], row and position of the root
    root: Ints
    lengths: Ints  # [A], depths whose target is known
    right: Bools  # [A, K], the draft is the target's choice
    accepted: Ints  # [A]

    def known(self, depths: int) -> Bools:
        """[A, K]: depths that the chain has."""
        return np.arange(depths) < self.lengths[:, None]

    def first(self, count: int) -> _Chains:
        """The first anchors."""
        return _Chains(
            self.batch[:count], self.root[:count], self.lengths[:count], self.right[:count], self.accepted[:count]
        )


def chains(step: Step) -> _Chains:
    """The chains of all counted positions; a chain ends where its text, the mask or the step ends."""
    depths, _, positions = step.drafted.shape
    lengths = np.zeros(step.counted.shape, dtype=np.int64)
    alive = step.counted.copy()
    right = np.zeros(step.drafted.shape, dtype=np.bool_)
    for depth in range(min(depths, positions)):
        left = positions - depth
        alive[:, left:] = False
        alive[:, :left] &= step.counted[:, depth:] & (step.texts[:, :left] == step.texts[:, depth:])
        lengths += alive
        right[depth, :, :left] = step.drafted[depth, :, :left] == step.targets[:, depth:]
    batch, root = np.nonzero(lengths)
    lengths, right = lengths[batch, root], right[:, batch, root].T
    right &= np.arange(depths) < lengths[:, None]
    return _Chains(batch, root, lengths, right, np.cumprod(right, axis=1).sum(axis=1))


class TrainingRows:
    """Turns steps into rows of `requests` (one a text), `rounds`, `drafts`, `verifies` and `totals`.

    Rows of at most `limit` anchors are kept; the totals count all of them. Token ids are NULL when `redacted`.
    """

    def __init__(self, writer: TraceWriter, limit: int, *, redacted: bool = False) -> None:
        self.writer, self.limit, self.redacted = writer, limit, redacted
        self.anchors = self.kept = self.texts = 0
        self.reached: list[int] = []
        self.accepted: list[int] = []
        self._totals = Totals()
        self._waiting = 0

    def add(self, step: Step) -> list[tuple[int, int, int, int]]:
        """Count a step and keep rows of it; (round, request_seq, row, position) of each anchor that was kept."""
        found = chains(step)
        self._count(found, step.drafted.shape[0])
        kept = min(len(found.root), max(self.limit - self.kept, 0))
        first = self.anchors + 1
        self.anchors += len(found.root)
        if not kept:
            return []
        self.kept += kept
        found = found.first(kept)
        seqs, order = self._number_texts(step, found)
        rounds = np.arange(first, first + kept)
        self._add_rounds(step, found, rounds, seqs, order)
        self._add_nodes(step, found, rounds, seqs)
        if self._waiting > PUBLISH_ROWS:
            self.publish()
        return list(zip(rounds.tolist(), seqs.tolist(), found.batch.tolist(), found.root.tolist(), strict=True))

    def publish(self) -> None:
        """Write what waits, and the totals since the last time; OSError where that fails."""
        self._waiting = 0
        failed = [error for _, _, error in self.writer.publish() if error is not None]
        total = self._totals.take(time.time_ns())
        if total is not None:
            self.writer.write("totals", [total])
        if failed:
            raise failed[0]

    def _count(self, found: _Chains, depths: int) -> None:
        for length in np.unique(found.lengths):
            self._totals.add_chains(np.bincount(found.accepted[found.lengths == length]).tolist(), int(length))
        for counts in (self.reached, self.accepted):
            counts.extend([0] * (depths - len(counts)))
        for depth in range(depths):
            reached = (found.accepted >= depth) & (found.lengths > depth)
            self.reached[depth] += int(reached.sum())
            self.accepted[depth] += int((found.accepted > depth).sum())

    def _number_texts(self, step: Step, found: _Chains) -> tuple[Ints, Ints]:
        """Number of the text of each anchor, and its place among the text's anchors, from 1; writes the texts' rows."""
        pairs = np.stack([found.batch, step.texts[found.batch, found.root]])
        names, inverse, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
        order = np.empty(len(inverse), dtype=np.int64)
        for number in range(names.shape[1]):
            order[inverse == number] = np.arange(1, counts[number] + 1)
        now = time.time_ns()
        rows: list[dict[str, Any]] = []
        for number, (batch, text) in enumerate(names.T.tolist()):
            ids = step.tokens[batch, step.texts[batch] == text].tolist()
            seq = self.texts + number + 1
            rows.append({
                "request_seq": seq, "request_id": f"text-{seq}", "request_kind": "user",
                "prompt_hash": None if self.redacted else prompt_hash(ids), "prompt_tokens": len(ids),
                "start_time_unix_nano": now, "end_time_unix_nano": now, "time_unix_nano": now,
            })  # fmt: skip
        self.writer.write("requests", rows)
        seqs = inverse + self.texts + 1
        self.texts += names.shape[1]
        return seqs, order

    def _add(self, table: str, columns: Columns) -> None:
        self.writer.add_columns(table, columns.arrow(_TYPES[table].__getitem__), columns.rows)

    def _add_rounds(self, step: Step, found: _Chains, rounds: Ints, seqs: Ints, order: Ints) -> None:
        count = len(rounds)
        out = Columns()
        out.add(
            count, round=rounds, request_seq=seqs, request_round=order,
            request_id=np.array([f"text-{seq}" for seq in seqs], dtype=object), row=np.zeros(count, np.int64),
            batch_size=np.ones(count, np.int64), position=step.positions[found.batch, found.root],
            drafted=found.lengths, accepted=found.accepted, counted=np.ones(count, np.bool_),
            target_hidden_width=np.full(count, step.width), draft_input_width=np.full(count, step.width),
            time_unix_nano=np.full(count, time.time_ns()),
        )  # fmt: skip
        self._add("rounds", out)

    def _add_nodes(self, step: Step, found: _Chains, rounds: Ints, seqs: Ints) -> None:
        """Node 0 is the root, node k the draft at depth k."""
        depths, size = step.drafted.shape[0], step.counted.shape[1]
        known = found.known(depths)
        nodes = np.arange(depths + 1)
        here = np.concatenate([np.ones((len(rounds), 1), np.bool_), known], axis=1)
        ahead = np.minimum(found.root[:, None] + nodes, size - 1)
        choices = step.targets[found.batch[:, None], ahead]  # after each node
        has_choice = np.concatenate([known, np.zeros((len(rounds), 1), np.bool_)], axis=1)
        tokens = np.concatenate([step.tokens[found.batch, found.root][:, None], _of(step.drafted, found)], axis=1)
        on_path = np.concatenate([np.ones((len(rounds), 1), np.int64), np.cumprod(found.right, axis=1)], axis=1)
        reached = np.concatenate([on_path[:, :1], on_path[:, :-1]], axis=1).astype(np.bool_)
        each = {
            "round": np.broadcast_to(rounds[:, None], here.shape)[here],
            "request_seq": np.broadcast_to(seqs[:, None], here.shape)[here],
            "node": np.broadcast_to(nodes, here.shape)[here],
            "position": (step.positions[found.batch, found.root][:, None] + nodes)[here],
        }
        root = each["node"] == 0
        inside, ranks = self._of_targets(step, found, here)
        out = Columns()
        out.add(
            len(root), **each, depth=each["node"], parent_node=(np.maximum(each["node"] - 1, 0), root),
            draft_token=self._token(tokens[here]), reached=reached[here],
            expected_token=self._token(np.concatenate([choices[:, :1], choices[:, :-1]], axis=1)[here], root),
            target_token=self._token(choices[here], ~has_choice[here]),
            accepted=(on_path[here].astype(np.bool_), root), target_token_in_draft_vocab=inside,
            draft_rank_of_target_token=ranks,
        )  # fmt: skip
        self._add("verifies", out)
        self._waiting += len(root)
        drafts = Columns()
        drafts.add(
            int(known.sum()), **{name: values[~root] for name, values in each.items()},
            parent_node=each["node"][~root] - 1, depth=each["node"][~root],
            token=self._token(_of(step.drafted, found)[known]),
            draft_vocab_id=None if self.redacted else _of(step.draft_ids, found)[known],
            draft_logprob=_optional(step.logprobs, found, known),
            draft_entropy=_optional(step.entropies, found, known),
        )  # fmt: skip
        self._add("drafts", drafts)

    @staticmethod
    def _of_targets(step: Step, found: _Chains, here: Bools) -> tuple[Column, Column]:
        """Whether the choice before each node is in the draft vocabulary, and its rank; NULL at the root."""
        depths, size = step.drafted.shape[0], step.counted.shape[1]
        none = np.ones((len(found.root), 1), np.bool_)
        ahead = np.minimum(found.root[:, None] + np.arange(depths), size - 1)
        unknown = np.concatenate([none, np.zeros((len(found.root), depths), np.bool_)], axis=1)
        inside: Column = None
        if step.targets_in_vocab is not None:
            values = np.concatenate([none, step.targets_in_vocab[found.batch[:, None], ahead]], axis=1)
            inside = values[here], unknown[here]
        if step.better is None:
            return inside, None
        better = np.concatenate([np.full((len(found.root), 1), -1), _of(step.better, found)], axis=1)[here]
        return inside, (better + 1, better < 0)

    def _token(self, ids: Ints, nulls: Bools | None = None) -> Column:
        if self.redacted:
            return None
        return ids if nulls is None else (ids, nulls)


def _of(values: npt.NDArray[Any], found: _Chains) -> npt.NDArray[Any]:
    """[K, B, S] at the anchors, [A, K]."""
    return values[:, found.batch, found.root].T


def _optional(values: Floats | None, found: _Chains, known: Bools) -> Column:
    if values is None:
        return None
    chosen = _of(values, found)[known]
    return chosen, np.isnan(chosen)


def hidden_rows(
    kept: Sequence[tuple[int, int, int, int]], stage: str, statistics: dict[str, npt.NDArray[Any]], width: int
) -> list[dict[str, Any]]:
    """Rows of `hidden` of one stage: `statistics` are [anchors, slots] each, in the order of `kept`."""
    rows: list[dict[str, Any]] = []
    for number, (round_, seq, _, _) in enumerate(kept):
        slots = statistics["rms"].shape[1]
        for slot in range(slots):
            values = {name: array[number, slot].item() for name, array in statistics.items()}
            rows.append({
                "round": round_, "request_seq": seq, "stage": stage, "slot": slot if slots > 1 else None,
                "width": width, **values,
            })  # fmt: skip
    return rows
