"""The draft and target that a replay works with: as their files say, and as the trace says that they were served."""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from eagletrace.checkpoint import Checkpoint, Draft, describe, open_checkpoint
from eagletrace.checkpoint import config as configs
from eagletrace.checkpoint.names import canonical, layer_numbers
from eagletrace.instrumentations.tensor_stats import checksum
from eagletrace.replay.architecture import Architecture, needed_tensors
from eagletrace.replay.recorded import tensor
from eagletrace.replay.result import ReplayError
from eagletrace.store import Run

EMBEDDING = re.compile(r"(?:.*\.)?embed_tokens\.weight")
HEAD = re.compile(r"(?:.*\.)?lm_head\.weight")
FINAL_NORM = re.compile(r"(?:model\.|language_model\.)*norm\.weight")
MAPPED = "[hot_token_id]"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SMALL = 1 << 22  # elements up to which checksums are compared
BIG = 1 << 26  # elements from which on a table keeps the file's type, so that its rows alone are widened


def values(checkpoint: Checkpoint, key: str) -> Tensor:
    """A tensor of a file: floats as float32, tables too large for that as they are stored; quantised ones unscaled."""
    array = checkpoint.read(key)
    stored: Any = array.dtype
    if stored == BFLOAT16:
        value = torch.from_numpy(array.view(np.uint16).copy() if array.size < BIG else array.view(np.uint16))
        return widened(value.view(torch.bfloat16))
    if array.dtype.kind not in "fiub" or (array.dtype.kind in "iu" and array.ndim > 1):
        array = array.astype(np.float32)  # float8, and integers that are quantised weights
    return widened(torch.from_numpy(np.array(array)))


def first(checkpoint: Checkpoint, pattern: re.Pattern[str]) -> Tensor | None:
    """The tensor of the shortest name that matches."""
    found = sorted((key for key in checkpoint if pattern.fullmatch(key)), key=len)
    return values(checkpoint, found[0]) if found else None


def widened(value: Tensor) -> Tensor:
    """Float32, but for tables too large for it."""
    return value.float() if value.is_floating_point() and value.numel() < BIG else value


@dataclass
class Material:
    """Everything known of draft and target.

    `filed` are the tensors of the draft's file and `served` those that the trace and the file together say were
    served, both by the reference's names; `served` lacks what cannot be known, and `unknown` says why.
    """

    draft: Draft
    architecture: Architecture
    filed: dict[str, Tensor]
    served: dict[str, Tensor]
    target_embedding: Tensor
    target_head: Tensor
    target_config: dict[str, Any]
    facts: dict[str, Any]
    expected: dict[str, Any]
    fates: dict[str, str]
    target_norm: Tensor | None = None
    """Weight of the target's final norm, [H]."""
    token_map: Tensor | None = None
    """Target id of each draft id, [Vd]: the token map that the server was given."""
    layers_built: int | None = None
    """Decoder layers that the engine made parameters for; None where that was not recorded."""
    later: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Tensors of the draft that changed while serving, as they were last."""
    altered: set[str] = field(default_factory=set[str])
    """Keys of the draft's file whose values are not those that the server loaded."""
    unknown: list[str] = field(default_factory=list[str])
    differs: list[str] = field(default_factory=list[str])

    @property
    def vocabulary(self) -> int:
        """Target vocabulary: rows of the target's embedding."""
        return self.target_embedding.shape[0]

    def served_map(self) -> Tensor | None:
        """Draft id -> target id as the engine reads the file's `d2t` (offsets), [Vd]; None if it has none."""
        d2t = self.filed.get("d2t")
        return None if d2t is None else d2t.long() + torch.arange(len(d2t))


