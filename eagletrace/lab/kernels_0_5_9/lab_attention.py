"""EAGLE attention for SGLang 0.5.9 on a CPU: its ``torch_native`` backend cannot draft or verify.

``CpuAttnBackend`` adds tree verification, draft extension and the multi-branch draft steps to
SGLang's own ``TorchNativeAttnBackend`` (srt/layers/attention/torch_native_backend.py).
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

Plan = tuple[int, torch.Tensor, torch.Tensor | None]
"""(number of queries, cache slots of their keys, mask [queries, slots] or None)."""


class CpuAttnBackend(TorchNativeAttnBackend):
    """Attention of one runner; with ``steps`` set, of draft step ``step`` over ``topk`` branches."""

    def __init__(self, runner: Any, topk: int = 1, steps: int = 0, step: int = 0) -> None:
        super().__init__(runner)
        self.topk, self.steps, self.step = topk, steps, step

    def _draft_branches(self, slots: torch.Tensor, length: int) -> Iterator[Plan]:
        """Each branch sees the prefix and its own ``step + 1`` tokens."""
        for branch in range(self.topk):
            start = length + branch * self.steps
            yield 1, torch.cat([slots[:length], slots[start : start + self.step + 1]]), None

    def _plans(self, batch: Any) -> Iterator[Plan]:
        table, mode, mask_start = batch.req_to_token_pool.req_to_token, batch.forward_mode, 0
        for index, (row, length) in enumerate(
            zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=False)
        ):
            if mode.is_decode() and self.steps:
                yield from self._draft_branches(table[row], length)
            elif mode.is_decode():
                yield 1, table[row, :length], None
            elif mode.is_target_verify():  # seq_lens excludes the drafts here
                nodes = batch.spec_info.draft_token_num
                size = nodes * (length + nodes)
                mask = batch.spec_info.custom_mask[mask_start : mask_start + size]
                mask_start += size
                yield nodes, table[row, : length + nodes], mask.view(nodes, length + nodes)
            else:
                new = int(batch.extend_seq_lens_cpu[index])
                causal = torch.ones(new, length, dtype=torch.bool).tril(length - new)
                yield new, table[row, :length], causal

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **_kwargs: Any,
    ) -> torch.Tensor:
        """Write the new keys and values, then attend request by request: [T, Hq * D]."""
        pool = forward_batch.token_to_kv_pool
        if save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        output = torch.zeros(len(queries), layer.tp_q_head_num * layer.v_head_dim, dtype=q.dtype)
        start = 0
        for count, slots, mask in self._plans(forward_batch):
            query, key, value = (
                part.transpose(0, 1)[None].to(q.dtype)
                for part in (queries[start : start + count], keys[slots.long()], values[slots.long()])
            )
            attended = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=layer.scaling, enable_gqa=True
            )
            output[start : start + count] = attended[0].transpose(0, 1).flatten(1)
            start += count
        return output

    forward_extend = forward_decode = _attend


class CpuMultiStepDraftBackend:
    """One backend per draft step that runs the draft model (the first drafts come from draft extend)."""

    def __init__(self, runner: Any, topk: int, steps: int) -> None:
        self.attn_backends = [CpuAttnBackend(runner, topk, steps, step) for step in range(steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Nothing to prepare: every step plans from the batch."""
