"""The weights of a draft in training: `params` rows, checksums of their roundings, and the target's embedding and head.

Checksums are those of a served run, so that a tensor of the exported file that holds the same values has the same one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from eagletrace.checkpoint import open_checkpoint
from eagletrace.checkpoint.target import describe_target
from eagletrace.instrumentations.tensor_stats import checksum, place, summary
from eagletrace.instrumentations.training.parts import is_sharded

ROUNDINGS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROWS = 4096  # of an embedding at a time


def param_row(name: str, tensor: torch.Tensor, module_type: str | None, shared_with: str | None) -> dict[str, Any]:
    """The `params` row of a parameter or map as it is now; of a shard name, shape and dtype alone."""
    row: dict[str, Any] = {
        "side": "draft", "name": name, "elements": tensor.numel(), "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."), "phase": "training", "epoch": 0, "module_type": module_type,
        "shared_with": shared_with, "time_unix_nano": time.time_ns(),
    }  # fmt: skip
    if is_sharded(tensor):
        return row
    numbers = summary(tensor) if tensor.is_floating_point() else {}
    return row | {"checksum": checksum(tensor), **numbers}


def rounded(tensors: Sequence[tuple[str, torch.Tensor]]) -> dict[str, dict[str, str]]:
    """Checksums of the values rounded to the dtypes that files are written in; of those that are wider."""
    return {
        name: {dtype: checksum(tensor, rounded_to=to) for dtype, to in ROUNDINGS.items()}
        for name, tensor in tensors
        if tensor.dtype in (torch.float32, torch.float64) and not is_sharded(tensor)
    }


def is_tied(draft: nn.Module) -> bool:
    """Whether the head is the embedding."""
    embed, head = (getattr(getattr(draft, name, None), "weight", None) for name in ("embed_tokens", "lm_head"))
    if not isinstance(embed, torch.Tensor) or not isinstance(head, torch.Tensor):
        return False
    return embed is head or (not is_sharded(embed) and not is_sharded(head) and place(embed) == place(head))


def against_target(draft: nn.Module, folder: Path, ids: torch.Tensor) -> dict[str, dict[str, Any] | None]:
    """The draft's `embed` and `head` against the target's embedding and the rows `ids` [Vd] of its head.

    Each `{key, rows, equal_rows, equal, rounded_to, relative_difference}`; None where one of the two has none.
    CheckpointError for a folder that holds no target.
    """
    files = open_checkpoint(folder)
    target = describe_target(files)
    found: dict[str, dict[str, Any] | None] = {}
    for what, name, key in (("embed", "embed_tokens", target.embed_key), ("head", "lm_head", target.head_key)):
        mine = getattr(getattr(draft, name, None), "weight", None)
        if not isinstance(mine, torch.Tensor) or key is None or is_sharded(mine):
            found[what] = None
            continue
        rows = ids if what == "head" else torch.arange(mine.shape[0])
        found[what] = {"key": key, **_compared(mine, files.read(key), rows)}
    return found


def _compared(mine: torch.Tensor, theirs: npt.NDArray[Any], rows: torch.Tensor) -> dict[str, Any]:
    """Rows [N, H] of the draft's against rows of the target's, in the target's dtype and as they are."""
    if mine.shape[1:] != theirs.shape[1:] or (rows.numel() and int(rows.max()) >= theirs.shape[0]):
        return {"rows": int(mine.shape[0]), "equal_rows": 0, "equal": False, "rounded_to": None,
                "relative_difference": None, "shapes": [list(mine.shape), list(theirs.shape)]}  # fmt: skip
    exact = near = 0
    apart = whole = 0.0
    for start in range(0, rows.numel(), ROWS):
        part = mine.detach()[start : start + ROWS].cpu()
        other = _tensor(theirs[rows[start : start + ROWS].numpy()])
        exact += int((part.float() == other.float()).all(-1).sum())
        near += int((part.to(other.dtype) == other).all(-1).sum())
        apart += float((part.double() - other.double()).square().sum())
        whole += float(other.double().square().sum())
    count = rows.numel()
    rounded_to = str(theirs.dtype) if near == count and exact < count else None
    return {
        "rows": count, "equal_rows": max(exact, near), "equal": count == max(exact, near), "rounded_to": rounded_to,
        "relative_difference": (apart / whole) ** 0.5 if whole else None,
    }  # fmt: skip


def _tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """A copy of values of a file."""
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(values).view(np.int16).copy()).view(torch.bfloat16)
    if values.dtype.kind == "V" or values.dtype.name.startswith("float8"):
        values = values.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(values).copy())


def versions(tensors: Sequence[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """How often each tensor was written in place, by torch's own count."""
    return {name: tensor._version for name, tensor in tensors if not tensor.is_inference()}


def changed(before: Mapping[str, int], tensors: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of the tensors that were written since."""
    return [name for name, version in versions(tensors).items() if version != before.get(name)]
