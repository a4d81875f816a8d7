"""Statistics of hidden states on one launch in N: of the root's row of each request, a few numbers a state.

Reduced on the device and staged with the other facts of the launch; nothing is kept at level `tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.tensor_stats import moments
from eagletrace.record.device import stage
from eagletrace.record.rounds import HiddenFacts


def observe(
    launch: Launch, name: str, hidden: torch.Tensor | None, rows: Sequence[int], slot_width: int | None
) -> None:
    """Stage the `moments` of rows of a state, [rows, width], each slot of `slot_width` apart."""
    if hidden is None or not launch.wants_hidden or not rows or max(rows) >= hidden.shape[0]:
        return
    width = hidden.shape[-1]
    slots = width // slot_width if slot_width and width % slot_width == 0 else 1
    values = _rows(hidden.detach(), rows).float().view(len(rows), slots, width // slots)
    readers = stage(moments(values))
    rms, bad, kurtosis = readers["rms"], readers["nan_count"], readers["kurtosis"]
    if rms is not None and bad is not None and kurtosis is not None:
        facts = HiddenFacts(name, slots, width // slots, rms, bad, kurtosis)
        launch.packet.hidden = (*launch.packet.hidden, facts)


def _rows(hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows, without a copy that waits for the device: evenly spaced ones are a slice."""
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    if list(rows) == list(range(rows[0], rows[0] + step * len(rows), step)):
        return hidden[rows[0] :: step][: len(rows)].contiguous()
    index = torch.tensor(rows, pin_memory=hidden.is_cuda).to(hidden.device, non_blocking=True)
    return hidden.index_select(0, index)
