"""CPU stand-in for the compiled package ``sgl_kernel``, as SGLang 0.5.23 imports it.

Put this folder's parent and ``kernels_shared`` on PYTHONPATH of the server. Only what EAGLE
decoding of a dense model needs is here: anything else is absent, so that SGLang falls back to its
own torch code or says which kernel it misses.
"""

import torch
from lab_tree_kernels import build_tree as build_tree_kernel_efficient_cpu
from lab_tree_kernels import verify_tree_greedy as verify_tree_greedy_cpu

from sgl_kernel import attention as _attention
from sgl_kernel.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)

_attention.register()
if not torch.cuda.is_available():  # Eagle3DeepseekV2ForCausalLM.set_embed calls it on any device
    torch.cuda.synchronize = lambda device=None: None  # noqa: ARG005

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
