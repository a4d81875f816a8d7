"""Captured graphs: what Python still sees at replay is read here; what it does not see stays NULL.

At replay the engine calls none of `draft_forward`, the draft's `forward` in draft steps and its modules. It still
calls the graphs' runners, whose inputs and outputs are read here:

- EAGLEDraftCudaGraphRunner: the drafted tree (`.replay` to 0.5.13, `.execute` since 0.5.16);
- EAGLEDraftExtendCudaGraphRunner: the logits that draft the next depth 1, in memory that the next graph uses again.
  It copies its input only where the widths agree, and replays on old values otherwise, without a word.

Before the server serves there is no launch, and so none of these hooks does anything while graphs are captured; the
one that places taps (`graph_taps.py`) does its work then, and only if asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns
from typing import Any

import torch

from eagletrace.instrumentations.patching import Target, replace_on
from eagletrace.instrumentations.sglang import hidden as hidden_states
from eagletrace.instrumentations.sglang.distributions import Topology
from eagletrace.instrumentations.sglang.graph_state import capture_probe
from eagletrace.instrumentations.sglang.graph_taps import Taps
from eagletrace.instrumentations.sglang.launch import SessionHook, first
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import ForwardFacts, Session

TAPS_VARIABLE = "EAGLETRACE_GRAPH_TAPS"
MAX_WIDTHS = 8  # pairs of widths told apart

# Hooks whose function is not called when the draft steps replay a graph.
STEP_HOOKS = ("v2.draft_forward", "v1.draft_forward", "runner.forward")

# Where the runners hang. The first attribute that is set counts: 0.5.16 and later, then older names (model_runner.py
# and the workers of 0.5.9, 0.5.13, 0.5.16, 0.5.20, 0.5.23).
_DRAFT, _EXTEND = ("cuda_graph_runner",), ("cuda_graph_runner_for_draft_extend",)
_DECODE = ("decode_cuda_graph_runner", "graph_runner")
_PREFILL = ("prefill_cuda_graph_runner", "piecewise_cuda_graph_runner")


class DraftReplay(SessionHook):
    """`EAGLEDraftCudaGraphRunner.execute(forward_batch)`: draft steps from a captured graph.

    Returns `(parent_list, top_scores_index, draft_tokens[, draft_probs])`, views of the graph's memory.
    """

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the topology of a tree, and what the taps hold."""
        session = self.session
        launch: Launch | None = session.launch
        if launch is None:
            return
        graphs = session.graphs
        graphs.draft_replays += 1
        parents, selected = result[0], result[1]
        if launch.topk > 1 and isinstance(selected, torch.Tensor):  # lists in 0.5.3
            launch.topology = Topology(parents.clone(), selected.clone(), launch.topk)
        bs = len(launch.reqs)
        if launch.wants_hidden:
            forward_batch = args[0] if args else kwargs["forward_batch"]
            given = getattr(forward_batch.spec_info, "hidden_states", None)
            hidden_states.observe(launch, "draft_in", given, range(bs), None)
        tapped = None if graphs.taps is None else graphs.taps.read(_shape(instance), bs * launch.topk)
        if tapped is None:
            return
        graphs.tapped_replays += 1
        if launch.wants_hidden:
            rows = range(0, bs * launch.topk, launch.topk)
            hidden_states.observe(launch, "draft_out", tapped.hidden, rows, None)
        launch.rope_positions.extend(tapped.positions)
        for logits in tapped.logits:
            launch.borrowed = True
            launch.add_step(logits)


class ExtendReplay(SessionHook):
    """`EAGLEDraftExtendCudaGraphRunner.execute(forward_batch[, select_index])`: a draft extend from a captured graph.

    Returns logits of each request (0.5.20 and later, and the first worker) or of each token, [bs or tokens, Vd].
    """

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The extend begins, where its phase has no hook."""
        session = self.session
        launch = session.launch
        if session.lean and launch is not None:
            session.phase, launch.extend_ns = "extend_decode", time_ns()

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a reference to the logits, and compare the width given with the buffer's."""
        session = self.session
        launch: Launch | None = session.launch
        if launch is None:
            return
        graphs = session.graphs
        graphs.extend_replays += 1
        forward_batch = args[0] if args else kwargs["forward_batch"]
        given = getattr(forward_batch.spec_info, "hidden_states", None)
        buffer = input_buffer(instance)
        if launch.tensors is not None:
            launch.tensors.extend(forward_batch)
        session.extend_output = result
        graphs.extend_logits = result.next_token_logits
        session.forward = ForwardFacts(None if given is None else given.shape[-1], None)
        _compare_widths(session, session.forward.input_width, None if buffer is None else buffer.shape[-1])
        if not launch.wants_hidden or buffer is None:
            return
        nodes, bs = launch.packet.nodes, len(launch.reqs)
        tokens = forward_batch.input_ids.shape[0]
        if tokens == nodes * bs:
            # What the fusion layer of the graph reads: its input buffer, whatever was copied into it.
            hidden_states.observe(launch, "fc_in", buffer, range(0, tokens, nodes), launch.slot_width)


