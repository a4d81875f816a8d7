"""Facts of a map from draft ids to target ids."""

from __future__ import annotations

from typing import Any

import torch


def map_facts(ids: torch.Tensor, vocab_size: int | None, t2d: torch.Tensor | None = None) -> dict[str, Any]:
    """Facts of a map from draft ids to target ids, shape [Vd]; `t2d` is a boolean [V]."""
    ids = ids.detach().to("cpu", torch.int64).reshape(-1)
    if not ids.numel():
        return {"length": 0}
    low, high = int(ids.min()), int(ids.max())
    distinct = len(set(ids.tolist()))
    facts: dict[str, Any] = {
        "length": ids.numel(), "min": low, "max": high,
        "in_range": None if vocab_size is None else low >= 0 and high < vocab_size,
        "out_of_range": None if vocab_size is None else int(((ids < 0) | (ids >= vocab_size)).sum()),
        "monotone": bool((ids[1:] > ids[:-1]).all()), "unique": distinct == ids.numel(),
        "distinct": distinct,
        "descents": int((ids[1:] <= ids[:-1]).sum()),
        "identity": bool((ids == torch.arange(ids.numel())).all()),
    }  # fmt: skip
    if t2d is not None:
        marked = t2d.detach().to("cpu").reshape(-1).to(torch.bool)
        inside = ids[(ids >= 0) & (ids < marked.numel())]
        facts["t2d_agreement"] = float(marked[inside].sum()) / ids.numel()
    return facts
