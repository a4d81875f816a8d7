"""Which tensors of a draft's file are the draft's own, and what of a parameter no tensor has to write."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from eagletrace.instrumentations.landing import KeyRecord
from eagletrace.instrumentations.sglang import facts
from eagletrace.instrumentations.sglang.draft_models import of_another_step
from eagletrace.instrumentations.sglang.families import NEXTN, SHARED_PARTS
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.targets import SKIPPED_BY_DESIGN

PROJECTIONS = {".w13_weight": 2, ".w2_weight": 1, ".gate_up_proj.weight": 2, ".down_proj.weight": 1}
"""Tensors of a feed-forward block, or of each of its experts, that a parameter is made of: gate and up, down."""


def passed_over(model: torch.nn.Module) -> tuple[str, ...]:
    """Parts of the names of tensors that the engine leaves out on purpose."""
    return (*SKIPPED_BY_DESIGN, *(SHARED_PARTS if NEXTN.classes.search(type(model).__name__) else ()))


def of_the_target(session: Session, model: torch.nn.Module) -> Callable[[str], bool]:
    """Whether a tensor of the draft's file is the target's, or that of another step's draft, by its name.

    A layer of multi-token prediction may stand in the target's own checkpoint, behind its layers, or under `mtp`; the
    engine then goes through the whole of it and passes over the rest.
    """
    if not NEXTN.classes.search(type(model).__name__):
        return lambda _: False
    args, layers = session.server_args, facts.layers(session.target_runner)
    draft, target = (getattr(args, name, None) for name in ("speculative_draft_model_path", "model_path"))
    same = draft is None or (target is not None and os.path.realpath(draft) == os.path.realpath(target))
    another = of_another_step(session.loading, layers, facts.prediction_layers(session.target_runner))
    if not same or layers is None:
        return another

    def targets(key: str) -> bool:
        number = re.search(r"(?:^|\.)layers\.(\d+)\.", key)
        return another(key) or ("mtp" not in key and (number is None or int(number[1]) < layers))

    return targets


def widened(name: str, tensor: torch.Tensor, keys: Iterable[KeyRecord], written: int) -> bool:
    """Whether a parameter of a feed-forward block [rows, width], or of experts [experts, rows, width], lacks nothing
    but the zeros that the engine widens the inner size by: all its projections landed in it.

    On a CPU, and for some kernels, SGLang pads that size (layers/moe/fused_moe_triton/layer.py, 0.5.23).
    """
    parts = next((count for end, count in PROJECTIONS.items() if name.endswith(end)), None)
    if parts is None or tensor.dim() not in (2, 3) or not written:
        return False
    blocks = tensor.shape[0] if tensor.dim() == 3 else 1
    places = [place for record in keys for place in record.landed if place["parameter"] == name]
    landed = Counter(place["offset"] * blocks // tensor.numel() for place in places)
    return landed == dict.fromkeys(range(blocks), parts) and int(torch.count_nonzero(tensor).item()) <= written
