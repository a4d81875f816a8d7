"""Patches of where the draft believes to be."""

from __future__ import annotations

from functools import wraps
from typing import Any

from eagletrace.lab.runtime import Patch
from eagletrace.lab.runtime.hidden import RUNNER, WORKER

STEPS_OFFSET = 300
LIMIT = 128
"""Positions from which on the draft's answer is a constant."""
CONSTANT = 7
"""The draft-vocabulary id that is then drafted."""


def shift_steps(module: Any) -> None:
    """The draft's steps (depth 2 and deeper) run at positions that are too high."""
    original = module.EagleDraftWorker.draft_forward

    @wraps(original)
    def draft_forward(self: Any, forward_batch: Any) -> Any:
        forward_batch.positions = forward_batch.positions + STEPS_OFFSET
        return original(self, forward_batch)

    module.EagleDraftWorker.draft_forward = draft_forward


def limit_length(module: Any) -> None:
    """From a position on, the draft's logits have their maximum at one constant token."""
    original = module.ModelRunner.forward

    @wraps(original)
    def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, forward_batch, *args, **kwargs)
        if not self.is_draft_worker or forward_batch.forward_mode.is_idle():
            return result
        logits, positions = result.logits_output.next_token_logits, forward_batch.positions
        if logits.shape[0] != positions.shape[0]:  # of a prefill, the last row of each request
            positions = forward_batch.seq_lens - 1
        logits[positions >= LIMIT, CONSTANT] = logits.max() + 1
        return result

    module.ModelRunner.forward = forward


PATCHES = (
    Patch("steps-shifted", WORKER, shift_steps),
    Patch("length-limited", RUNNER, limit_length),
)
