"""Forwards of the draft: the width it was given, whether its fusion layer ran, and its logits.

With captured graphs Python sees only prefills here; `graphs.py` has what it sees elsewhere. The rest stays NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from types import SimpleNamespace
from typing import Any

from eagletrace.instrumentations.patching import Target, replace_on
from eagletrace.instrumentations.sglang import hidden as hidden_states
from eagletrace.instrumentations.sglang.facts import fusion_layer
from eagletrace.instrumentations.sglang.graph_state import never
from eagletrace.instrumentations.sglang.launch import InRound, first
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import UNSEEN, ForwardFacts, Session
from eagletrace.instrumentations.sglang.steady import Noted

EXTENDS = ("extend_prefill", "extend_decode")
"""Phases in which drafts of single steps run."""
LATER = "later"
"""An extend of the draft of a step after the first."""


class RunnerForward(InRound):
    """`ModelRunner.forward(forward_batch, ...)`; the target's forwards pass untouched."""

    def wrapper(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        """The target's forwards pass, but for the one that ends a draft whose phase has no hook."""
        session, hook = self.session, self

        def observed(*args: Any, **kwargs: Any) -> Any:
            hook.calls += 1
            runner = args[0]
            if (hook.only is not None and hook.only is not runner) or not hook.on:
                return original(*args, **kwargs)
            noted = session.launch
            if type(noted) is Noted:
                return hook.noted(noted, original, args, kwargs)
            ends_draft = session.lean and session.phase == "draft"
            if not ends_draft and runner is not session.draft_runner and runner not in session.later_runners:
                return original(*args, **kwargs)
            token: Any = False
            try:
                token = hook.before(args, kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
                hook.swallow(error)
            result = original(*args, **kwargs)
            try:
                if token:
                    hook.after(token, result, args, kwargs)
            except Exception as error:  # noqa: BLE001
                hook.swallow(error)
            return result

        return observed

    def noted(
        self, noted: Noted, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # fmt: skip
        """A forward in a launch that is only noted: a draft step, the target's, which begins the verify, or the draft's
        after that, which is the extend."""
        session, step, extend, positions = self.session, False, False, None
        try:
            graphs, drafts = session.graphs, args[0] is session.draft_runner
            if graphs.capturing is never or not graphs.capturing():
                batch = args[1] if len(args) > 1 else kwargs["forward_batch"]
                if session.phase == "draft":
                    if drafts:
                        step, positions = True, batch.positions
                        if positions is not None:
                            positions = positions.clone()  # counted up in place by the next step
                    else:
                        session.phase, noted.verify_ns, noted.positions = "verify", time_ns(), batch.positions
                elif drafts:
                    if session.phase == "verify":
                        session.phase, noted.extend_ns = "extend_decode", time_ns()
                    extend, hidden = True, getattr(batch.spec_info, "hidden_states", None)
                    noted.given = None if hidden is None else hidden.size(-1)
                    noted.fused = None if session.fc is None else False
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            self.swallow(error)
        result = original(*args, **kwargs)
        try:
            if step or extend:
                output = getattr(result, "logits_output", None)
                if output is None:
                    output = result[0]
                if step:
                    noted.steps.append((positions, output.next_token_logits))
                else:
                    noted.extended = output
                    if session.graphs.ran(result, output.next_token_logits):
                        noted.fused = None  # the fusion layer's hook is not called in a replay
        except Exception as error:  # noqa: BLE001
            self.swallow(error)
        return result

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch | bool | str:
        """Note the width before the draft runs: it may die of it. The launch in its draft steps, True in an extend,
        `LATER` in that of a later step's draft."""
        session = self.session
        phase, launch, drafts = session.phase, session.launch, args[0] is session.draft_runner
        if not drafts and (phase != "draft" or not session.lean):
            return LATER if phase in EXTENDS and args[0] in session.later_runners else False
        if not phase:
            return False
        graphs = session.graphs
        if graphs.capturing is not never and graphs.capturing():
            return False
        forward_batch = args[1] if len(args) > 1 else kwargs["forward_batch"]
        if not drafts:
            session.phase, launch.verify_ns, launch.positions = "verify", time_ns(), forward_batch.positions
            return False
        if phase == "verify" and session.lean:
            session.phase, launch.extend_ns = "extend_decode", time_ns()
        if phase == "draft":
            if launch is None:
                return False
            positions = forward_batch.positions
            if positions is not None:
                launch.rope_positions.append(positions.clone())  # counted up in place by the next step
            if launch.wants_hidden:
                self._look(launch, "draft_in", getattr(forward_batch.spec_info, "hidden_states", None))
            if launch.tensors is not None:
                launch.tensors.step(getattr(forward_batch.spec_info, "hidden_states", None))
            return launch
        if session.recording is not None:
            session.recording.extend(forward_batch)
        hidden = getattr(forward_batch.spec_info, "hidden_states", None)
        width = hidden.size(-1) if hidden is not None else None
        session.forward = ForwardFacts(width, None if session.fc is None else False)
        if not session.first_extend_seen and phase == "extend_prefill":
            expected = session.draft_facts.get("fc_in") if session.draft_facts.get("eagle3") else None
            session.recorder.fact("forward.draft_input_width", width, expected)
        return True

    def after(self, token: Launch | bool | str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the logits: a reference, the engine made them for this forward."""
        session, output = self.session, getattr(result, "logits_output", None)
        if output is None:
            output = result[0]
        if isinstance(token, str) or (token is True and session.later_runners):
            self._of_a_step(token is True, result, output)
            return
        if not isinstance(token, Launch):
            session.extend_output = output
            if session.graphs.ran(result, output.next_token_logits) and session.forward.fc_applied is False:
                session.forward.fc_applied = None  # the fusion layer's hook is not called in a replay
            return
        if token.wants_hidden:
            self._look(token, "draft_out", output.hidden_states)
        token.add_step(output.next_token_logits)
        if token.tensors is not None:
            token.tensors.stepped(output.hidden_states, output.next_token_logits)

    def _of_a_step(self, first: bool, result: Any, output: Any) -> None:
        """Logits of the extend of one step's draft; the next step's graph may use their memory again."""
        session = self.session
        if session.graphs.ran(result, output.next_token_logits):
            output = SimpleNamespace(next_token_logits=session.graphs.owned(output.next_token_logits))
            if first and session.forward.fc_applied is False:
                session.forward.fc_applied = None
        session.step_extended(output, first=first)

    @staticmethod
    def _look(launch: Launch, stage: str, hidden: Any) -> None:
        """Statistics of the first draft step: its first branch of each request."""
        if not launch.step_logits and not launch.too_large:
            rows = [row * launch.topk for row in range(len(launch.reqs))]
            hidden_states.observe(launch, stage, hidden, rows, None)


class Fusion(InRound):
    """The draft's fusion layer `fc(states)`: whether it ran, and in the first extend on what."""

    def __init__(self, session: Session, name: str) -> None:
        path = f"{type(session.draft_runner.model).__name__}:{name}"
        super().__init__(Target("fc", path, False, "the fusion layer"), session)
        self._undo: Callable[[], bool] | None = None

    def watch(self, module: Any, *, on: bool) -> None:
        """Stand in the module's `forward`, or cease to; where another tool has replaced it since, nothing is seen."""
        self.on = on and self.enabled
        if on and self._undo is None:
            self._undo = replace_on(module, "forward", self.wrapper(module.forward, method=False))
        elif not on and self._undo is not None and self._undo():
            self._undo = None

    def wrapper(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        """As any hook's, in fewer steps for a launch that is only noted."""
        session, hook = self.session, self

        def observed(*args: Any, **kwargs: Any) -> Any:
            hook.calls += 1
            if not hook.on:
                return original(*args, **kwargs)
            noted = session.launch
            if type(noted) is Noted:
                result = original(*args, **kwargs)
                noted.fused = True
                return result
            try:
                if hook.looks_before:
                    hook.before(args, kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
                hook.swallow(error)
            result = original(*args, **kwargs)
            try:
                hook.after(None, result, args, kwargs)
            except Exception as error:  # noqa: BLE001
                hook.swallow(error)
            return result

        return observed

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What it was given, before it dies of it."""
        session = self.session
        if session.first_extend_seen:
            self.looks_before = False  # not in any later round
        elif args:
            self._facts().fc_shapes = [list(args[0].shape)]

    def after(self, token: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It ran."""
        session = self.session
        launch, facts = session.launch, session.forward
        if facts is UNSEEN:
            facts = self._facts()
        facts.fc_applied = True
        if session.recording is not None and session.phase != "draft" and not session.graphs.capturing():
            session.recording.fused(first(result))
        if session.first_extend_seen and (launch is None or not launch.wants_hidden):
            return
        if session.graphs.capturing():
            return
        out: Any = first(result)
        facts.fc_shapes = [*(facts.fc_shapes or []), list(out.shape)]
        if session.phase == "draft":  # the fusion layer of an EAGLE-1 draft runs at every depth
            return
        if launch is not None and launch.wants_hidden and out.shape[0] == launch.packet.nodes * len(launch.reqs):
            rows = [row * launch.packet.nodes for row in range(len(launch.reqs))]
            hidden_states.observe(launch, "fc_in", args[0], rows, launch.slot_width)
            hidden_states.observe(launch, "fc_out", out, rows, None)

    def _facts(self) -> ForwardFacts:
        session = self.session
        if session.forward is UNSEEN:
            session.forward = ForwardFacts()
        return session.forward

    def swallow(self, error: Exception) -> None:
        """An event says so too."""
        super().swallow(error)
        self.session.recorder.event("hook_error", target="fc", error=repr(error))


def watch_fusion(session: Session, *, on: bool = True) -> None:
    """Observe the fusion layer of the draft, or cease to.

    Its `forward` is replaced on the object: module hooks would send each of its calls by torch's slow way.
    """
    if session.fusion is None and on:
        found = fusion_layer(session.draft_runner.model)
        if found is None:
            return
        name, session.fc = found
        session.fusion = Fusion(session, name)
    if session.fusion is not None:
        session.fusion.watch(session.fc, on=on)
