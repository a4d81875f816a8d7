"""What the hooks of one scheduler process share."""

from __future__ import annotations

import logging
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eagletrace.instrumentations.landing import KeyRecord
from eagletrace.instrumentations.sglang.deferred import Deferred
from eagletrace.instrumentations.sglang.graph_state import GraphState
from eagletrace.record.recorder import Recorder
from eagletrace.record.requests import RequestState, is_sampled

CRASH_FLUSH_S = 0.5  # with the recorder's own wait at exit a hanging disk delays a death by less than two seconds
logger = logging.getLogger("eagletrace")
MAX_REQUESTS = 20_000  # states kept; what leaves without a result (aborted while retracted) must not pile up
MAX_CARRIED = 4096  # requests whose logits are kept for their next round
STALE_LAUNCHES = 1000  # a request that has not run for so many launches was retracted or aborted
WARMUP_TEXT = "The capital city of France is"


def _nothing() -> None:
    """Where nobody is told."""


@dataclass(slots=True)
class ForwardFacts:
    """Widths of one forward of the draft, and whether its fusion layer ran."""

    input_width: int | None = None
    fc_applied: bool | None = None
    fc_shapes: list[list[int]] | None = None

    def known(self) -> tuple[int, int]:
        """Width and whether the fusion layer ran, -1 where it was not seen."""
        width, applied = self.input_width, self.fc_applied
        return -1 if width is None else width, -1 if applied is None else int(applied)


@dataclass(slots=True)
class Extend:
    """An extend of the draft, where the next depth 1 of each of its requests was drafted: logits [requests, Vd].

    `later` are those of the deeper drafts, where a draft of each step makes them all in the extend.
    """

    states: list[RequestState]
    logits: torch.Tensor | None
    facts: ForwardFacts
    launch: int = 0
    later: Sequence[torch.Tensor] = ()


UNSEEN = ForwardFacts()  # of an extend that no hook has seen yet


@dataclass(slots=True)
class Batch:
    """The requests of the last launch: most launches have those of the launch before. Lists are shared by launches."""

    reqs: list[Any]
    states: list[RequestState]
    cached_tokens: list[int]
    rounds: list[int] = field(default_factory=list[int])  # of each request, before these launches
    launches: int = 0
    seen: tuple[ForwardFacts, list[int], list[int]] | None = None  # of the last extend, as `extended` gives it
    counted: list[bool] = field(default_factory=list[bool])  # of requests: whether the next result is theirs
    most: int = 0  # launches of these requests that may wait to be understood, if they are only noted (steady.py)
    stream: Any = None  # of the forwards, where they run on a GPU and are only noted
    # Of requests whose launches are only noted, after the last result: the lengths of their outputs (None: to be looked
    # at before the next), and whether they go on.
    lengths: list[int] | None = None
    goes_on: list[bool] = field(default_factory=list[bool])

    def extended(self, facts: ForwardFacts) -> tuple[list[int], list[int]]:
        """For each request the width of an extend that was all of theirs, and whether the fusion layer ran; -1 where it
        was not seen."""
        seen = self.seen
        if seen is None or seen[0] != facts:
            width, fused = facts.known()
            seen = self.seen = facts, [width] * len(self.states), [fused] * len(self.states)
        return seen[1], seen[2]


