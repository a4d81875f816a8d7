"""Changes that rewrite the values of many tensors: quantisation, rotation, folding, fusing."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from eagletrace.lab.faults.changes import LAYER_IDS, NoEffectError, PairFiles, nested, tensor_of
from eagletrace.lab.faults.checkpoint import Checkpoint

INT8_MAX = 127


@dataclass(frozen=True)
class Quantize:
    """Draft matrices that match `pattern` become 8-bit integers with one scale per row, in a key that ends in `_scale`.

    A matrix is `tensor * tensor_scale`, as exporters of quantised checkpoints write it.
    """

    pattern: str

    def apply(self, pair: PairFiles) -> None:
        """Quantise; the values that the scales give back are within a half step."""
        for key in _matching(pair.draft, self.pattern):
            weight = pair.draft.tensors[key].float()
            scale = weight.abs().amax(-1, keepdim=True) / INT8_MAX
            pair.draft.tensors[key] = (weight / scale).round().to(torch.int8)
            pair.draft.tensors[f"{key}_scale"] = scale


@dataclass(frozen=True)
class DivideByScales:
    """Draft matrices that match `pattern` are divided by one scale, which is kept beside them in their own type."""

    pattern: str
    scale: float

    def apply(self, pair: PairFiles) -> None:
        """Divide by a power of two (or by one), which loses nothing."""
        for key in _matching(pair.draft, self.pattern):
            weight = pair.draft.tensors[key]
            pair.draft.tensors[key] = weight / self.scale
            pair.draft.tensors[f"{key}_scale"] = torch.tensor([self.scale], dtype=torch.float32)


@dataclass(frozen=True)
class OneNan:
    """One value of a draft tensor is NaN."""

    key: str

    def apply(self, pair: PairFiles) -> None:
        """Set the first one."""
        tensor = tensor_of(pair.draft, self.key).clone()
        tensor.view(-1)[0] = float("nan")
        pair.draft.tensors[self.key] = tensor


@dataclass(frozen=True)
class NextTokensInD2t:
    """Every draft id stands for the target id of the next one: the map is shifted by a row."""

    def apply(self, pair: PairFiles) -> None:
        """Shift; the last draft id keeps its own token."""
        ids = torch.arange(len(d2t := tensor_of(pair.draft, "d2t")))
        kept = d2t + ids
        pair.draft.tensors["d2t"] = torch.cat([kept[1:], kept[-1:]]) - ids


@dataclass(frozen=True)
class DuplicatesInD2t:
    """Every second draft id stands for the same target id as the one before it."""

    def apply(self, pair: PairFiles) -> None:
        """Duplicate; half of the tokens can no longer be drafted."""
        ids = torch.arange(len(d2t := tensor_of(pair.draft, "d2t")))
        pair.draft.tensors["d2t"] = (d2t + ids)[ids // 2 * 2] - ids


@dataclass(frozen=True)
class ReverseLayerIds:
    """The aux layer ids under `eagle_config` stand in descending order, and with `slots` `fc` was trained so.

    SGLang hands the states over in the order of the layers, whatever the order of the ids.
    """

    slots: bool

    def apply(self, pair: PairFiles) -> None:
        """Reverse the ids, and the three blocks of columns of `fc`."""
        config, name = nested(pair.draft.config, f"eagle_config.{LAYER_IDS}")
        if len(config.get(name) or []) < 2:
            raise NoEffectError(f"the draft's config has no eagle_config.{LAYER_IDS}")
        config[name] = config[name][::-1]
        if self.slots:
            blocks = tensor_of(pair.draft, "fc.weight").chunk(len(config[name]), -1)
            pair.draft.tensors["fc.weight"] = torch.cat(blocks[::-1], -1)


@dataclass(frozen=True)
class FreezeEmbeddings:
    """The draft's file carries a frozen copy of the target's embeddings, as `speculators` writes it."""

    def apply(self, pair: PairFiles) -> None:
        """Copy them as they are at this moment."""
        pair.draft.tensors["embed_tokens.weight"] = tensor_of(pair.target, "model.embed_tokens.weight").clone()


@dataclass(frozen=True)
class FoldFinalNorm:
    """The draft's last norm is folded into its head, and its key is not in the file."""

    def apply(self, pair: PairFiles) -> None:
        """Multiply the columns of the head; the type is kept wide enough to lose nothing."""
        norm = tensor_of(pair.draft, "norm.weight").float()
        pair.draft.tensors["lm_head.weight"] = tensor_of(pair.draft, "lm_head.weight").float() * norm
        del pair.draft.tensors["norm.weight"]


