"""One launch: prefill, or draft, verify and draft extend; for both worker families.

V1 is `EAGLEWorker` (to 0.5.12), V2 `EAGLEWorkerV2` (0.5.6 and later). They differ in where the draft's logits are
read after an extend and in who keeps the tokens; everything else is the same here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from time import time_ns
from typing import Any, cast

import torch

from eagletrace.instrumentations.patching import Hook, RoundHook, Target
from eagletrace.instrumentations.sglang import hidden as hidden_states
from eagletrace.instrumentations.sglang.distributions import Topology
from eagletrace.instrumentations.sglang.launch_state import STEP_BYTES, Launch, Prefill
from eagletrace.instrumentations.sglang.session import UNSEEN, Extend, ForwardFacts, Session
from eagletrace.instrumentations.sglang.steady import Noted, ready
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
            return list(correct) if len(correct) == bs else None
    return None


class SessionHook(Hook):
    """A hook that knows the session."""

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session


class InRound(RoundHook):
    """A hook of every round that knows the session."""

    __slots__ = ("session",)

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session


class Generate(InRound):
    """`forward_batch_generation(batch, ...)` of either worker."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch | Noted | Prefill | None:
        """Open a launch or a prefill."""
        session = self.session
        session.launch = session.recording = None
        if not session.serving:
            return None
        batch, known = args[1] if len(args) > 1 else next(iter(kwargs.values())), session.batch
        mode = batch.forward_mode
        if known.most and session.lean and mode is session.decoding:
            last = session.last_extend
            if (
                last is not None and last.states is known.states and last.logits is not None
                and batch.reqs == known.reqs and session.launches % session.hidden_every and session.deferred.trusted
            ):  # fmt: skip
                session.launches = number = session.launches + 1
                known.launches += 1
                session.phase, session.last_extend = "draft", None
                noted = session.launch = Noted(number, known, last)
                return noted
        return self._looked_at(args, batch, mode)

    def _looked_at(self, args: tuple[Any, ...], batch: Any, mode: Any) -> Launch | Prefill | None:
        """A launch of which more is wanted than to be noted, or a prefill."""
        session = self.session
        if mode is not session.decoding:
            # another rank's extend (is_extend_in_batch) makes no prefill of this one
            if mode.is_extend():
                reqs = list(getattr(batch, "reqs", None) or ())
                return self._prefill(batch, reqs) if reqs else None
            session.decoding = mode if isinstance(mode, Enum) else None
        if session.counts_only:
            return None
        reqs = getattr(batch, "reqs", None)
        if not reqs:
            return None
        launch = session.launch = self._launch(reqs, getattr(args[0], "topk", 1))
        if session.lean:
            launch.lean = True
            session.phase, session.extend_output, session.forward = "draft", None, UNSEEN
        elif session.tensors is not None:
            session.recording = launch.tensors = session.tensors.launch(launch)
        return launch

    def _launch(self, reqs: list[Any], topk: Any) -> Launch:
        session = self.session
        session.launches = number = session.launches + 1
        batch = session.batch
        if reqs != batch.reqs:
            batch = session.requests_of(reqs)
        batch.launches += 1
        last = session.last_extend
        if last is not None and last.states is batch.states:
            session.last_extend, first, later = None, last.logits, last.later
            widths, fusions = batch.extended(last.facts)
        else:
            first, later, widths, fusions = _drafted_by(session.carried_of(batch.states), len(batch.states))
        packet = RoundPacket(
            number, time_ns(), batch.states, batch.rounds, 0, None, (), False, None, None, widths, fusions,
            None, None, None, batch.cached_tokens, (), [], batch.launches,
        )  # fmt: skip
        launch = Launch(packet, batch.reqs, first, topk=int(topk or 1))
        launch.batch = batch
        if later:
            launch.step_logits = list(later)
        # The first launch and then one in `hidden_every`.
        if (number - 1) % session.hidden_every == 0 and session.recorder.settings.level != "contract":
            launch.wants_hidden, launch.slot_width = True, session.draft_facts.get("target_hidden_size")
        return launch

    def _prefill(self, batch: Any, reqs: list[Any]) -> Prefill:
        session = self.session
        states = session.prefills(reqs)
        if session.tensors is not None:
            session.recording = session.tensors.prefill(batch, reqs, states)
        return Prefill(time_ns(), reqs, states, getattr(batch, "extend_num_tokens", None))

    def after(self, token: Launch | Noted | Prefill | None, result: Any, args: Any, kwargs: Any) -> None:
        """Leave the launch with the result; the results' hook closes it."""
        session = self.session
        launch, recording = session.launch, session.recording
        session.launch = session.recording = None
        session.phase = ""
        if isinstance(token, Noted):
            if launch is token:  # else recording was interrupted in the middle
                self._noted(token, result)
        elif isinstance(token, Launch):
            if token.lean and launch is token:
                self._passed(token, result)
            token.release()
            if token.packet.phases:
                result._eagletrace = token
        elif token is not None:
            if recording is not None:
                recording.close()
            session.recorder.phase(
                "prefill", token.start_ns, time_ns(), token.states,
                {"eagle.batch_size": len(token.states), "eagle.tokens": token.tokens},
            )  # fmt: skip

    def _passed(self, launch: Launch, result: Any) -> None:
        """What the hooks of the phases read where they stand: its result is that of `verify`, which `extend_decode` was
        given."""
        end, session, packet = time_ns(), self.session, launch.packet
        if not (launch.verify_ns and packet.nodes):
            self._unseen()
        begun, extended = launch.verify_ns or end, launch.extend_ns or end
        packet.phases += (
            ("draft", packet.start_ns, begun), ("verify", begun, extended), ("extend_decode", extended, end)
        )  # fmt: skip
        hidden = getattr(result.logits_output, "hidden_states", None)
        width = packet.target_hidden_width = None if hidden is None else hidden.size(-1)
        packet.graph = getattr(result, "can_run_cuda_graph", None)
        if launch.wants_hidden:
            rows = [row * packet.nodes for row in range(len(launch.reqs))]
            hidden_states.observe(launch, "target_aux", hidden, rows, launch.slot_width)
        output, session.extend_output = session.extend_output, None
        if output is None:
            session.forward = ForwardFacts(width, None)
        session.last_extend = carried(session, launch.reqs, None if output is None else output.next_token_logits)
        if not session.batch.most:
            ready(session, session.batch, launch)

    def _noted(self, noted: Noted, result: Any) -> None:
        """The same of a launch that is only noted, with no more work than that."""
        session, batch, output = self.session, noted.batch, noted.extended
        hidden = getattr(result.logits_output, "hidden_states", None)
        width = None if hidden is None else hidden.size(-1)
        noted.forwarded(width, getattr(result, "can_run_cuda_graph", None))
        result._eagletrace = noted
        if output is None:  # a captured graph drafted
            output, session.extend_output = session.extend_output, None
            facts = session.forward if output is not None else ForwardFacts(width, None)
        else:
            noted.extended, facts = None, noted.last.facts
            if facts.input_width != noted.given or facts.fc_applied is not noted.fused:
                facts = ForwardFacts(noted.given, noted.fused)
        logits = None if output is None else output.next_token_logits
        if session.graphs.extend_logits is not None:
            logits = session.graphs.owned(logits)
        if logits is not None and logits.size(0) != len(batch.states):
            logits = None
        session.last_extend = Extend(batch.states, logits, facts, noted.number)
        if not noted.verify_ns or noted.verdict is None:
            self._unseen()

    def _unseen(self) -> None:
        """Something ran where no hook saw it; not if hooks are put up or taken away at this moment."""
        session = self.session
        if session.lean and session.serving:
            session.on_unseen()

    def failed(self, token: Launch | Noted | Prefill | None, error: BaseException, instance: Any) -> None:
        """The engine is dying: write what is known before it is gone."""
        session = self.session
        phase, session.phase = session.phase, ""
        if isinstance(token, Noted):
            token.forwarded(None, None)
            token.processed(None, None, None)
            session.noted.append(token)
        elif isinstance(token, Launch):
            session.recorder.launch(token.packet)
        session.crashed("forward_batch_generation", error, phase or "launch")


