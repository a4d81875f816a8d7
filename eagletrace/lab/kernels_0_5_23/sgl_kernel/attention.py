# ruff: noqa: ARG001  (the compiled kernels' signatures, which SGLang calls by position)
"""The two attention ops of SGLang's ``intel_amx`` backend (0.5.23: srt/layers/attention/intel_amx_backend.py).

``torch.ops.sgl_kernel.decode_attention_cpu`` and ``extend_attention_cpu``, computed with torch's
scaled_dot_product_attention, one request at a time. Left out, as the lab's models do not use them:
logit caps, sliding windows, cross attention, scaled (fp8) caches; asking for one raises.
"""

import torch
import torch.nn.functional as F

_DECODE = (
    "decode_attention_cpu(Tensor query, Tensor(a!) key_cache, Tensor(b!) value_cache, float k_scale, "
    "float v_scale, Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor(d!) attn_logits, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float scaling, float logit_cap, "
    "bool is_cross, int sliding_window, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_EXTEND = (
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(c!) output, Tensor key_cache, "
    "Tensor value_cache, float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, "
    "Tensor seq_lens, Tensor extend_lens, Tensor extend_starts, int max_extend_len, float scaling, "
    "float logit_cap, bool is_cross, int sliding_window, Tensor? encoder_lens, Tensor? sinks, "
    "Tensor? tree_mask, bool is_causal) -> ()"
)
_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def register() -> None:
    """Define both ops and give them their CPU implementation; called once, at import."""
    _library.define(_DECODE)
    _library.define(_EXTEND)
    _library.impl("decode_attention_cpu", decode_attention, "CPU")
    _library.impl("extend_attention_cpu", extend_attention, "CPU")


def _refuse_unsupported(logit_cap: float, is_cross: bool, sliding_window: int) -> None:
    if logit_cap > 0 or is_cross or sliding_window > 0:
        raise NotImplementedError("the lab's attention stand-in has no logit cap, cross attention or sliding window")


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of one request: query [Lq, Hq, D], key and value [Lk, Hkv, D] -> [Lq, Hq, Dv].

    A head's sink [Hq] is one more score in its softmax, which has no value.
    """
    if sinks is not None:
        key, value = torch.cat([key, torch.zeros_like(key[:1])]), torch.cat([value, torch.zeros_like(value[:1])])
        scores = sinks.to(query.dtype)[:, None, None].expand(-1, len(query), -1)
        seen = torch.zeros(len(sinks), len(query), len(key) - 1, dtype=query.dtype)
        seen = seen if mask is None else seen.masked_fill(~mask, float("-inf"))
        mask = torch.cat([seen, scores], -1)
    output = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None].to(query.dtype),
        value.transpose(0, 1)[None].to(query.dtype),
        attn_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[0].transpose(0, 1)


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    is_cross: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """One query token per request; writes the new key and value into the cache first."""
    _refuse_unsupported(logit_cap, is_cross, sliding_window)
    if key is not None and value is not None:
        key_cache[loc.long()] = key.view(-1, *key_cache.shape[1:]).to(key_cache.dtype)
        value_cache[loc.long()] = value.view(-1, *value_cache.shape[1:]).to(value_cache.dtype)
    for row, (pool_row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=False)):
        slots = req_to_token[pool_row, :length].long()
        output[row : row + 1] = _attend(
            query[row : row + 1], key_cache[slots], value_cache[slots], scaling, None, sinks
        )


def extend_attention(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    extend_starts: torch.Tensor,
    max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens per request after a cached prefix; ``tree_mask`` is D x D per request.

    As in the compiled op, the prefix is read from the cache and the new part from the arguments:
    an MLA model prefills with keys and values wider than its latent cache.
    """
    _refuse_unsupported(logit_cap, is_cross, sliding_window)
    mask_start = 0
    for pool_row, length, new, start in zip(
        req_pool_indices.tolist(), seq_lens.tolist(), extend_lens.tolist(), extend_starts.tolist(), strict=False
    ):
        if new == 0:
            continue
        prefix = length - new
        slots = req_to_token[pool_row, :length].long()
        if key is None or value is None:
            keys, values = key_cache[slots], value_cache[slots]
        else:
            keys = key.reshape(query.shape[0], -1, query.shape[-1])[start : start + new]
            values = value.reshape(query.shape[0], -1, output.shape[-1])[start : start + new]
            if prefix:
                keys = torch.cat([key_cache[slots[:prefix]], keys.to(key_cache.dtype)])
                values = torch.cat([value_cache[slots[:prefix]], values.to(value_cache.dtype)])
        mask = None
        if tree_mask is not None:
            tree = tree_mask.view(-1)[mask_start : mask_start + new * new].view(new, new).bool()
            mask_start += new * new
            mask = torch.cat([torch.ones(new, prefix, dtype=torch.bool), tree], 1)
        elif is_causal:
            mask = torch.ones(new, length, dtype=torch.bool).tril(prefix)
        output[start : start + new] = _attend(query[start : start + new], keys, values, scaling, mask, sinks)
