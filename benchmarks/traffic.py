"""Launches of a busy server, to measure what they cost: eight requests at once, chains of three drafts.

Tokens are independent draws by Zipf's law from a vocabulary of 128,000, and probabilities use all of their bits: text
repeats itself, so that what a server records takes less space.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import HiddenFacts, Part, RoundPacket, Values

VOCABULARY, DRAFT_VOCABULARY = 128_000, 32_000
ACCEPTANCE = (0.75, 0.65, 0.6)  # conditional, by depth
HIDDEN_STAGES = (("target_aux", 3, 4096), ("fc_in", 1, 12_288), ("fc_out", 1, 4096), ("draft_out", 1, 4096))
HIDDEN_EVERY = 32
OUTPUT_TOKENS = (200, 600)
ROUND_NS = 1_000_000
START_NS = 1_796_000_000_000_000_000
Array = npt.NDArray[np.int64]


class Traffic:
    """Makes one launch after another. `finished` collects requests that ended, until somebody takes them."""

    def __init__(self, batch: int = 8, drafts: int = 3, seed: int = 0) -> None:
        self._rng = rng = np.random.default_rng(seed)
        self._batch, self._nodes, self._now = batch, drafts + 1, START_NS
        weights = 1 / (np.arange(DRAFT_VOCABULARY) + 2.7) ** 1.05
        self._cumulated = np.cumsum(weights / weights.sum())
        self._draft_ids = _about_in_order(rng, DRAFT_VOCABULARY)  # frequent tokens tend to have small ids
        self._tokens = np.sort(_about_in_order(rng, VOCABULARY)[:DRAFT_VOCABULARY])
        nodes = self._nodes
        self._int_parts = (
            Part("draft_tokens", nodes), Part("target_tokens", nodes), Part("positions", nodes),
            Part("accept_index", nodes), Part("draft_ids", drafts), Part("rope_positions", drafts - 1),
        )  # fmt: skip
        self._float_parts = tuple(Part(n, drafts) for n in ("better", "draft_probs", "draft_logits", "draft_means"))
        self._made = 0
        self.round = 0
        self.requests = [self._request() for _ in range(batch)]
        self._states: list[RequestState] = []
        self._later = 0
        self._new_batch()
        self._positions = rng.integers(20, 400, batch)
        self._left = rng.integers(*OUTPUT_TOKENS, batch)
        self._roots = self._draw((batch,))[1]
        self.finished: list[RequestState] = []

    def _request(self) -> RequestState:
        self._made += 1
        return RequestState(
            seq=self._made, rid=f"{int(self._rng.integers(1 << 62)):032x}", kind="user", sampled=True,
            start_ns=self._now, prompt_ids=[1, 2, 3], prompt_tokens=100, cached_tokens=0,
        )  # fmt: skip

    def _new_batch(self) -> None:
        """Lists that launches share until a request ends, as those of a server do."""
        for state in self._states:
            state.request_round += self._later
        self._states, self._later = list(self.requests), 0
        self._rounds = [state.request_round for state in self._states]
        self._widths, self._fusions, self._cached = ([value] * self._batch for value in (12_288, 1, 0))

    def _draw(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Draft-vocabulary ids and the tokens that they stand for."""
        rank = np.minimum(np.searchsorted(self._cumulated, self._rng.random(shape)), DRAFT_VOCABULARY - 1)
        ids = self._draft_ids[rank]
        return ids, self._tokens[ids]

    def launch(self) -> RoundPacket:
        """The next launch."""
        rng, bs, nodes = self._rng, self._batch, self._nodes
        self.round += 1
        self._now = now = self._now + ROUND_NS + int(rng.integers(ROUND_NS // 5))
        ids, drafts = self._draw((bs, nodes - 1))
        right = rng.random((bs, nodes - 1)) < np.resize(ACCEPTANCE, nodes - 1)
        correct = np.cumprod(right, axis=1).sum(axis=1)
        target = self._draw((bs, nodes))[1]
        target[:, :-1] = np.where(right, drafts, target[:, :-1])
        positions = self._positions[:, None] + np.arange(nodes)
        steps = np.arange(nodes)
        accept = np.where(steps <= correct[:, None], steps + np.arange(bs)[:, None] * nodes, -1)
        better = np.where(right, 0, 1 + np.minimum(rng.pareto(0.8, right.shape) * 2, 30_000).astype(np.int64))
        ints = [np.column_stack([self._roots, drafts]), target, positions, accept, ids, positions[:, 2:] - 2]
        packed = np.concatenate([a.ravel() for a in ints]).astype(np.int64)
        probs, entropies = rng.beta(2, 1, right.size), rng.gamma(1.5, 1.2, right.size)
        logits = rng.normal(20, 4, right.size)
        means = logits - np.log(probs) - entropies
        floats = np.concatenate([better.ravel(), probs, logits, means]).astype(np.float32)
        values = Values(self._int_parts, lambda: packed, self._float_parts, lambda: floats)
        self._later += 1
        packet = RoundPacket(
            round=self.round, start_ns=now, requests=self._states, request_rounds=self._rounds, later=self._later,
            nodes=nodes, values=values, graph=True, target_hidden_width=12_288, draft_input_widths=self._widths,
            fc_applied=self._fusions, committed=[int(c) + 1 for c in correct], counted=[True] * bs,
            engine_accepted=[int(c) for c in correct], cached_tokens=self._cached,
            hidden=self._hidden() if self.round % HIDDEN_EVERY == 0 else [],
            phases=self._phases(now),
        )  # fmt: skip
        self._advance(target[np.arange(bs), correct], correct)
        return packet

    def _phases(self, now: int) -> list[tuple[str, int, int]]:
        ends = now + np.sort(self._rng.integers(ROUND_NS // 10, ROUND_NS, 3))
        starts = [now, *ends[:-1]]
        names = ("draft", "verify", "extend_decode")
        return [(n, int(a), int(b)) for n, a, b in zip(names, starts, ends, strict=True)]

    def _hidden(self) -> list[HiddenFacts]:
        found: list[HiddenFacts] = []
        for stage, slots, width in HIDDEN_STAGES:
            rms, kurtosis = self._rng.random((2, self._batch, slots), dtype=np.float32)
            none = np.zeros((self._batch, slots), dtype=np.int64)
            found.append(HiddenFacts(stage, slots, width, lambda r=rms: r, lambda n=none: n, lambda k=kurtosis: k))
        return found

    def _advance(self, roots: Array, correct: Array) -> None:
        self._roots = roots
        self._positions = self._positions + correct + 1
        self._left = self._left - correct - 1
        ended_rows = np.flatnonzero(self._left <= 0)
        for row in ended_rows:
            ended = self.requests[row]
            ended.end_ns, ended.finish_reason = self._now, "length"
            self.finished.append(ended)
            self.requests[row] = self._request()
            self._positions[row] = self._rng.integers(20, 400)
            self._left[row] = self._rng.integers(*OUTPUT_TOKENS)
        if len(ended_rows):
            self._new_batch()


def _about_in_order(rng: np.random.Generator, size: int) -> Array:
    return np.argsort(np.log(np.arange(size) + 1) + rng.normal(0, 1, size))