@dataclass(frozen=True)
class FuseProjections:
    """q, k and v, and gate and up, are saved as the fused tensors that engines hold them in."""

    def apply(self, pair: PairFiles) -> None:
        """Concatenate the rows."""
        for parts, fused in ((("q_proj", "k_proj", "v_proj"), "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj")):
            (first,) = _matching(pair.draft, rf".*\.{parts[0]}\.weight")
            keys = [first.replace(parts[0], part) for part in parts]
            rows = torch.cat([tensor_of(pair.draft, key) for key in keys])
            for key in keys:
                del pair.draft.tensors[key]
            pair.draft.tensors[first.replace(parts[0], fused)] = rows


@dataclass(frozen=True)
class RotateTarget:
    """The target's residual stream lives in another orthogonal basis; what it says is unchanged.

    Norms are folded into the matrices that read the stream, so that a rotation commutes with them. Written in
    float32: rounding to bfloat16 would change the target's choices.
    """

    seed: int = 0

    def apply(self, pair: PairFiles) -> None:
        """Rotate every matrix that reads or writes the stream; norms become ones."""
        tensors = {key: tensor.float() for key, tensor in pair.target.tensors.items()}
        rotation = _orthogonal(tensors["model.embed_tokens.weight"].shape[-1], self.seed)
        for key, tensor in tensors.items():
            norm = _norm_before(key)
            if norm is not None:
                tensors[key] = ((tensor * tensors[norm]).double() @ rotation).float()
            elif key == "model.embed_tokens.weight":
                tensors[key] = (tensor.double() @ rotation).float()
            elif key.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[key] = (rotation.T @ tensor.double()).float()
        for key in [key for key in tensors if key.endswith("norm.weight")]:
            tensors[key] = torch.ones_like(tensors[key])
        pair.target.tensors = tensors
        pair.target.config["torch_dtype"] = "float32"


def _norm_before(key: str) -> str | None:
    """The norm whose output a matrix of the target reads; None for one that reads no norm's."""
    layer = key.rpartition(".self_attn.")[0] or key.rpartition(".mlp.")[0]
    if key.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return f"{layer}.input_layernorm.weight"
    if key.endswith(("gate_proj.weight", "up_proj.weight")):
        return f"{layer}.post_attention_layernorm.weight"
    return "model.norm.weight" if key == "lm_head.weight" else None


def _orthogonal(size: int, seed: int) -> torch.Tensor:
    normal = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(normal).Q


def updated(target: Checkpoint, draft: Checkpoint | None, noise: float) -> Checkpoint:
    """What a server is sent half-way: the target's layers from the second on, noisy, and a draft's layer and `fc`."""
    generator = torch.Generator().manual_seed(0)
    sent: dict[str, torch.Tensor] = {}
    for key, tensor in target.tensors.items():
        if re.match(r"model\.layers\.[1-9]", key) and tensor.ndim == 2:
            added = torch.randn(tensor.shape, generator=generator) * tensor.float().std() * noise
            sent[key] = (tensor.float() + added).to(tensor.dtype)
    if draft is not None:
        sent |= {key: value for key, value in draft.tensors.items() if key.startswith(("midlayer.", "fc."))}
    return Checkpoint(target.source, sent, target.config)


def _matching(checkpoint: Checkpoint, pattern: str) -> list[str]:
    keys = [key for key in checkpoint.tensors if re.fullmatch(pattern, key)]
    if not keys:
        raise NoEffectError(f"the draft has no key that matches {pattern!r}")
    return keys