class CaptureDraft(SessionHook):
    """`EAGLEDraftCudaGraphRunner.capture_one_shape(size, ...)` (`capture_one_batch_size` to 0.5.13): places the taps.

    While one shape is warmed up and captured, the worker's `draft_forward` and the draft's `forward` are replaced on
    their objects; afterwards the engine's own methods are seen again.
    """

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target, session)
        if session.recorder.settings.graph_taps and session.graphs.taps is None:
            session.graphs.taps = Taps()

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], None] | None:
        """Replace the two methods; returns what puts them back."""
        taps, steps = self.session.graphs.taps, getattr(instance, "speculative_num_steps", 0) - 1
        if taps is None or steps < 1:
            return None
        size = args[0] if args else next(iter(kwargs.values()))
        return tap_steps(taps, (id(instance), size), steps, instance.eagle_worker, instance.model_runner, self.swallow)

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put the methods back."""
        if token is not None:
            token()

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        """Put the methods back."""
        if token is not None:
            token()


def tap_steps(
    taps: Taps, shape: tuple[int, int], steps: int, worker: Any, runner: Any, swallow: Callable[[Exception], None]
) -> Callable[[], None]:
    """Tap each pass of `worker.draft_forward` and each `runner.forward` within it, until the returned call.

    `swallow` is given our own errors; a shape with one has no taps.
    """
    draft_forward, forward = worker.draft_forward, runner.forward

    def quietly(function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            taps.give_up()
            swallow(error)

    def tap_result(result: Any) -> None:
        output: Any = getattr(result, "logits_output", None) or first(result)
        taps.after_step(output.next_token_logits, output.hidden_states)

    def tapped_pass(*args: Any, **kwargs: Any) -> Any:
        taps.begin(shape, steps)
        return draft_forward(*args, **kwargs)

    def tapped_step(*args: Any, **kwargs: Any) -> Any:
        forward_batch = args[0] if args else kwargs.get("forward_batch")
        quietly(taps.before_step, getattr(forward_batch, "positions", None))
        result = forward(*args, **kwargs)
        quietly(tap_result, result)
        return result

    undos = [replace_on(worker, "draft_forward", tapped_pass), replace_on(runner, "forward", tapped_step)]

    def undo() -> None:
        taps.end()
        for one in undos:
            one()

    return undo


def _shape(runner: Any) -> tuple[int, int]:
    """The shape that was replayed last: runners keep its padded batch size (`bs`, 0.5.6 and later)."""
    return id(runner), getattr(runner, "bs", -1)


def input_buffer(runner: Any) -> torch.Tensor | None:
    """A runner's static hidden-state input: in `buffers` since 0.5.10.post1, a plain attribute before."""
    return getattr(getattr(runner, "buffers", runner), "hidden_states", None)


def _compare_widths(session: Session, given: int | None, buffer: int | None) -> None:
    """Record the widths of a draft extend's input and of the buffer it is copied to, once for each pair."""
    seen = session.graphs.widths
    if (given, buffer) in seen or len(seen) >= MAX_WIDTHS:
        return
    seen.add((given, buffer))
    session.recorder.fact("graph.draft_extend_input_width", buffer, given, "EAGLEDraftExtendCudaGraphRunner")


def captured(session: Session) -> None:
    """Record which graphs were captured, once the scheduler is built: decoding by batch size, prefills by tokens."""
    session.graphs.capturing = capture_probe()
    worker = session.worker
    drafter = getattr(worker, "_draft_worker", None) or worker
    places = (
        ("draft", drafter, _DRAFT), ("draft_extend", drafter, _EXTEND),
        ("target_verify", session.target_runner, _DECODE), ("target_prefill", session.target_runner, _PREFILL),
        ("draft_prefill", session.draft_runner, _PREFILL),
    )  # fmt: skip
    for name, owner, attributes in places:
        runner = next((r for r in (getattr(owner, a, None) for a in attributes) if r is not None), None)
        sizes, tokens = getattr(runner, "capture_bs", None), getattr(runner, "capture_num_tokens", None)
        if not sizes and not tokens:
            continue
        buffer = input_buffer(runner)
        session.recorder.event(
            "graph_captured", runner=name, batch_sizes=[int(n) for n in sizes or ()],
            token_counts=[int(n) for n in tokens or ()], type=type(runner).__name__,
            input_width=buffer.shape[-1] if isinstance(buffer, torch.Tensor) else None,
        )  # fmt: skip


def hidden_detail(session: Session, name: str) -> str | None:
    """Why a hook that stands does not see what it is there for; None if it does."""
    graphs = session.graphs
    unseen = graphs.draft_replays - graphs.tapped_replays
    if name not in STEP_HOOKS or not unseen:
        return None
    why = "no taps were placed for the batch size" if graphs.taps is not None else f"{TAPS_VARIABLE}=1 records them"
    return f"not called in {unseen} launches that drafted from a captured graph: depth 2 and deeper are NULL ({why})"


def fusion_row(session: Session) -> dict[str, Any] | None:
    """The `hooks` row of the module hooks on the draft's fusion layer; None without one."""
    if session.fc is None or session.draft_runner is None:
        return None
    graphs = session.graphs
    replays = graphs.extend_replays + graphs.prefill_replays
    name = next((n for n, m in session.draft_runner.model.named_modules() if m is session.fc), "fc")
    return {
        "target": f"{type(session.draft_runner.model).__name__}:{name}",
        "status": "graph_hidden" if replays else "installed",
        "errors": 0 if session.fusion is None else session.fusion.errors,
        "required": False,
        "detail": f"not called in {replays} extends that ran from a captured graph: fc_applied is NULL there"
        if replays else "module hooks of the draft's fusion layer",
    }  # fmt: skip
