"""``python -m lab_launch_server ARGS``: ``sglang.launch_server`` of SGLang 0.5.9 with the CPU stand-ins.

SGLang starts its scheduler and detokenizer with multiprocessing's spawn, which imports this module
again in every child (as ``__mp_main__``): that is how the stand-ins reach them. They are applied when
SGLang imports the module that needs them, so a process that never drafts imports nothing of them.
SGLang's workers, scheduler, models and loader are untouched, its Triton kernels run in Triton's
interpreter (TRITON_INTERPRET=1 in the server's environment).
"""

# ruff: noqa: ARG005  (signatures of what they replace)
import runpy
from types import ModuleType
from typing import Any

import wrapt


def _attention_backends(registry: ModuleType) -> None:
    """srt/layers/attention/attention_registry.py: ``torch_native`` becomes one that can draft."""

    def create(runner: Any) -> Any:
        from lab_attention import CpuAttnBackend

        return CpuAttnBackend(runner)

    registry.ATTENTION_BACKENDS["torch_native"] = create


def _draft_backends(module: ModuleType) -> None:
    """srt/speculative/draft_utils.py: the factory knows only GPU backends."""

    def create_decode_backend(factory: Any) -> Any:
        from lab_attention import CpuMultiStepDraftBackend

        if factory.speculative_num_steps == 1:
            return None
        return CpuMultiStepDraftBackend(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)

    module.DraftBackendFactory.create_decode_backend = create_decode_backend
    module.DraftBackendFactory.create_draft_extend_backend = lambda factory: None


def _tree_kernels(module: ModuleType) -> None:
    """srt/speculative/eagle_utils.py: names that are bound only under is_cuda()."""
    import torch
    from sgl_kernel import build_tree_kernel_efficient

    module.sgl_build_tree_kernel_efficient = build_tree_kernel_efficient
    module._is_cuda = True  # verify_tree_greedy_func: take sgl_kernel's
    torch.cuda.synchronize = lambda device=None: None  # set_embed calls it on any device
    torch.Tensor.record_stream = lambda self, stream: None  # the v2 worker; CPU tensors refuse it


def _cache_kernels(module: ModuleType) -> None:
    """srt/speculative/eagle_info_v2.py: assign_extend_cache_locs_func takes the Triton kernel."""
    module._is_cuda = True


def _text_only(module: ModuleType) -> None:
    """srt/server_args.py: no flag switches multimodal input off, and no image processor is at hand."""
    module.ServerArgs.enable_multimodal = False


wrapt.register_post_import_hook(_text_only, "sglang.srt.server_args")
wrapt.register_post_import_hook(_attention_backends, "sglang.srt.layers.attention.attention_registry")
wrapt.register_post_import_hook(_draft_backends, "sglang.srt.speculative.draft_utils")
wrapt.register_post_import_hook(_tree_kernels, "sglang.srt.speculative.eagle_utils")
wrapt.register_post_import_hook(_cache_kernels, "sglang.srt.speculative.eagle_info_v2")

if __name__ == "__main__":
    # Without alter_sys this module stays __main__, which is what the children import.
    runpy.run_module("sglang.launch_server", run_name="__main__")
