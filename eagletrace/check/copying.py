"""Writes a repaired copy of a draft: complete or not at all, and never where something is."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy.typing as npt

from eagletrace.check.repair import Plan
from eagletrace.checkpoint import Checkpoint, CheckpointError
from eagletrace.checkpoint.dtypes import NUMPY
from eagletrace.checkpoint.folder import CONFIG, WEIGHTS
from eagletrace.checkpoint.write import write_safetensors

MAX_COPIED = 256_000_000
"""Bytes of a file beside the weights (tokenizer, templates) up to which it is copied."""
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")


def refuse_occupied(out: Path, draft: Path) -> None:
    """CheckpointError unless `out` is free: it does not exist, or is an empty folder outside the draft's."""
    if out.resolve() == draft.resolve() or draft.resolve() in out.resolve().parents:
        raise CheckpointError(f"{out} lies in the draft's own folder: give another one for the repaired copy")
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise CheckpointError(f"{out} exists and is not an empty folder: give a new one for the repaired copy")


def write_copy(checkpoint: Checkpoint, plan: Plan, out: Path) -> None:
    """Write the draft with the plan's changes; tensors are streamed from the mapped files."""
    refuse_occupied(out, checkpoint.path)
    packed = [info.key for info in checkpoint.infos() if NUMPY[info.dtype] is None]
    if packed:
        raise CheckpointError(f"{checkpoint.path} has packed tensors ({packed[0]}), which are not copied")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for other in checkpoint.path.iterdir():
            if _is_copied(other):
                shutil.copy2(other, partial / other.name)
        (partial / CONFIG).write_text(json.dumps(plan.config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_safetensors(partial / WEIGHTS, _tensors(checkpoint, plan))
        partial.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _is_copied(file: Path) -> bool:
    return (
        file.is_file()
        and file.name != CONFIG
        and not file.name.endswith((*_NOT_COPIED, ".index.json"))
        and file.stat().st_size <= MAX_COPIED
    )


def _tensors(checkpoint: Checkpoint, plan: Plan) -> dict[str, npt.NDArray[Any]]:
    tensors = {
        plan.names.get(key, key): plan.values[key] if key in plan.values else checkpoint.read(key) for key in checkpoint
    }
    return {**tensors, **{key: value for key, value in plan.values.items() if key not in checkpoint}}
