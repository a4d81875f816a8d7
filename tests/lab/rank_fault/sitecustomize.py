"""In the data-parallel rank that RANK_FAULT names, the draft's last norm is negated after loading. For tests only."""

from __future__ import annotations

import os
from typing import Any

import wrapt


def _load(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    from sglang.srt.runtime_context import get_parallel

    result = wrapped(*args, **kwargs)
    if instance.is_draft_worker and get_parallel().dp_rank == int(os.environ["RANK_FAULT"]):
        instance.model.model.norm.weight.data.neg_()
    return result


def _wrap(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "ModelRunner.load_model", _load)


if os.environ.get("RANK_FAULT"):
    wrapt.register_post_import_hook(_wrap, "sglang.srt.model_executor.model_runner")