class Phase(InRound):
    """A named phase of a launch: its time, and what the subclass reads."""

    phase = ""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Enter the phase."""
        self.session.phase = self.phase
        return time_ns()

    def after(self, token: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leave the phase."""
        end, session = time_ns(), self.session
        session.phase, launch = "", session.launch
        if launch is not None:
            launch.packet.phases.append((self.phase, token, end))
            self.read(launch, result, args, kwargs)

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read what this phase leaves in the launch."""


class Draft(Phase):
    """`draft(batch)`, which returns the verify input."""

    phase = "draft"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What the last extend left for this draft."""
        session = self.session
        session.phase, launch = "draft", session.launch
        if launch is not None and launch.tensors is not None:
            batch = args[1] if len(args) > 1 else next(iter(kwargs.values()))
            launch.tensors.begin(getattr(batch.spec_info, "hidden_states", None), launch.first)
        return time_ns()

    def after(self, token: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Positions of the tree: sequence length plus depth, [bs * D]."""
        end, session = time_ns(), self.session
        session.phase, launch = "", session.launch
        if launch is None:
            return
        launch.packet.phases.append(("draft", token, end))
        verify_input: Any = cast("tuple[Any, ...]", result)[0] if isinstance(result, tuple) else result
        launch.positions = verify_input.positions
        topk = getattr(verify_input, "topk", None)
        if topk and topk != launch.topk:
            launch.topk = int(topk)


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

    def after(self, token: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Width of the target's hidden state; whether a graph ran."""
        end, session = time_ns(), self.session
        session.phase, launch = "", session.launch
        if launch is None:
            return
        packet = launch.packet
        packet.phases.append(("verify", token, end))
        if isinstance(result, tuple):
            parts = cast("tuple[Any, ...]", result)
            output, graph = parts[0], parts[-1]
        else:
            output, graph = result.logits_output, getattr(result, "can_run_cuda_graph", None)
        hidden = getattr(output, "hidden_states", None)
        packet.target_hidden_width = hidden.size(-1) if hidden is not None else None
        packet.graph = None if graph is None else bool(graph)
        if launch.wants_hidden:
            hidden_states.observe(launch, "target_aux", hidden, self._root_rows(launch, result), launch.slot_width)

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
        if session.rounds_pass:
            for req, state in zip(token, session.prefills(token), strict=True):
                session.engine_counts.follow(req, state)
        elif session.extend_output is not None:
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

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Forget the last extend."""
        session = self.session
        session.phase, session.extend_output, session.forward = "extend_decode", None, UNSEEN
        return time_ns()

    def after(self, token: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry each request's logits to its next round."""
        end, session = time_ns(), self.session
        session.phase, launch = "", session.launch
        if launch is None:
            return
        launch.packet.phases.append(("extend_decode", token, end))
        extended, session.extend_output = session.extend_output, None
        if extended is not None:
            session.last_extend = carried(session, launch.reqs, extended.next_token_logits)
        else:
            output = args[2].logits_output if len(args) > 2 else None
            hidden = getattr(output, "hidden_states", None)
            session.forward = ForwardFacts(hidden.shape[-1] if hidden is not None else None, None)
            session.last_extend = carried(session, launch.reqs, None)


class ExtendDecodeV1(Phase):
    """`forward_draft_extend_after_decode(batch)`: only requests that go on."""

    phase = "extend_decode"
    before = ExtendDecodeV2.before

    def read(self, launch: Launch, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry the logits that the extend left."""
        session = self.session
        unfinished = [req for req in launch.reqs if not req.finished()]
        extended, session.extend_output = session.extend_output, None
        session.last_extend = carried(session, unfinished, extended.next_token_logits if extended is not None else None)


def carried(session: Session, reqs: Sequence[Any], logits: torch.Tensor | None) -> Extend | None:
    """An extend of the draft: row r of its logits [requests, Vd] drafts the next depth 1 of request r."""
    if session.hands_over:
        return None  # the first round is another server's
    if session.graphs.extend_logits is not None:
        logits = session.graphs.owned(logits)
    if logits is not None and logits.size(0) != len(reqs):
        logits = None
    later = _later(session, len(reqs)) if session.later_logits else ()
    same = session.batch
    states = same.states if reqs is same.reqs else [session.request(req) for req in reqs]
    return Extend(states, logits, session.forward, session.launches, later)


def _later(session: Session, bs: int) -> Sequence[torch.Tensor]:
    """The logits that later steps' drafts gave in the extend, [bs, Vd] each; none unless all are there and not too many
    to be kept."""
    later, session.later_logits = session.later_logits, []
    whole = all(logits.size(0) == bs for logits in later)
    return later if whole and sum(logits.nbytes for logits in later) <= STEP_BYTES else ()


def _drafted_by(
    carried: Extend | list[tuple[Extend, int] | None], bs: int
) -> tuple[torch.Tensor | None, Sequence[torch.Tensor], Sequence[int], Sequence[int]]:
    """Of where a launch was drafted: logits of depth 1 [bs, Vd], and of the deeper ones if they come from there too;
    for each request width and fusion layer."""
    if isinstance(carried, Extend):
        width, fused = carried.facts.known()
        return carried.logits, carried.later, [width] * bs, [fused] * bs
    facts = [(-1, -1) if c is None else c[0].facts.known() for c in carried]
    steps = {0 if c is None else len(c[0].later) for c in carried}
    later = [_stacked(carried, step) for step in range(steps.pop())] if len(steps) == 1 else ()
    return _stacked(carried), [s for s in later if s is not None], [w for w, _ in facts], [f for _, f in facts]


def _stacked(carried: Sequence[tuple[Extend, int] | None], step: int | None = None) -> torch.Tensor | None:
    """Logits that drafted depth 1, or depth `step` + 2, [bs, Vd], of requests from several extends; None unless all are
    known."""
    rows: list[torch.Tensor] = []
    for known in carried:
        logits = None if known is None else known[0].logits if step is None else known[0].later[step]
        if known is None or logits is None:
            return None
        rows.append(logits[known[1]])
    return torch.stack(rows)
