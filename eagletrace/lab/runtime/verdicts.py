"""Patches of the verdict on drafts."""

from __future__ import annotations

from functools import wraps
from typing import Any

from eagletrace.lab.runtime import Patch

KERNELS = "sglang.kernels.ops.speculative.spec_tree"
NO_TOKEN = -1


def reject_everything(module: Any) -> None:
    """The greedy verdict compares the target's choices with no token: every draft is rejected, right or not."""
    original = module.verify_tree_greedy_func

    @wraps(original)
    def verify(*args: Any, candidates: Any, **kwargs: Any) -> Any:
        shown = candidates.clone()
        shown[:, 1:] = NO_TOKEN
        return original(*args, candidates=shown, **kwargs)

    module.verify_tree_greedy_func = verify


PATCHES = (Patch("verdict-rejects", KERNELS, reject_everything),)
