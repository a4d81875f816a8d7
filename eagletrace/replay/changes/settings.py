"""Settings that engine and training may read differently: rotary embedding, norms, vocabulary map."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from eagletrace.replay.architecture import Architecture
from eagletrace.replay.changes.intended import offsets
from eagletrace.replay.changes.model import Change
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.rope import Rope

THETAS = (100.0, 1_000.0, 10_000.0, 50_000.0, 500_000.0, 1_000_000.0)
"""Those of Llama 1 and 2, Kimi, Llama 3 and Qwen, and smaller ones, where nothing names another."""


def rotary(material: Material, recipe: Recipe, *, served: bool) -> list[Change]:
    """Other rotary embeddings: the target's, without scaling, another theta, the other layout."""
    mine = recipe.architecture.rope
    target = Rope.of(material.target_config, recipe.architecture.head_dim)
    found: dict[str, Rope] = {
        f"the target's rotary embedding (theta {target.theta:g}, {target.kind})": replace(
            target, dim=mine.dim, interleaved=mine.interleaved
        ),
        f"the target's theta {target.theta:g}": replace(mine, theta=target.theta),
        "no rotary scaling": replace(mine, kind="default", scaling=()),
        "the interleaved rotary layout" if not mine.interleaved else "the half-split rotary layout": replace(
            mine, interleaved=not mine.interleaved
        ),
        **{f"theta {theta:g}": replace(mine, theta=theta) for theta in THETAS},
    }
    changes: list[Change] = []
    tried = {mine}
    for text, rope in found.items():
        if rope in tried:
            continue
        tried.add(rope)
        said = f"{text} instead of theta {mine.theta:g}, {mine.kind}"
        changes.append(_shaped("rope.mismatch", f"served with {said}" if served else said, "rope", rope=rope))
    return changes


def norms(material: Material, recipe: Recipe, *, served: bool) -> list[Change]:
    """The norm flags the other way round: before `fc`, of each aux state, of the state handed on; EAGLE-1 has none. Of
    multi-token prediction, the norms before `eh_proj` the other way round."""
    shape = recipe.architecture
    verb = "served " if served else ""
    if shape.feature:
        return [_exchanged(verb, recipe)] if shape.nextn else []
    changes: list[Change] = []
    if shape.norm_before_fc or "input_norm.weight" in recipe.tensors or not served:
        what = "without" if shape.norm_before_fc else "with"
        changes.append(
            _shaped(
                "fc.norm_mismatch", f"{verb}{what} the norm before fc", "norm", norm_before_fc=not shape.norm_before_fc
            )
        )
    if shape.fc_norm or "fc_norm.0.weight" in recipe.tensors:
        what = "without" if shape.fc_norm else "with"
        changes.append(
            _shaped("fc.norm_mismatch", f"{verb}{what} a norm of each aux state", "norm", fc_norm=not shape.fc_norm)
        )
    if not served:
        what = "before" if shape.norm_output else "after"
        text = f"the state handed on is the one {what} the final norm"
        changes.append(_shaped("recurrence.hidden", text, "recurrence", norm_output=not shape.norm_output))
    del material
    return changes


def _exchanged(verb: str, recipe: Recipe) -> Change:
    """The norms of embedding and hidden state in each other's place."""
    one, other = (f"layers.0.{name}.weight" for name in ("enorm", "hnorm"))
    found = {name: value for name, value in ((one, recipe.tensors.get(other)), (other, recipe.tensors.get(one)))
             if value is not None}  # fmt: skip
    text = f"{verb}with enorm and hnorm exchanged" if verb else "enorm and hnorm, the norms before eh_proj, exchanged"
    return Change("fc.norm_mismatch", text, lambda r: r.with_tensors(found), "norm")


def vocabulary(material: Material, recipe: Recipe) -> list[Change]:
    """`d2t` read otherwise: as ids, as offsets, not at all, or made again from `t2d`."""
    d2t, t2d = material.filed.get("d2t"), material.filed.get("t2d")
    rows = len(recipe.head)
    changes: list[Change] = []
    if d2t is not None:
        if not _out_of_range(d2t, material):
            changes.append(_map("vocab.d2t_encoding", "d2t read as target ids", d2t.long()))
        if rows <= material.vocabulary:
            changes.append(_map("vocab.d2t_missing", "d2t not read: draft ids taken for target ids", None))
    if t2d is not None:
        marked = torch.nonzero(t2d.bool()).flatten()
        if len(marked) == rows and not _equal(marked, recipe.token_of):
            cause = "vocab.d2t_missing" if d2t is None or not bool(d2t.any()) else "vocab.d2t_mismatch"
            if d2t is not None and _equal(marked, d2t.long()):
                cause = "vocab.d2t_encoding"
            changes.append(_map(cause, "the map made again from t2d", marked))
    if d2t is not None and recipe.token_of is None:
        changes.append(_map("vocab.d2t_missing", "d2t read as offsets", offsets(d2t)))
    return changes


def _out_of_range(ids: Tensor, material: Material) -> bool:
    return bool((ids < 0).any() or (ids >= material.vocabulary).any())


def _equal(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and torch.equal(a, b)


def _map(cause: str, text: str, token_of: Tensor | None) -> Change:
    return Change(cause, text, lambda r: replace(r, token_of=token_of), "map")


def _shaped(cause: str, text: str, family: str, **fields: object) -> Change:
    """A change of the architecture."""

    def apply(recipe: Recipe) -> Recipe:
        shape: Architecture = replace(recipe.architecture, **fields)  # pyright: ignore[reportArgumentType]
        return replace(recipe, architecture=shape)

    return Change(cause, text, apply, family)
