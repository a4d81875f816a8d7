"""What the training may have meant otherwise than the files and the engine say: tried where acceptance is lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import torch
from torch import Tensor

from eagletrace.checkpoint import config as configs
from eagletrace.replay.changes import settings
from eagletrace.replay.changes.edits import FinalNorm
from eagletrace.replay.changes.intended import recorded
from eagletrace.replay.changes.model import Change
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording

SHIFTS = (1, -1, 2, -2, 3, -3)
ROTATED = 0.2
"""Relative residual of the best rotation between two embedding tables, below which one is the other turned."""
ALIKE = 0.02
"""Relative difference below which two embedding tables are the same."""


def repairs(material: Material, recording: Recording, recipe: Recipe) -> list[Change]:
    """Changes that may regain acceptance; each is tried on the draft as its files say."""
    return [
        *settings.vocabulary(material, recipe),
        *(_feature(material) if recipe.architecture.feature else _layers(material, recording, recipe)),
        *settings.norms(material, recipe, served=False),
        *settings.rotary(material, recipe, served=False),
        *_embeddings(material, recipe),
        *_head(material, recipe),
        *_scales(material, recipe),
        *_labels(),
    ]


def _layers(material: Material, recording: Recording, recipe: Recipe) -> list[Change]:
    """Other target layers: the lists of the configuration in either convention, the default, shifts, orders."""
    facts, expected = material.facts, material.expected
    captured = expected.get("aux.layers_captured") if recipe.layers else facts.get("aux.layers_captured")
    now: tuple[int, ...] = tuple(captured or ()) if not recipe.layers else recipe.layers
    count = int(material.target_config.get("num_hidden_layers") or 0)
    named = {path: tuple(ids) for path, ids in (facts.get("aux.config_ids") or {}).items()}
    lists: dict[tuple[int, ...], str] = {}
    for path, ids in named.items():
        lists.setdefault(ids, f"{list(ids)}, the ids of {path} as inputs of layers")
        lists.setdefault(tuple(i + 1 for i in ids), f"the outputs of layers {list(ids)}, the ids of {path}")
    if count:
        lists.setdefault((2, count // 2, count - 3), "the engine's default layers")
    for shift in SHIFTS if now else ():
        lists.setdefault(tuple(i + shift for i in now), f"{[i + shift for i in now]}, shifted by {shift}")
    for order in permutations(now) if len(now) <= 3 else (now[::-1],):
        lists.setdefault(order, f"{list(order)}, in another order")
    return [
        _other_layers(layers, f"aux states of layers {text} instead of {list(now) or 'those captured'}")
        for layers, text in lists.items()
        if layers != now and len(layers) == recipe.architecture.aux_count and recorded(recording, layers)
    ]


def _feature(material: Material) -> list[Change]:
    """The hidden state that an EAGLE-1 draft is given through the target's final norm; its head without the token map,
    or the file's own."""
    changes: list[Change] = []
    if material.token_map is not None:
        text = "the target's whole head instead of the rows of the token map"
        whole = material.target_head
        changes.append(Change("vocab.coverage", text, lambda r: replace(r, head=whole, token_of=None), "head"))
    if material.target_norm is not None:
        eps = configs.number(material.target_config, "rms_norm_eps", 1e-6)
        edit = FinalNorm(material.target_norm, eps)
        text = "the target's hidden state after its final norm instead of the one handed over"
        changes.append(Change("fc.norm_mismatch", text, lambda r: r.edited(edit), "norm"))
    own = material.filed.get("lm_head.weight")
    if own is not None and own.shape == material.target_head.shape and apart(own, material.target_head) >= ALIKE:
        text = "the head of the draft's file instead of the target's"
        changes.append(Change("lm_head.replaced", text, lambda r: replace(r, head=own, token_of=None), "head"))
    return changes


def _other_layers(layers: tuple[int, ...], text: str) -> Change:
    return Change("aux.layers_mismatch", text, lambda r: replace(r, layers=layers, apply_fc=True), "layers")


def _embeddings(material: Material, recipe: Recipe) -> list[Change]:
    """The file's own embeddings; and if they are the target's turned, hidden states turned back."""
    own = material.filed.get("embed_tokens.weight")
    if own is None or own.shape != recipe.embedding.shape or apart(own, recipe.embedding) < ALIKE:
        return []
    text = "the embeddings of the draft's file instead of the target's"
    changes = [Change("embed.mismatch", text, lambda r: replace(r, embedding=own), "embedding")]
    turn = rotation(recipe.embedding, own)
    if turn is not None:
        said = "hidden states and embeddings turned back into the basis of the embeddings in the draft's file"
        changes.append(Change("basis.rotated", said, lambda r: replace(r, embedding=own, basis=turn), "embedding"))
    return changes


def rotation(served: Tensor, own: Tensor) -> Tensor | None:
    """The orthogonal matrix R with `served @ R` nearest to `own` (Schönemann 1966), [H, H]; None if it is not near."""
    left, _, right = torch.linalg.svd(served.float().T @ own.float())
    turn = left @ right
    return turn if apart(served.float() @ turn, own.float()) < ROTATED else None


def apart(a: Tensor, b: Tensor) -> float:
    """Relative difference of two tables, |a - b| / |b|."""
    return float((a.float() - b.float()).norm() / b.float().norm().clamp(min=1e-30))


def _head(material: Material, recipe: Recipe) -> list[Change]:
    """The target's rows for the draft's tokens, where the file has no head of its own."""
    if "lm_head.weight" in material.filed or recipe.architecture.feature:
        return []
    rows = material.target_head if recipe.token_of is None else _rows(material.target_head, recipe.token_of)
    if rows is None:
        return []
    text = "the target's head rows of the draft's tokens"
    return [Change("weights.missing", text, lambda r: replace(r, head=rows), "head")]


def _rows(head: Tensor, token_of: Tensor) -> Tensor | None:
    inside = (token_of >= 0) & (token_of < len(head))
    return head[token_of] if bool(inside.all()) else None


def _scales(material: Material, recipe: Recipe) -> list[Change]:
    """Tensors times the scale that stands beside them in the file and that nothing read."""
    scaled: dict[str, Tensor] = {}
    for name, value in material.filed.items():
        for suffix in ("_scale", "_scale_inv"):
            scale = material.filed.get(name + suffix)
            if scale is not None and value.is_floating_point() and not bool((scale == 1).all()):
                scaled[name] = value * _fitting(scale.float(), value)
    del recipe
    if not scaled:
        return []
    text = f"{len(scaled)} tensors multiplied by their scales"
    return [Change("weights.quantization", text, lambda r: r.with_tensors(scaled), "scales")]


def _fitting(scale: Tensor, value: Tensor) -> Tensor:
    """A scale of a tensor, of each row, or of blocks, spread over the tensor."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.dim() == 1:
        return scale.reshape(-1, *([1] * (value.dim() - 1)))
    for dim in range(scale.dim()):
        scale = scale.repeat_interleave(-(-value.shape[dim] // scale.shape[dim]), dim).narrow(dim, 0, value.shape[dim])
    return scale


def _labels() -> list[Change]:
    return [_label(1, "later"), _label(-1, "earlier")]


def _label(shift: int, where: str) -> Change:
    text = f"each drafted token read as meant one position {where}"
    return Change("draft.misaligned", text, lambda r: replace(r, label_shift=shift), "labels")
