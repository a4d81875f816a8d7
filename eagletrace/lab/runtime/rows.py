"""Patches of some rows of a batch, or of some rounds of a request."""

from __future__ import annotations

from functools import wraps
from typing import Any

from eagletrace.lab.runtime import Patch
from eagletrace.lab.runtime.hidden import WORKER


def select_the_last_row(module: Any) -> None:
    """After the draft's extend every request of a batch continues from the row of the last request."""
    original = module.EagleDraftWorker._draft_extend_for_decode

    @wraps(original)
    def extend(self: Any, batch: Any, batch_result: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        lengths = batch_result.accept_lens
        width = self.speculative_num_draft_tokens
        selected = torch.arange(len(lengths), device=lengths.device) * width + lengths - 1
        selected[:] = selected[-1:].clone()
        tokens = batch_result.next_token_ids.to(torch.int64)
        batch_result.prepared_draft_extend_inputs = (lengths - 1, selected, tokens)
        return original(self, batch, batch_result, *args, **kwargs)

    module.EagleDraftWorker._draft_extend_for_decode = extend


def lose_the_handover(module: Any) -> None:
    """What a prefill hands to the first round (hidden state, first draft token) is zero, as if it were not sent."""
    original = module.EagleDraftWorker._draft_extend_for_prefill

    @wraps(original)
    def extend(self: Any, *args: Any, **kwargs: Any) -> Any:
        handed = original(self, *args, **kwargs)
        handed.hidden_states = handed.hidden_states * 0
        handed.topk_index = handed.topk_index * 0
        return handed

    module.EagleDraftWorker._draft_extend_for_prefill = extend


PATCHES = (
    Patch("last-row-selected", WORKER, select_the_last_row),
    Patch("handover-lost", WORKER, lose_the_handover),
)
