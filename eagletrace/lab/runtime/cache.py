"""Patches of the draft's own KV cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from eagletrace.lab.runtime import Patch
from eagletrace.lab.runtime.hidden import WORKER

KEY_SCALE = 3.0


def rescale_prefixes(module: Any) -> None:
    """Where the prefix cache has a part of a prompt, the draft's keys of that part come back at another scale.

    As when a cache that is quantised or kept on the host is read without its scale, for the draft alone.
    """
    _rescale(module, lambda cached, length: cached == length)


def rescale_chunks(module: Any) -> None:
    """Of a prompt that is prefilled in chunks, the draft's keys of the chunks before stand at another scale."""
    _rescale(module, lambda cached, length: cached < length)


def _rescale(module: Any, concerns: Callable[[int, int], bool]) -> None:
    """Where `concerns(tokens from the prefix cache, tokens before this extend)`, the keys of the latter."""
    original = module.EagleDraftWorker._draft_extend_for_prefill

    @wraps(original)
    def extend(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        for request, pool_index, length in zip(batch.reqs, batch.req_pool_indices, batch.prefix_lens, strict=True):
            if length and concerns(int(request.cached_tokens), int(length)):
                slots = self.req_to_token_pool.req_to_token[pool_index, : int(length)].long()
                for buffer in self.draft_runner.token_to_kv_pool.k_buffer:
                    scale_once(buffer, slots)
        return original(self, batch, *args, **kwargs)

    module.EagleDraftWorker._draft_extend_for_prefill = extend


_scaled: dict[int, Any] = {}
"""Per key buffer, by address, its rows as `scale_once` left them."""


def scale_once(buffer: Any, slots: Any) -> None:
    """Multiply rows of a key buffer [slots, ...] that were written since they were last multiplied."""
    import torch

    kept = _scaled.setdefault(buffer.data_ptr(), torch.full_like(buffer, float("nan")))
    rows = buffer[slots]
    fresh = (rows != kept[slots]).flatten(1).any(1)
    rows[fresh] *= KEY_SCALE
    buffer[slots] = kept[slots] = rows


PATCHES = (
    Patch("prefixes-rescaled", WORKER, rescale_prefixes),
    Patch("chunks-rescaled", WORKER, rescale_chunks),
)
