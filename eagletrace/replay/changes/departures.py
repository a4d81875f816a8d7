"""What the trace shows that the engine did otherwise than the checkpoint and its configuration say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from eagletrace.replay.changes.edits import OneSlot
from eagletrace.replay.changes.intended import APART, later_norms
from eagletrace.replay.changes.model import Change, applied
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import CAPTURED, Recipe
from eagletrace.replay.recorded import Recording

NAMED = 4
"""Tensors that a text names before it counts the rest."""


def departures(material: Material, recording: Recording, recipe: Recipe) -> list[Change]:
    """All departures of the engine from the intended recipe, the more upstream ones first."""
    wiring = [*_capture(material, recording, recipe), *_head(material, recipe), *_map(material, recipe)]
    if _algorithm_differs(material) and wiring:
        wiring = [_together("config.algorithm_mismatch", wiring)]
    return [
        *wiring, *_built(material), *_weights(material, recipe), *_embedding(material, recipe), *_positions(recording),
    ]  # fmt: skip


def _algorithm_differs(material: Material) -> bool:
    """Whether the server's algorithm is not the one that fits the draft; then it loads head, map and states for it."""
    fitting = material.expected.get("server.speculative_algorithm")
    return fitting is not None and material.facts.get("server.speculative_algorithm") != fitting


def _together(cause: str, changes: list[Change]) -> Change:
    """Several departures that have one reason."""
    return Change(cause, "; ".join(c.text for c in changes), lambda r: applied(r, changes), "wiring")


def _map(material: Material, recipe: Recipe) -> list[Change]:
    """The engine has no map from draft ids to target ids, though the file has one."""
    if recipe.token_of is None or "hot_token_id" not in material.facts or material.facts["hot_token_id"] is not None:
        return []
    text = "d2t was not read: draft ids are taken for target ids"
    return [Change("vocab.d2t_missing", text, lambda r: replace(r, token_of=None), "map")]


def _capture(material: Material, recording: Recording, recipe: Recipe) -> list[Change]:
    """Other states than those asked for, and whether they were fused; an EAGLE-1 draft asks for none."""
    if recipe.architecture.feature:
        return []
    facts, expected = material.facts, material.expected
    width = recording.sequences[0].captured.shape[1]
    due = expected.get("forward.target_hidden_width") or material.draft.fc_in
    bypassed = recipe.apply_fc and facts.get("forward.fc_applied") is False
    if bypassed or (due and width != due):
        fused = "fc skipped" if bypassed else "fc applied"
        if due and width != due:
            cause, text = "aux.not_captured", f"the target left {width} elements where {due} were due, {fused}"
        else:
            slots = width // material.architecture.hidden_size
            text = f"fc was not applied: the last of {slots} aux states entered the draft's layer as it was"
            return [
                Change("fc.bypassed", text, lambda r: _as_captured(r, fc=False).edited(OneSlot(slots - 1, slots)), "fc")
            ]
        return [Change(cause, text, partial(_as_captured, fc=not bypassed), "fc")]
    if recipe.layers != CAPTURED:
        captured = facts.get("aux.layers_captured")
        text = f"states of layers {captured} where {list(recipe.layers)} were asked for"
        return [Change("aux.layers_mismatch", text, partial(_as_captured, fc=recipe.apply_fc), "layers")]
    return []


def _as_captured(recipe: Recipe, *, fc: bool) -> Recipe:
    return replace(recipe, layers=CAPTURED, apply_fc=fc)


def _built(material: Material) -> list[Change]:
    """Another number of decoder layers than the file has: later ones landed nowhere."""
    built, filed = material.layers_built, material.architecture.layers
    if built is None or built >= filed:
        return []
    text = f"{built} of the file's {filed} decoder layers served: the tensors of the others landed nowhere"
    shape = replace(material.architecture, layers=built)
    return [Change("weights.not_loaded", text, lambda r: replace(r, architecture=shape), "layers built")]


