"""Forwards of the draft: the width it was given, whether its fusion layer ran, and its logits.

With captured graphs Python sees only prefills here; `graphs.py` has what it sees elsewhere. The rest stays NULL.
"""

from __future__ import annotations

from typing import Any

from eagletrace.instrumentations.patching import Hook, Target
from eagletrace.instrumentations.sglang import hidden as hidden_states
from eagletrace.instrumentations.sglang.facts import fusion_layer
from eagletrace.instrumentations.sglang.launch import first
from eagletrace.instrumentations.sglang.session import ForwardFacts, Session


class RunnerForward(Hook):
    """`ModelRunner.forward(forward_batch, ...)`; the target's forwards pass untouched."""

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Note the width before the draft runs: it may die of it."""
        session = self.session
        if instance is not session.draft_runner or not session.phase or session.graphs.capturing():
            return False
        forward_batch = args[0] if args else kwargs["forward_batch"]
        if session.phase == "draft":
            launch = session.launch
            if launch is None:
                return False
            if forward_batch.positions is not None:
                launch.rope_positions.append(forward_batch.positions.clone())  # counted up in place by the next step
            if launch.wants_hidden:
                self._look("draft_in", getattr(forward_batch.spec_info, "hidden_states", None))
            if launch.tensors is not None:
                launch.tensors.step(getattr(forward_batch.spec_info, "hidden_states", None))
            return True
        if session.recording is not None:
            session.recording.extend(forward_batch)
        hidden = getattr(forward_batch.spec_info, "hidden_states", None)
        width = hidden.shape[-1] if hidden is not None else None
        session.forward = ForwardFacts(width, None if session.fc is None else False)
        if not session.first_extend_seen and session.phase == "extend_prefill":
            expected = session.draft_facts.get("fc_in") if session.draft_facts.get("eagle3") else None
            session.recorder.fact("forward.draft_input_width", width, expected)
        return True

    def after(self, token: bool, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the logits: a reference, the engine made them for this forward."""
        if not token:
            return
        session = self.session
        output = getattr(result, "logits_output", None) or result[0]
        launch = session.launch
        if session.phase != "draft":
            session.extend_output = output
            if session.graphs.ran(result, output.next_token_logits) and session.forward.fc_applied is False:
                session.forward.fc_applied = None  # the fusion layer's hooks are not called in a replay
        elif launch is not None:
            if launch.wants_hidden:
                self._look("draft_out", output.hidden_states)
            launch.add_step(output.next_token_logits)
            if launch.tensors is not None:
                launch.tensors.stepped(output.hidden_states, output.next_token_logits)

    def _look(self, stage: str, hidden: Any) -> None:
        """Statistics of the first draft step: its first branch of each request."""
        launch = self.session.launch
        if launch.wants_hidden and not launch.step_logits and not launch.too_large:
            rows = [row * launch.topk for row in range(len(launch.reqs))]
            hidden_states.observe(launch, stage, hidden, rows, None)


def watch_fusion(session: Session, *, on: bool = True) -> None:
    """Observe the fusion layer of the draft through module hooks, or cease to."""
    if not on:
        for hook in session.fc_hooks:
            hook.remove()
        session.fc_hooks = []
    if not on or session.fc_hooks:
        return
    found = fusion_layer(session.draft_runner.model)
    if found is None:
        return
    session.fc = found[1]

    def before(module: Any, inputs: Any) -> None:
        """What it was given, before it dies of it: in the first extend alone."""
        try:
            if not session.first_extend_seen:
                session.forward.fc_shapes = [list(inputs[0].shape)]
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            session.recorder.event("hook_error", target="fc", error=repr(error))

    def after(module: Any, inputs: Any, output: Any) -> None:
        try:
            session.forward.fc_applied = True
            launch = session.launch
            if session.recording is not None and session.phase != "draft" and not session.graphs.capturing():
                session.recording.fused(first(output))
            if session.first_extend_seen and (launch is None or not launch.wants_hidden):
                return
            if session.graphs.capturing():
                return
            out: Any = first(output)
            session.forward.fc_shapes = [*(session.forward.fc_shapes or []), list(out.shape)]
            if launch is not None and launch.wants_hidden and out.shape[0] == launch.packet.nodes * len(launch.reqs):
                rows = [row * launch.packet.nodes for row in range(len(launch.reqs))]
                hidden_states.observe(launch, "fc_in", inputs[0], rows, launch.slot_width)
                hidden_states.observe(launch, "fc_out", out, rows, None)
        except Exception as error:  # noqa: BLE001
            session.recorder.event("hook_error", target="fc", error=repr(error))

    session.fc_hooks = [session.fc.register_forward_pre_hook(before), session.fc.register_forward_hook(after)]