def load(run: Run, draft: Path, target: Path) -> Material:
    """Read both checkpoints and what the trace says of their loading.

    ReplayError for folders that are no models, and for a draft and a target that do not belong together.
    """
    files, targets = open_checkpoint(draft), open_checkpoint(target)
    described = describe(files)
    architecture = Architecture.of(described)
    facts = {key: _json(value) for key, value in run.execute("SELECT key, actual FROM contract")}
    expected = {key: _json(value) for key, value in run.execute("SELECT key, expected FROM contract")}
    filed = {name: values(files, key) for name, key in described.names.items() if files.info(key).elements}
    renamed = _renamed(filed, architecture)
    filed |= {name: filed[key] for name, key in renamed.items()}
    if renamed:
        described = replace(described, names={**described.names, **{n: described.names[k] for n, k in renamed.items()}})
    embedding, head = first(targets, EMBEDDING), first(targets, HEAD)
    if embedding is None:
        raise ReplayError(f"--target {target} has no embedding tensor (embed_tokens.weight)")
    head = embedding if head is None else head
    if embedding.shape[1] != architecture.hidden_size:
        raise ReplayError(
            f"draft and target do not belong together: the draft's hidden size is {architecture.hidden_size}, "
            f"the target's embedding is {embedding.shape[1]} wide"
        )
    material = Material(
        described, architecture, filed, {}, widened(embedding), widened(head), configs.flat(targets.config), facts,
        expected, dict(run.execute("SELECT key, fate FROM checkpoint_keys")), first(targets, FINAL_NORM),
    )  # fmt: skip
    _belongs(run, files, targets, material)
    _serve(run, files, material)
    return material


def _renamed(filed: dict[str, Tensor], architecture: Architecture) -> dict[str, str]:
    """Tensors that the draft needs and the file has under names that nobody knows: by shape, then by likeness.

    Returns the key of each; a tensor whose shape no unknown key has is left missing.
    """
    shapes = needed_tensors(architecture)
    free = [key for key in filed if key not in shapes and canonical(key) == key and not key.startswith("verifier_")]
    found: dict[str, str] = {}
    for name, shape in shapes.items():
        fitting = [key for key in free if name not in filed and tuple(filed[key].shape) == shape]
        if fitting:
            best = max(fitting, key=lambda key: difflib.SequenceMatcher(None, name, key).ratio())
            found[name] = best
            free.remove(best)
    return found


def _belongs(run: Run, files: Checkpoint, targets: Checkpoint, material: Material) -> None:
    """Compare the files with the checksums of what was served; ReplayError if they are of another draft or target.

    Large tensors are left out: a checksum of the whole file would take longer than the replay.
    """
    loaded = dict(run.execute("SELECT key, checksum FROM checkpoint_keys WHERE checksum IS NOT NULL"))
    small = [key for key in files if key in loaded and files.info(key).elements <= SMALL]
    other = [key for key in small if checksum(values(files, key)) != loaded[key]]
    if other and len(other) > len(small) // 2:
        raise ReplayError(
            f"{files.path} is not the draft that was served: {len(other)} of {len(small)} tensors compared have other "
            f"values ({', '.join(other[:3])} ...); give the folder that the server was started with"
        )
    material.differs += [f"{key} in {files.path} has other values than the tensor that was served" for key in other]
    material.altered = set(other)
    name, table = "embed_tokens.weight", material.target_embedding
    rows = run.execute(
        "SELECT checksum, shape FROM all_ranks.params WHERE side = 'target' AND name LIKE ? AND checksum IS NOT NULL",
        [f"%{name}"],
    )
    comparable = table.numel() <= SMALL and list(table.shape) in [shape for _, shape in rows]
    if comparable and checksum(table) not in {served for served, _ in rows}:
        raise ReplayError(
            f"{targets.path} is not the target that was served: its embeddings have other values; give the folder that "
            "the server was started with"
        )


