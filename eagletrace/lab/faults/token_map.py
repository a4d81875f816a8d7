"""Token maps as SGLang reads them (`--speculative-token-map`, `speculative/spec_utils.py` `load_token_map`, 0.5.23)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from eagletrace.lab.faults.changes import tensor_of
from eagletrace.lab.faults.checkpoint import Checkpoint

_HASH_DIGITS = 12


def write_token_map(draft: Checkpoint, parent: Path) -> Path:
    """The draft vocabulary of a draft as a file below `parent`: a list of target ids, saved by torch.

    The name tells nothing of which; NoEffectError for a draft without `d2t`.
    """
    d2t = tensor_of(draft, "d2t")
    ids: list[int] = (d2t + torch.arange(len(d2t))).tolist()
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / f"map-{hashlib.sha256(repr(ids).encode()).hexdigest()[:_HASH_DIGITS]}.pt"
    torch.save(ids, path)
    return path
