"""One launch: prefill, or draft, verify and draft extend; for both worker families.

V1 is `EAGLEWorker` (to 0.5.11), V2 `EAGLEWorkerV2` (0.5.6 and later). They differ in where the draft's logits are
read after an extend and in who keeps the tokens; everything else is the same here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import torch

from eagletrace.instrumentations.patching import Hook, Target
from eagletrace.instrumentations.sglang import hidden as hidden_states
from eagletrace.instrumentations.sglang.distributions import Topology
from eagletrace.instrumentations.sglang.launch_state import Launch, Prefill
from eagletrace.instrumentations.sglang.session import Extend, ForwardFacts, Session
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

# 0.5.12 and later; to 0.5.10; 0.5.11.
CORRECT_DRAFTS = ("num_correct_drafts_per_req_cpu", "accept_length_per_req_cpu", "num_accepted_drafts_per_req_cpu")


def values(result: Any) -> tuple[Any, ...]:
    """A result that is a tuple in some releases, as a tuple."""
    return cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result,)


def first(result: Any) -> Any:
    """The first of a result that is a tuple in some releases."""
    return values(result)[0]


def correct_drafts(result: Any, bs: int) -> list[int] | None:
    """The number of correct drafts of each request, without the bonus, as the engine's result says it on the host."""
    for name in CORRECT_DRAFTS:
        correct: Any = getattr(result, name, None)
        if correct is not None:
            return [int(n) for n in correct] if len(correct) == bs else None
    return None


class SessionHook(Hook):
    """A hook that knows the session."""

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session


class Generate(SessionHook):
    """`forward_batch_generation(batch, ...)` of either worker."""

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch | Prefill | None:
        """Open a launch or a prefill."""
        session = self.session
        session.launch = session.recording = None
        if not session.serving:
            return None
        batch = args[0] if args else next(iter(kwargs.values()))
        reqs = list(getattr(batch, "reqs", None) or ())
        if not reqs:
            return None
        if batch.forward_mode.is_extend():  # another rank's extend (is_extend_in_batch) makes no prefill of this one
            return self._prefill(batch, reqs)
        if session.counts_only:
            return None
        session.launches += 1
        launch = self._launch(reqs, int(getattr(instance, "topk", 1) or 1))
        session.launch = launch
        if session.tensors is not None:
            session.recording = launch.tensors = session.tensors.launch(launch)
        return launch

    def _launch(self, reqs: list[Any], topk: int) -> Launch:
        session = self.session
        batch = session.requests_of(reqs)
        states, rounds = batch.states, list[int]()
        for state in states:
            state.request_round += 1
            rounds.append(state.request_round)
        carried = session.carried_of(states)
        if isinstance(carried, Extend):
            first, width, applied = carried.logits, *_known(carried.facts)
            widths, fusions = [width] * len(states), [applied] * len(states)
        else:
            first = _stacked(carried)
            facts = [_known(None if c is None else c[0].facts) for c in carried]
            widths, fusions = [w for w, _ in facts], [a for _, a in facts]
        packet = RoundPacket(
            session.launches, time.time_ns(), states, rounds, 0, cached_tokens=batch.cached_tokens,
            draft_input_widths=widths, fc_applied=fusions,
        )  # fmt: skip
        settings = session.recorder.settings
        return Launch(
            packet, batch.reqs, first, topk=topk, slot_width=session.draft_facts.get("target_hidden_size"),
            wants_hidden=settings.level != "contract" and hidden_states.due(session.launches, settings.hidden_every),
        )  # fmt: skip

    def _prefill(self, batch: Any, reqs: list[Any]) -> Prefill:
        session = self.session
        states: list[RequestState] = []
        for req in reqs:
            state = session.request(req)
            if len(req.output_ids) > state.prefilled_outputs:  # once for all chunks of its second prefill
                state.prefilled_outputs = len(req.output_ids)
                state.retractions += 1
                session.prefilled(req, state)
                session.recorder.event("retraction", request_ids=[state.rid], output_tokens=len(req.output_ids))
            state.request_round = 0
            if state.cached_tokens is None:
                state.cached_tokens = int(getattr(req, "cached_tokens", 0) or 0)
            states.append(state)
            session.recorder.request(state)
        if session.tensors is not None:
            session.recording = session.tensors.prefill(batch, reqs, states)
        return Prefill(time.time_ns(), reqs, states, getattr(batch, "extend_num_tokens", None))

    def after(self, token: Launch | Prefill | None, result: Any, instance: Any, args: Any, kwargs: Any) -> None:
        """Leave the launch with the result; the results' hook closes it."""
        session, recording = self.session, self.session.recording
        session.launch, session.phase, session.recording = None, "", None
        if isinstance(token, Prefill):
            if recording is not None:
                recording.close()
            session.recorder.phase(
                "prefill", token.start_ns, time.time_ns(), token.states,
                {"eagle.batch_size": len(token.states), "eagle.tokens": token.tokens},
            )  # fmt: skip
        elif token is not None:
            token.release()
            if token.packet.phases:
                result._eagletrace = token

    def failed(self, token: Launch | Prefill | None, error: BaseException, instance: Any) -> None:
        """The engine is dying: write what is known before it is gone."""
        phase, self.session.phase = self.session.phase, ""
        if isinstance(token, Launch):
            self.session.recorder.launch(token.packet)
        self.session.crashed("forward_batch_generation", error, phase or "launch")


