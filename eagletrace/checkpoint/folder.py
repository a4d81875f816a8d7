"""A checkpoint's folder: its configuration and its tensors, which are mapped and read only where asked for."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from eagletrace.checkpoint.dtypes import NUMPY
from eagletrace.checkpoint.errors import CheckpointError
from eagletrace.checkpoint.header import AGAIN, TensorInfo, read_header

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
MAX_CONFIG = 64_000_000
"""Bytes of a JSON file beside the weights; the index of a model of 100,000 tensors has about 10 million."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CONVERT = (
    "python -c \"import torch; from safetensors.torch import save_file as s; t = torch.load('{file}', "
    "map_location='cpu', weights_only=True); s({{k: v.clone().contiguous() for k, v in t.items()}}, "
    "'model.safetensors')\""
)


class Checkpoint:
    """A model's folder. `path` is its folder, `config` its config.json; tensors are read by `read`.

    What looks odd in the files and stops nobody from reading them stands in `notes`.
    """

    def __init__(self, path: Path, config: dict[str, Any], tensors: dict[str, TensorInfo], notes: list[str]) -> None:
        self.path, self.config, self.notes = path, config, tuple(notes)
        self._tensors = tensors
        self._maps: dict[Path, mmap.mmap] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def keys(self) -> list[str]:
        """Names of all tensors, in the order of the files."""
        return list(self._tensors)

    def infos(self) -> list[TensorInfo]:
        """All tensors, in the order of the files."""
        return list(self._tensors.values())

    def info(self, key: str) -> TensorInfo:
        """Type, shape and file of a tensor; CheckpointError for a name that is not in the files."""
        try:
            return self._tensors[key]
        except KeyError:
            raise CheckpointError(f"{self.path} has no tensor {key!r}") from None

    def read(self, key: str) -> npt.NDArray[Any]:
        """A tensor as a read-only array over the mapped file: its pages are read when they are touched.

        bfloat16 and float8 have the types of `ml_dtypes`; `.astype(numpy.float32)` copies. CheckpointError for packed
        types (4 and 6 bits).
        """
        info = self.info(key)
        dtype = NUMPY[info.dtype]
        if dtype is None:
            raise CheckpointError(f"{info.file}: {key} is packed {info.dtype}, which is not read")
        if not info.elements:
            return np.zeros(info.shape, dtype)
        flat = np.frombuffer(self._map(info.file), dtype, count=info.elements, offset=info.begin)
        return flat.reshape(info.shape)

    def rows(self, key: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Rows of a tensor (elements of a vector), read from the file and not mapped: nothing else enters memory."""
        info = self.info(key)
        dtype = NUMPY[info.dtype]
        if dtype is None or not info.shape:
            return self.read(key)[None]
        width = info.nbytes // max(info.shape[0], 1)
        with info.file.open("rb") as stream:
            parts = [os.pread(stream.fileno(), width, info.begin + int(i) * width) for i in indices]
        if any(len(part) < width for part in parts):
            raise CheckpointError(f"{info.file} became shorter while it was read")
        return np.frombuffer(b"".join(parts), dtype).reshape(len(indices), *info.shape[1:])

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as stream:
                self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {len(self)} tensors)"


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a model's folder: config.json, and model.safetensors or shards with their index.

    Reads headers only. CheckpointError when the folder, a file or a tensor is missing or damaged, and for pickled
    weights, which are never opened.
    """
    folder = _folder(Path(path))
    config = read_json(folder / CONFIG)
    if (folder / INDEX).is_file():
        tensors, notes = _indexed(folder)
    else:
        tensors, notes = _unindexed(folder)
    return Checkpoint(folder, config, tensors, notes)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError if it is none."""
    if not file.is_file():
        raise CheckpointError(f"{file.parent} is no checkpoint: it has no {file.name}")
    if file.stat().st_size > MAX_CONFIG:
        raise CheckpointError(f"{file} is {file.stat().st_size} bytes long: that is no {file.name}")
    try:
        value: Any = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no JSON ({error}): mend or download it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds no JSON object: mend or download it again")
    return cast("dict[str, Any]", value)


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file: give the folder that holds {CONFIG} and the weights")
    if _HUB_ID.fullmatch(str(path)) and not path.parent.exists():
        raise CheckpointError(
            f"there is no folder {path}; if it is a name on the Hugging Face hub, download it first "
            f"(`hf download {path} --local-dir {path.name}`) and give the folder"
        )
    raise CheckpointError(f"there is no folder {path}")


def _indexed(folder: Path) -> tuple[dict[str, TensorInfo], list[str]]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(f, str) for f in cast("dict[str, Any]", weight_map).values()
    ):
        raise CheckpointError(f"{folder / INDEX} has no weight_map (tensor name -> file): {AGAIN}")
    places = cast("dict[str, str]", weight_map)
    files = sorted(set(places.values()))
    outside = [f for f in files if Path(f).is_absolute() or ".." in Path(f).parts]
    if outside:
        raise CheckpointError(f"{folder / INDEX} names files outside its folder: {_some(outside)}")
    missing = [f for f in files if not (folder / f).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} is incomplete: {len(missing)} of {len(files)} shards are missing ({_some(missing)}); "
            "download them"
        )
    paths = {f: folder / f for f in files}
    tensors, notes = _merged(list(paths.values()))
    for key, file in places.items():
        if key not in tensors:
            raise CheckpointError(
                f"{folder / INDEX} lies: {key} is in none of the shards ({file} should have it); {AGAIN}"
            )
        if tensors[key].file != paths[file]:
            notes.append(f"{INDEX} places {key} in {file}, it is in {tensors[key].file.name}")
    unlisted = [key for key in tensors if key not in places]
    if unlisted:
        notes.append(f"{len(unlisted)} tensors are in the shards and not in {INDEX}: {_some(unlisted)}")
    return tensors, notes


def _unindexed(folder: Path) -> tuple[dict[str, TensorInfo], list[str]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _no_weights(folder)
    if len(files) == 2 and files[0].name.endswith("consolidated.safetensors") and files[1].name == WEIGHTS:
        files = files[1:]  # Mistral's second copy of the same weights
    expected = {int(m[1]) for f in files if (m := re.search(r"-of-0*(\d+)\.safetensors$", f.name))}
    if len(expected) == 1 and len(files) < max(expected):
        raise CheckpointError(
            f"{folder} is incomplete: {len(files)} of {max(expected)} shards are there, and no {INDEX}; "
            "download the rest"
        )
    return _merged(files)


def _merged(files: list[Path]) -> tuple[dict[str, TensorInfo], list[str]]:
    tensors: dict[str, TensorInfo] = {}
    notes: list[str] = []
    for file in files:
        header = read_header(file)
        twice = [key for key in header if key in tensors]
        if twice:
            notes.append(f"{len(twice)} tensors are in {file.name} and in another file: {_some(twice)}")
        tensors.update(header)
    return tensors, notes


def _no_weights(folder: Path) -> CheckpointError:
    pickled = sorted(f.name for f in folder.iterdir() if f.suffix in PICKLED)
    if not pickled:
        return CheckpointError(
            f"{folder} has no *.safetensors file: it is no checkpoint, or its download is incomplete"
        )
    return CheckpointError(
        f"{folder} has its weights in {_some(pickled)}, which may run code when read, and are not opened here; "
        f"convert them to safetensors, in that folder: {_CONVERT.format(file=pickled[0])}"
    )


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
