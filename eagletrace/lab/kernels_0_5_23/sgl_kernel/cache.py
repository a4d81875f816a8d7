# ruff: noqa: ARG001  (the compiled kernels' signatures, which SGLang calls by position)
"""KV-cache bookkeeping kernels of SGLang 0.5.23's EAGLE path on a CPU, in plain torch.

Arguments are positional in SGLang; ``req_to_token`` [pool rows, max length] maps a request's
positions to cache slots, ``pool_len`` is its row length (the compiled kernels need it, torch does not).
"""

import ctypes
from collections.abc import Iterator

import torch


def _windows(
    req_pool_indices: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> Iterator[tuple[int, int, int, int]]:
    """(pool row, start, end, offset in the packed list) of every request."""
    offset = 0
    for row, start, end in zip(req_pool_indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield row, start, end, offset
        offset += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write newly allocated slots into the requests' rows (srt/mem_cache/allocation.py)."""
    for row, start, end, offset in _windows(req_pool_indices, starts, ends):
        req_to_token[row, start:end] = out_cache_loc[offset : offset + end - start].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Gather the slots of each window, packed (kernels/ops/speculative/cache_locs.py)."""
    for row, start, end, offset in _windows(req_pool_indices, starts, ends):
        out_cache_loc[offset : offset + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Gather the ``topk * num_steps`` draft slots after each sequence (kernels/ops/speculative/cache_locs.py)."""
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_steps, out_cache_loc, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """A ``req_to_token`` with one row per draft branch: the prefix, then the branch's own slots.

    Stands for the kernel that srt/layers/attention/intel_amx_backend.py builds its draft steps on.
    """
    branches = torch.zeros((req_pool_indices.numel() * topk, pool_len), dtype=req_to_token.dtype)
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            own = length + branch * num_steps
            target = branches[request * topk + branch]
            target[:length] = req_to_token[row, :length]
            target[length : length + num_steps] = req_to_token[row, own : own + num_steps]
    return branches


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, stride: int
) -> None:
    """The last accepted token of every request; ``accept_lens`` counts the bonus (kernels/ops/speculative/eagle.py)."""
    last = torch.arange(accept_lens.numel()) * stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype))


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """The slots of accepted nodes (index > -1), packed (kernels/ops/speculative/eagle.py)."""
    accepted = accept_index[accept_index > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, target_loc: torch.Tensor, source_loc: torch.Tensor
) -> None:
    """Move cache rows of all layers, after a tree path was accepted (kernels/ops/kvcache/cache_move.py).

    ``data_ptrs`` are raw addresses and ``strides`` the bytes per row; every source row is read before
    the first one is written, as source and target may overlap.
    """
    sources, targets = source_loc.tolist(), target_loc.tolist()
    for pointer, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        base = pointer & (2**64 - 1)
        rows = [ctypes.string_at(base + row * size, size) for row in sources]
        for row, content in zip(targets, rows, strict=True):
            ctypes.memmove(base + row * size, content, size)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_starts: torch.Tensor,
    extend_lens: torch.Tensor,
    new_tokens: torch.Tensor,
    select_index: torch.Tensor | None,
) -> None:
    """Shift each request's tokens left by one and put its new token at the end or at ``select_index``.

    Used by multi-layer EAGLE only (kernels/ops/speculative/multi_layer_eagle.py).
    """
    for request, (start, length) in enumerate(zip(extend_starts.tolist(), extend_lens.tolist(), strict=True)):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[request])
        input_ids[last] = new_tokens.reshape(-1)[request]