class Phase(SessionHook):
    """A named phase of a launch: its time, and what the subclass reads."""

    phase = ""

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Enter the phase."""
        self.session.phase = self.phase
        return time.time_ns()

    def after(self, token: int, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leave the phase."""
        session = self.session
        if session.launch is not None:
            session.launch.packet.phases.append((self.phase, token, time.time_ns()))
            self.read(session.launch, result, args, kwargs)
        session.phase = ""

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read what this phase leaves in the launch."""


class Draft(Phase):
    """`draft(batch)`, which returns the verify input."""

    phase = "draft"

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What the last extend left for this draft."""
        launch = self.session.launch
        if launch is not None and launch.tensors is not None:
            batch = args[0] if args else next(iter(kwargs.values()))
            launch.tensors.begin(getattr(batch.spec_info, "hidden_states", None), launch.first)
        self.session.phase = self.phase
        return time.time_ns()

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Positions of the tree: sequence length plus depth, [bs * D]."""
        verify_input: Any = first(result)
        launch.positions = verify_input.positions
        launch.topk = int(getattr(verify_input, "topk", launch.topk) or launch.topk)


class DraftForward(SessionHook):
    """`draft_forward(forward_batch)`, eager only: which candidates became nodes."""

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the topology."""
        launch = self.session.launch
        if launch is not None and result[0] is not None:
            launch.topology = Topology(result[0], result[1], launch.topk)


class Verify(Phase):
    """`verify(batch, ...)`: V2 returns a result, V1 a tuple that begins with the logits output."""

    phase = "verify"

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Width of the target's hidden state; whether a graph ran."""
        v1 = isinstance(result, tuple)
        output: Any = first(result) if v1 else result.logits_output
        hidden = getattr(output, "hidden_states", None)
        launch.packet.target_hidden_width = hidden.shape[-1] if hidden is not None else None
        if launch.wants_hidden:
            hidden_states.observe(launch, "target_aux", hidden, self._root_rows(launch, result), launch.slot_width)
        graph: Any = values(result)[-1] if v1 else getattr(result, "can_run_cuda_graph", None)
        launch.packet.graph = None if graph is None else bool(graph)

    @staticmethod
    def _root_rows(launch: Launch, result: Any) -> list[int]:
        """Row of each request's root: V2 keeps D rows a request, V1 only the accepted ones."""
        if not isinstance(result, tuple):
            return [row * launch.packet.nodes for row in range(len(launch.reqs))]
        rows = [0]
        for accepted in (correct_drafts(values(result)[1], len(launch.reqs)) or ())[:-1]:
            rows.append(rows[-1] + int(accepted) + 1)
        return rows if len(rows) == len(launch.reqs) else []


