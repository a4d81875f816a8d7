"""Rounds of SGLang's multi-layer EAGLE worker: a draft for each step, all of which run in the extend.

What `draft` returns was drafted in the extend of the round before, or of the prefill: draft k + 1 has the logits of the
k-th runner of `draft_runner_list`. `forward.py` sees them one by one; no step runs in `draft`, and the positions of all
drafts are those of the extend. Read from srt/speculative/multi_layer_eagle_worker_v2.py, multi_layer_eagle_worker.py
(0.5.9) and multi_layer_eagle_draft_extend_cuda_graph_runner.py of 0.5.9, 0.5.20 and 0.5.23.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from eagletrace.instrumentations.sglang.launch import Draft, ExtendDecodeV2, SessionHook
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import ForwardFacts


class DraftOfSteps(Draft):
    """`draft(batch)`: puts together what was drafted in the extend."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Of a recorded request the best ids of all depths; the worker keeps no hidden state of a draft."""
        session = self.session
        launch: Launch | None = session.launch
        tensors = None if launch is None else launch.tensors
        if launch is not None and tensors is not None:
            launch.tensors = None
            tensors.begin(None, launch.first)
            for logits in launch.step_logits:
                tensors.stepped(None, logits)
        started = super().before(args, kwargs)
        if launch is not None:
            launch.tensors = tensors
        return started


class ExtendDecodeOfSteps(ExtendDecodeV2):
    """`_draft_extend_for_decode(batch, batch_result, ...)`: each step's draft in turn."""

    def after(self, token: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry each request's logits of every step to its next round."""
        session = self.session
        launch: Launch | None = session.launch
        first = session.extend_output
        if launch is not None and first is not None:
            given = args[2] if len(args) > 2 else kwargs.get("batch_result")
            width, accepted = launch.packet.nodes, getattr(given, "accept_lens", None)
            chosen = [last_rows(logits, accepted, width) for logits in (first.next_token_logits, *session.later_logits)]
            session.extend_output, session.later_logits = SimpleNamespace(next_token_logits=chosen[0]), chosen[1:]
        super().after(token, result, args, kwargs)


def last_rows(logits: torch.Tensor, accepted: torch.Tensor | None, nodes: int) -> torch.Tensor:
    """Each request's row behind its last accepted token, [bs, Vd].

    The extend's logits are these rows already, or those of all its tokens: `nodes` of each request, behind as many in
    front as the release widens it by (`draft_extend_num_front_tokens`). `accepted` [bs] counts the bonus.
    """
    if accepted is None or not accepted.numel() or logits.size(0) == accepted.numel():
        return logits
    rows, left = divmod(logits.size(0), accepted.numel())
    if left or rows < nodes:
        return logits
    ends = torch.arange(rows - nodes, logits.size(0), rows, device=logits.device)
    return logits.index_select(0, ends + accepted.to(torch.int64) - 1)


class StepReplay(SessionHook):
    """`MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.replay(step)`: the extend of one step from a captured graph.

    Returns `(logits_output, topk_p, topk_index)` in memory that the next step's graph uses again. The logits are those
    of each request, [bs or more, Vd], or of all tokens; `raw_bs` requests of the graph's are real.
    """

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy the logits at once."""
        session = self.session
        if session.launch is None:
            return
        step, bs, logits = (args[0] if args else kwargs["step"]), instance.raw_bs, result[0].next_token_logits
        buffers = instance.buffers
        pruned = getattr(instance, "prune_draft_extend_logits", False)
        kept = logits[:bs].clone() if pruned else logits.index_select(0, buffers.select_index[:bs].to(torch.int64))
        if step == 0:
            session.graphs.extend_replays += 1
            session.forward = ForwardFacts(buffers.hidden_states.shape[-1], None)
        session.step_extended(SimpleNamespace(next_token_logits=kept), first=step == 0)