@dataclass(slots=True)
class Session:
    """State of one traced scheduler process."""

    recorder: Recorder
    engine_version: str
    server_args: Any = None
    # what every round reads, close together
    serving: bool = False
    lean: bool = False  # the phases of a launch are told by what runs in them, and have no hooks
    samples: bool | None = None  # whether a verdict may be another one than the greedy; None: no verdict seen yet
    counts_only: bool = False  # level `contract`, and the counts of chains are all that it asks for
    decoding: Any = None  # the forward mode of the last launch
    launches: int = 0
    hidden_every: int = field(init=False)  # as the settings say, which no control changes
    launch: Any = None
    phase: str = ""
    batch: Batch = field(default_factory=lambda: Batch([], [], []))
    last_extend: Extend | None = None  # of the launch before
    forward: ForwardFacts = field(default_factory=lambda: UNSEEN)
    extend_output: Any = None
    draft_runner: Any = None
    # Where each step has a draft of its own (draft_models.py): the runners of the steps after the first, and the logits
    # that they have given in the extend that runs, [requests, Vd] each.
    later_runners: list[Any] = field(default_factory=list[Any])
    later_logits: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    first_extend_seen: bool = False
    deferred: Deferred = field(default_factory=Deferred)
    graphs: GraphState = field(default_factory=GraphState)
    recording: Any = None  # PrefillTensors or LaunchTensors of the batch that runs; None if none of it is stored
    tensors: Any = None  # level `tensors`: TensorRecording; None at other levels
    fc: Any = None
    draft_id_or_zero: torch.Tensor | None = None  # [V], 0 where the draft has no such token
    softmax_chains: bool = False  # whether the engine computes probabilities for chains (softmax: to 0.5.11)
    chain_steps: int = 0  # drafts of a round where all rounds are chains of one length, else 0
    engine_counts: Any = None  # EngineCounts, where the engine counts the rounds of chains itself
    cuts_in_verify: bool = False  # the first worker, which finishes requests in its verify
    # models
    target_runner: Any = None
    worker: Any = None
    keys: list[KeyRecord] = field(default_factory=list[KeyRecord])
    loading: int | None = None  # the step whose draft is loaded, if it is that of a step
    unseen: set[str] = field(default_factory=set[str])  # parameters that were written where it was not seen by what
    params: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    from_file: dict[str, str | None] = field(default_factory=dict[str, str | None])
    # what the parameters held when it was last looked at, by side and name
    checksums: dict[tuple[str, str], str | None] = field(default_factory=dict[tuple[str, str], str | None])
    epochs: dict[str, int] = field(default_factory=dict[str, int])  # updates of the weights so far, by side
    checksums_from: float = 0.0  # `time.monotonic()` before which an update takes no checksums
    replaced: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    draft_facts: dict[str, Any] = field(default_factory=dict[str, Any])
    requested_layers: list[int] | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    undo: list[Any] = field(default_factory=list[Any])
    # vocabulary map as served, on the draft's device (with `draft_id_or_zero`)
    hot_token_id: torch.Tensor | None = None  # [Vd]
    # requests
    requests: dict[str, RequestState] = field(default_factory=dict[str, RequestState])
    next_seq: int = 0
    carried: OrderedDict[int, tuple[Extend, int]] = field(default_factory=OrderedDict[int, tuple[Extend, int]])
    done: deque[str] = field(default_factory=deque[str])
    noted: deque[Any] = field(default_factory=deque[Any])  # launches that nobody has looked at yet (steady.py)
    on_sampling: Callable[[], None] = _nothing  # a first request samples
    on_unseen: Callable[[], None] = _nothing  # a phase that was told by what runs in it was not seen
    fusion: Any = None  # the hook on the draft's fusion layer
    dead: bool = False
    warmup_ids: list[list[int]] = field(default_factory=list[list[int]])
    # level `tensors`
    aux_layers: Any = None  # AuxLayers, with EAGLETRACE_AUX_LAYERS
    values_written: bool = False  # of parameters
    hands_over: bool = field(init=False)  # a server of prefills, whose first rounds are another's

    def __post_init__(self) -> None:
        self.hidden_every = self.recorder.settings.hidden_every
        self.hands_over = getattr(self.server_args, "disaggregation_mode", None) == "prefill"

    @property
    def rounds_pass(self) -> bool:
        """Whether rounds pass without a hook of ours: their counts are wanted alone, and the engine has them."""
        return self.counts_only and self.engine_counts is not None

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

    def requests_of(self, reqs: list[Any]) -> Batch:
        """The states of a batch's requests."""
        if reqs != self.batch.reqs:
            self.settle()
            states = [self.request(req) for req in reqs]
            for state, req in zip(states, reqs, strict=True):
                if state.interrupted:
                    state.interrupted = False
                    state.request_round = max(state.request_round, int(getattr(req, "spec_verify_ct", 0) or 0))
            cached = [-1 if s.cached_tokens is None else s.cached_tokens for s in states]
            self.batch = Batch(list(reqs), states, cached, [s.request_round for s in states])
        return self.batch

    def prefills(self, reqs: list[Any]) -> list[RequestState]:
        """The states of requests whose prompts run now, some of them once more: they had been retracted."""
        self.settle()
        states: list[RequestState] = []
        for req in reqs:
            state = self.request(req)
            if len(req.output_ids) > state.prefilled_outputs:  # once for all chunks of its second prefill
                state.prefilled_outputs = len(req.output_ids)
                state.retractions += 1
                self.prefilled(req, state)
                self.recorder.event("retraction", request_ids=[state.rid], output_tokens=len(req.output_ids))
            state.request_round = 0
            if state.cached_tokens is None:
                state.cached_tokens = int(getattr(req, "cached_tokens", 0) or 0)
            states.append(state)
            self.recorder.request(state)
        return states

    def settle(self) -> None:
        """Count the launches of the last batch for its requests; the next launch has another batch."""
        batch, self.batch = self.batch, Batch([], [], [])
        for state, before in zip(batch.states, batch.rounds, strict=True):
            state.request_round = before + batch.launches

    def carried_of(self, states: list[RequestState]) -> Extend | list[tuple[Extend, int] | None]:
        """Where the depth 1 of some requests was drafted: in one extend, row for row, or here and there."""
        last, self.last_extend = self.last_extend, None
        if last is not None:
            if last.states is states or last.states == states:
                return last
            self.keep(last)
        return [self.carried.pop(state.seq, None) for state in states]

    def keep(self, extend: Extend) -> None:
        """Keep an extend for the rounds that will follow it; forget those of requests that will have none."""
        for row, state in enumerate(extend.states):
            self.carried[state.seq] = (extend, row)
            self.carried.move_to_end(state.seq)
        while self.carried:
            oldest, _ = next(iter(self.carried.values()))
            if len(self.carried) <= MAX_CARRIED and oldest.launch >= self.launches - STALE_LAUNCHES:
                return
            self.carried.popitem(last=False)

    def step_extended(self, output: Any, *, first: bool) -> None:
        """The draft of one step has run in an extend; `output` has its logits, in memory of their own."""
        if first:
            self.extend_output, self.later_logits = output, []
        else:
            self.later_logits.append(output.next_token_logits)

    def forget_launches(self) -> None:
        """Recording was interrupted: what the last launch left says nothing about the next one."""
        self.launch, self.phase, self.extend_output, self.last_extend = None, "", None, None
        self.later_logits = []
        self.recording = None
        if self.tensors is not None:
            self.tensors.interrupt()
        self.deferred.close()
        self.batch.lengths = None  # of a result that is still to come, after others that nobody sees
        self.carried.clear()
        self.settle()
        for state in list(self.requests.values()):
            state.interrupted = True

    def forget(self, rid: str) -> None:
        """Drop the state of a request that finished long ago, unless its id is in use again."""
        state = self.requests.get(rid)
        if state is not None and state.end_ns is not None:
            self.requests.pop(rid, None)

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
            # Where recording began or went on in the middle of a request; 0 for a new one.
            request_round=int(getattr(req, "spec_verify_ct", 0) or 0),
        )  # fmt: skip
        # SGLang stores temperature 0 as temperature 1 with top_k 1 (sampling_params.py, 0.5.9 and 0.5.23).
        if getattr(sampling, "top_k", None) == 1:
            if state.temperature == 1.0:
                state.temperature = 0.0
        elif self.samples is not True:
            self.on_sampling()
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
        try:
            self.deferred.close()
        except Exception:
            logger.debug("eagletrace: facts of the last launches are lost", exc_info=True)
        text = "".join(traceback.format_exception(error))
        self.recorder.event(
            "engine_exception", where=where, type=type(error).__name__, message=str(error)[:2000],
            traceback=text[-8000:], phase=phase,
        )  # fmt: skip
        self.recorder.flush(CRASH_FLUSH_S)
