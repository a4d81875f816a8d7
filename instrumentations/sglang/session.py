"""What the hooks of one scheduler process share."""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import torch

from eagletrace.instrumentations.landing import KeyRecord
from eagletrace.record.recorder import Recorder
from eagletrace.record.requests import RequestState, is_sampled

MAX_REQUESTS = 20_000  # states kept; what leaves without a result (aborted while retracted) must not pile up
MAX_CARRIED = 4096  # requests whose logits are kept for their next round
STALE_LAUNCHES = 1000  # a request that has not run for so many launches was retracted or aborted
WARMUP_TEXT = "The capital city of France is"


@dataclass
class ForwardFacts:
    """Widths of one forward of the draft, and whether its fusion layer ran."""

    input_width: int | None = None
    fc_applied: bool | None = None
    fc_shapes: list[list[int]] | None = None


@dataclass
class CarriedLogits:
    """Where a request's depth 1 was drafted: a row of the draft's logits of an extend, shape [rows, Vd]."""

    logits: torch.Tensor | None
    row: int
    facts: ForwardFacts
    launch: int = 0


@dataclass
class Session:
    """State of one traced scheduler process."""

    recorder: Recorder
    engine_version: str
    server_args: Any = None
    target_runner: Any = None
    draft_runner: Any = None
    worker: Any = None
    serving: bool = False
    keys: list[KeyRecord] = field(default_factory=list[KeyRecord])
    params: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    from_file: dict[str, str | None] = field(default_factory=dict[str, str | None])
    replaced: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    draft_facts: dict[str, Any] = field(default_factory=dict[str, Any])
    requested_layers: list[int] | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    undo: list[Any] = field(default_factory=list[Any])
    # vocabulary map as served, on the draft's device
    hot_token_id: torch.Tensor | None = None  # [Vd]
    draft_id_of: torch.Tensor | None = None  # [V], -1 where the draft has no such token
    # requests and launches
    requests: dict[str, RequestState] = field(default_factory=dict[str, RequestState])
    next_seq: int = 0
    launches: int = 0
    launch: Any = None
    phase: str = ""
    forward: ForwardFacts = field(default_factory=ForwardFacts)
    first_extend_seen: bool = False
    carried: OrderedDict[str, CarriedLogits] = field(default_factory=OrderedDict[str, CarriedLogits])
    done: deque[str] = field(default_factory=deque[str])
    fc: Any = None
    extend_output: Any = None
    softmax_chains: bool = False  # whether the engine computes probabilities for chains (softmax: to 0.5.11)
    dead: bool = False
    warmup_ids: list[list[int]] = field(default_factory=list[list[int]])

    def count(self, what: str) -> int:
        """Count a call; returns how many there were."""
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]

    def request(self, req: Any) -> RequestState:
        """The state of an engine request, registered on first sight."""
        state = self.requests.get(req.rid)
        if state is None or (state.end_ns is not None and not req.finished()):  # ids may be used again
            self.requests.pop(req.rid, None)
            state = self.requests[req.rid] = self._register(req)
            if len(self.requests) > MAX_REQUESTS:
                self.requests.pop(next(iter(self.requests)))
        return state

    def carry(self, rid: str, logits: CarriedLogits) -> None:
        """Keep a request's logits for its next round; forget those of requests that will have none."""
        self.carried[rid] = logits
        self.carried.move_to_end(rid)
        while True:
            oldest = next(iter(self.carried.values()))
            if len(self.carried) <= MAX_CARRIED and oldest.launch >= self.launches - STALE_LAUNCHES:
                return
            self.carried.popitem(last=False)

    def forget(self, rid: str) -> None:
        """Drop the state of a request that finished long ago, unless its id is in use again."""
        state = self.requests.get(rid)
        if state is not None and state.end_ns is not None:
            del self.requests[rid]

    def _register(self, req: Any) -> RequestState:
        self.next_seq += 1
        rid = str(req.rid)
        sampling = getattr(req, "sampling_params", None)
        state = RequestState(
            seq=self.next_seq, rid=rid, kind=self.request_kind(req),
            sampled=is_sampled(rid, self.recorder.settings.sample), start_ns=time.time_ns(),
            prompt_ids=req.origin_input_ids, prompt_tokens=len(req.origin_input_ids),
            temperature=getattr(sampling, "temperature", None),
            has_grammar=getattr(req, "grammar", None) is not None,
            has_image=getattr(req, "multimodal_inputs", None) is not None,
        )  # fmt: skip
        # SGLang stores temperature 0 as temperature 1 with top_k 1 (sampling_params.py, 0.5.9 and 0.5.23).
        if getattr(sampling, "top_k", None) == 1 and state.temperature == 1.0:
            state.temperature = 0.0
        return state

    def prefilled(self, req: Any, state: RequestState) -> None:
        """Record a request's last token, which a prefill gave and no launch followed."""
        self.launches += 1
        count = min(len(req.output_ids), getattr(req, "finished_len", None) or len(req.output_ids))
        position = len(req.origin_input_ids) + count - 1
        self.recorder.prefilled(self.launches, state, position, int(req.output_ids[count - 1]))

    def request_kind(self, req: Any) -> str:
        """user, warmup or health.

        The warm-up is what a server sends to itself before it is ready: one of two fixed prompts with 8 tokens
        (http_server.py `_execute_server_warmup`, 0.5.9 and 0.5.23).
        """
        if str(req.rid).startswith("HEALTH_CHECK"):
            return "health"
        if getattr(getattr(req, "sampling_params", None), "max_new_tokens", None) != 8:
            return "user"
        text = getattr(req, "origin_input_text", None) or ""
        ids = list(req.origin_input_ids)
        own = text == WARMUP_TEXT or "Describe the image." in text or ids in self.warmup_ids
        return "warmup" if own or ids == [10, 11, 12] else "user"

    def learn_warmup(self, tokenizer: Any) -> None:
        """How the warm-up's text reads as token ids: newer releases drop the text before the scheduler."""
        if tokenizer is None:
            return
        inner = getattr(tokenizer, "tokenizer", tokenizer)
        self.warmup_ids = [list(inner.encode(WARMUP_TEXT)), list(inner.encode(WARMUP_TEXT, add_special_tokens=False))]

    def crashed(self, where: str, error: BaseException, phase: str) -> None:
        """Record an exception that passes through a hook, and write everything: the process is about to die."""
        if self.dead or not isinstance(error, Exception):
            return
        self.dead = True
        text = "".join(traceback.format_exception(error))
        self.recorder.event(
            "engine_exception", where=where, type=type(error).__name__, message=str(error)[:2000],
            traceback=text[-8000:], phase=phase,
        )  # fmt: skip
        self.recorder.flush(2.0)