def _weights(material: Material, recipe: Recipe) -> list[Change]:
    """Parameters that hold other values than the file's tensors, one change for each reason.

    What the file lacks altogether is no departure: there is nothing to compare it with. A bias is: the draft has none.
    A norm of a later layer that the file has under another library's name is compared with that.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in material.served.items():
        filed = material.filed.get(name)
        if filed is None and name in later_norms(material):
            filed = recipe.tensors[name]
        if filed is None and name.endswith(".bias"):
            filed = torch.zeros_like(value)
        if name in APART or filed is None or _same(value, filed):
            continue
        groups.setdefault(_reason(material, name, value), {})[name] = value
    texts = {
        "numerics.nan": "parameters hold NaN that the file does not have: {}",
        "weights.not_loaded": "tensors of the file landed nowhere: {}",
        "weights.missing": "tensors that the served file did not have: {}",
        "weights.quantization": "parameters hold other values than the file's tensors: {}",
    }
    return [
        Change(cause, texts[cause].format(_some(tensors)), _with_tensors(tensors))
        for cause, tensors in sorted(groups.items())
    ]


def _reason(material: Material, name: str, value: Tensor) -> str:
    """Why a parameter has other values than its tensor: its key was dropped, was not there, was spoiled, or was read
    wrongly. Of a parameter that nothing filled NaN says no more: it holds what memory held."""
    key = material.draft.names.get(name)
    if key is None or key not in material.fates:
        return "weights.missing"
    if material.fates[key] in ("dropped", "ignored_by_engine"):
        return "weights.not_loaded"
    spoiled = bool(value.isnan().any()) and not bool(material.filed[name].isnan().any())
    return "numerics.nan" if spoiled else "weights.quantization"


def _with_tensors(tensors: dict[str, Tensor]) -> Callable[[Recipe], Recipe]:
    return lambda recipe: recipe.with_tensors(tensors)


def _head(material: Material, recipe: Recipe) -> list[Change]:
    """A head other than the file's."""
    served = material.served.get("lm_head.weight")
    tied = bool(material.facts.get("draft.tie_word_embeddings"))
    if served is None and tied:
        served = material.served.get("embed_tokens.weight", material.target_embedding)
    rows = material.draft.draft_vocab_size
    if served is not None and rows is not None and rows < len(served):
        served = served[:rows]  # SGLang cuts the logits to the draft vocabulary of the configuration
    if served is None or _same(served, recipe.head):
        return []
    filed = "lm_head.weight" in material.filed
    replaced = material.facts.get("head.shared_with_target") or tied
    if replaced:
        cause, text = "lm_head.replaced", "the head is the target's" + (" embedding" if tied else "")
    elif filed:
        cause, text = _reason(material, "lm_head.weight", served), "the head holds other values than the file's"
    else:
        cause, text = "weights.missing", "the head has no tensor in the file"
    return [Change(cause, text, lambda r: r.with_tensors({"lm_head.weight": served}), "head")]


def _embedding(material: Material, recipe: Recipe) -> list[Change]:
    """Embeddings other than the target's."""
    served = material.served.get("embed_tokens.weight")
    if served is None or _same(served, recipe.embedding):
        return []
    text = "the draft embeds with a table of its own"
    return [Change("embed.mismatch", text, lambda r: r.with_tensors({"embed_tokens.weight": served}), "embedding")]


def _positions(recording: Recording) -> list[Change]:
    """Rotary positions that stand a constant apart from those of the tokens, at depth 2 and deeper."""
    apart: Counter[int] = Counter()
    first: Counter[int] = Counter()
    for sequence in recording.sequences:
        for served in sequence.rounds:
            for depth, position in zip(served.depths, served.rope_positions, strict=True):
                if position is not None:
                    (apart if depth > 1 else first)[position - (served.anchor + depth - 1)] += 1
    changes: list[Change] = []
    shift = _most(apart)
    if shift and len(apart) == 1:
        text = f"draft positions {abs(shift)} too {'high' if shift > 0 else 'low'} at depth 2 and deeper"
        changes.append(Change("position.offset", text, lambda r: replace(r, step_shift=shift), "positions"))
    return changes


def _most(counts: Counter[int]) -> int:
    return counts.most_common(1)[0][0] if counts else 0


def _same(a: Tensor, b: Tensor | None) -> bool:
    """Equal to the bit, NaN included."""
    if b is None or a.shape != b.shape:
        return False
    return a is b or torch.equal(a, b) or bool(torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5)))


def _some(tensors: dict[str, Tensor]) -> str:
    names = list(tensors)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