class ExtendPrefill(SessionHook):
    """The draft over a prompt: `(batch, hidden_states, next_token_ids, ...)` in both families."""

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the target's width before the draft runs."""
        session = self.session
        session.phase, session.extend_output = "extend_prefill", None
        hidden = args[1] if len(args) > 1 else kwargs.get("hidden_states", kwargs.get("target_hidden_states"))
        if not session.first_extend_seen and session.serving:
            expected = session.draft_facts.get("fc_in") if session.draft_facts.get("eagle3") else None
            width = hidden.shape[-1] if hidden is not None else None
            session.recorder.fact("forward.target_hidden_width", width, expected)
        return list(args[0].reqs or []) if args else []

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry each request's logits to its first round."""
        session = self.session
        session.phase = ""
        if not session.serving:
            return
        self._first(session.forward)
        if session.extend_output is not None:
            extend = carried(session, token, session.extend_output.next_token_logits)
            if extend is not None:
                session.keep(extend)
        session.extend_output = None

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        """What the fusion layer was given, if it died of it."""
        if self.session.serving:
            self._first(self.session.forward)

    def _first(self, facts: ForwardFacts) -> None:
        session = self.session
        if session.first_extend_seen:
            return
        session.first_extend_seen = True
        expected = True if session.fc is not None and session.draft_facts.get("eagle3") else None
        session.recorder.fact("forward.fc_applied", facts.fc_applied, expected)
        session.recorder.fact("forward.fc_shapes", facts.fc_shapes)


class ExtendDecodeV2(Phase):
    """`_draft_extend_for_decode(batch, batch_result)`: selects one row a request in place."""

    phase = "extend_decode"

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Forget the last extend."""
        self.session.extend_output = None
        self.session.forward = ForwardFacts()
        return super().before(instance, args, kwargs)

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry each request's logits to its next round."""
        session = self.session
        if session.extend_output is not None:
            session.last_extend = carried(session, launch.reqs, session.extend_output.next_token_logits)
        else:
            output = args[1].logits_output if len(args) > 1 else None
            hidden = getattr(output, "hidden_states", None)
            session.forward = ForwardFacts(hidden.shape[-1] if hidden is not None else None, None)
            session.last_extend = carried(session, launch.reqs, None)
        session.extend_output = None


class ExtendDecodeV1(Phase):
    """`forward_draft_extend_after_decode(batch)`: only requests that go on."""

    phase = "extend_decode"

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Requests that go on, in the order of the draft's rows."""
        session = self.session
        session.extend_output = None
        session.forward = ForwardFacts()
        return super().before(instance, args, kwargs)

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry the logits that the extend left."""
        session = self.session
        unfinished = [req for req in launch.reqs if not req.finished()]
        output = session.extend_output
        session.last_extend = carried(session, unfinished, output.next_token_logits if output is not None else None)
        session.extend_output = None


def carried(session: Session, reqs: Sequence[Any], logits: torch.Tensor | None) -> Extend | None:
    """An extend of the draft: row r of its logits [requests, Vd] drafts the next depth 1 of request r."""
    if getattr(session.server_args, "disaggregation_mode", None) == "prefill":
        return None  # the first round is another server's
    logits = session.graphs.owned(logits)
    if logits is not None and logits.shape[0] != len(reqs):
        logits = None
    same = session.batch
    states = same.states if reqs is same.reqs else [session.request(req) for req in reqs]
    return Extend(states, logits, session.forward, session.launches)


def _known(facts: ForwardFacts | None) -> tuple[int, int]:
    """Width and whether the fusion layer ran, -1 where it was not seen."""
    if facts is None:
        return -1, -1
    width, applied = facts.input_width, facts.fc_applied
    return -1 if width is None else width, -1 if applied is None else int(applied)


def _stacked(carried: Sequence[tuple[Extend, int] | None]) -> torch.Tensor | None:
    """Logits that drafted depth 1, [bs, Vd], of requests from several extends; None unless all are known."""
    rows: list[torch.Tensor] = []
    for known in carried:
        if known is None or known[0].logits is None:
            return None
        rows.append(known[0].logits[known[1]])
    return torch.stack(rows)