def _serve(run: Run, files: Checkpoint, material: Material) -> None:
    """Fill `served`: each parameter from the tensors that landed in it and from recorded values."""
    landed: dict[str, list[tuple[int, int, str]]] = {}
    for key, places in run.execute("SELECT key, landed_in FROM checkpoint_keys"):
        for place in cast("list[dict[str, Any]]", _json(places) or []):
            landed.setdefault(place["parameter"], []).append((place["offset"], place["elements"], key))
    recorded: dict[bool, dict[str, Tensor]] = {False: {}, True: {}}
    for name, epoch, dtype, shape, data in run.execute(
        "SELECT name, epoch, dtype, shape, data FROM param_values ORDER BY epoch"
    ):
        recorded[epoch > 0][name] = tensor(dtype, shape, data)
    held = recorded[False]
    material.token_map = held.pop("hot_token_id", None)
    if material.token_map is None and _map_was_given(material):
        material.unknown.append("the ids of the token map were not recorded (record with EAGLETRACE_LEVEL=tensors)")
    for name, value in recorded[True].items():
        material.later |= _split(name, value, material.architecture)
    rows = run.execute(
        "SELECT name, shape, elements_loaded, elements, shared_with, nan_count FROM params WHERE side = 'draft'"
    )
    material.layers_built = len(layer_numbers(canonical(name) for name, *_ in rows)) or None
    for name, shape, loaded, elements, shared, bad in rows:
        value = _shared(shared, material)
        if value is None and bad and any(key in material.altered for _, _, key in landed.get(name, [])):
            value = torch.full(shape, torch.nan)  # one is enough to spoil every row
        if value is None and name in held:
            value = held[name].reshape(shape)
        if value is None and (loaded or 0) >= elements:
            value = _assembled(files, landed.get(name, []), shape, material)
        if value is None:
            material.unknown.append(f"the values of {name} were not recorded (record with EAGLETRACE_LEVEL=tensors)")
            continue
        material.served |= _split(name, value, material.architecture)


def _map_was_given(material: Material) -> bool:
    """Whether the server was given a token map and uses it: EAGLE-3 takes the file's `d2t`."""
    return bool(material.facts.get("server.speculative_token_map") and material.facts.get("hot_token_id")
                and "d2t" not in material.filed)  # fmt: skip


def _shared(shared: str | None, material: Material) -> Tensor | None:
    if not shared:
        return None
    if shared.endswith(MAPPED):
        return None if material.token_map is None else material.target_head[material.token_map]
    return material.target_head if "head" in shared else material.target_embedding


def _assembled(
    files: Checkpoint, parts: list[tuple[int, int, str]], shape: list[int], material: Material
) -> Tensor | None:
    """A parameter put together from the file's tensors; None when the file has others than those that were loaded."""
    if len(parts) == 1 and parts[0][2] in files and parts[0][2] not in material.altered:
        whole = values(files, parts[0][2])
        if whole.numel() == math.prod(shape):
            return widened(whole.reshape(shape))
    flat = torch.zeros(math.prod(shape))
    if any(key in material.altered for *_, key in parts):
        return None
    for offset, elements, key in parts:
        if key not in files:
            material.differs.append(f"the server loaded a tensor {key}, and {files.path} has none")
            return None
        value = values(files, key)
        if value.numel() < elements:
            material.differs.append(f"{key} has another shape in {files.path} than when it was served")
            return None
        if len(shape) > 1 and value.dim() == 2 and value.shape[1] < shape[-1]:  # the engine widened the rows
            blocks = flat.view(-1, shape[-2], shape[-1])
            blocks[offset // (shape[-2] * shape[-1]), : value.shape[0], : value.shape[1]] = value
            continue
        value = value.reshape(-1)
        flat[offset : offset + elements] = value[:elements].float()
    return flat.reshape(shape)


def _split(name: str, value: Tensor, shape: Architecture) -> dict[str, Tensor]:
    """An engine's parameter by the reference's names: fused projections come apart."""
    known = canonical(name)
    if ".qkv_proj." in known:
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if value.shape[0] != q + 2 * kv:
            return {}
        parts = value.split([q, kv, kv])
        return {known.replace("qkv_proj", f"{p}_proj"): part for p, part in zip("qkv", parts, strict=True)}
    if shape.experts is not None and (experts := shape.experts.apart(known, value)) is not None:
        return experts
    if ".gate_up_proj." in known:
        gate, up = value.chunk(2)
        return {known.replace("gate_up_proj", "gate_proj"): gate, known.replace("gate_up_proj", "up_proj"): up}
    if ".fused_qkv_a_proj_with_mqa." in known and shape.latent is not None:
        q, kv = value.split([shape.latent.q_rank, shape.latent.kv_rank + shape.latent.rope])
        return {
            known.replace("fused_qkv_a_proj_with_mqa", "q_a_proj"): q,
            known.replace("fused_qkv_a_proj_with_mqa", "kv_a_proj_with_mqa"): kv,
        }
    return {known: value}


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
