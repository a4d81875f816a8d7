"""A model folder in memory: its tensors and its config, read from and written to disk."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from eagletrace.errors import EagletraceError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
_HASH_DIGITS = 12


@dataclass
class Checkpoint:
    """One model: `tensors` by key, `config` as in config.json, other files as they are in `source`."""

    source: Path
    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Read a folder with config.json and model.safetensors; EagletraceError when one is missing."""
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise EagletraceError(f"{folder} is no model folder: it has no {name}")
        return cls(folder, load_file(folder / WEIGHTS), json.loads((folder / CONFIG).read_text()))

    def digest(self) -> str:
        """A few hex digits that stand for config and tensors (values, keys, shapes, types)."""
        state = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for key in sorted(self.tensors):
            tensor = self.tensors[key].contiguous()
            state.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            state.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
        return state.hexdigest()[:_HASH_DIGITS]

    def write(self, parent: Path, role: str) -> Path:
        """Write into `parent/<role>-<digest>` (complete or not at all) and return that folder.

        The name tells nothing of what was changed; writing the same content twice gives the same folder.
        """
        folder = parent / f"{role}-{self.digest()}"
        if folder.is_dir():
            return folder
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
        for other in self.source.iterdir():
            if other.is_file() and other.name not in (CONFIG, WEIGHTS):
                shutil.copy2(other, partial / other.name)
        (partial / CONFIG).write_text(json.dumps(self.config, indent=1, sort_keys=True) + "\n")
        tensors = {key: tensor.contiguous() for key, tensor in self.tensors.items()}
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        partial.chmod(0o755)
        try:
            partial.rename(folder)
        except OSError:  # another process wrote the same content meanwhile
            shutil.rmtree(partial)
        return folder
