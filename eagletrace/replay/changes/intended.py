"""The draft as its checkpoint and configuration say: the recipe that every hypothesis starts from."""

from __future__ import annotations

import torch
from torch import Tensor

from eagletrace.replay.material import Material
from eagletrace.replay.recipe import CAPTURED, Recipe
from eagletrace.replay.recorded import Recording

APART = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")


def intended(material: Material, recording: Recording) -> Recipe:
    """Embeddings are the target's (a draft is trained on them), `d2t` holds offsets, the head is the file's.

    The head of an EAGLE-1 draft, and of multi-token prediction, is the target's, or its rows of the token map that the
    server was given. A tensor that the file lacks is taken as it was served, so that the rest can be judged; a bias
    that it lacks the draft had not.
    """
    tensors = {name: value for name, value in material.filed.items() if name not in APART}
    for name, value in material.served.items():
        if name not in tensors and name not in APART and not name.endswith(".bias"):
            tensors[name] = value
    tensors |= {own: material.filed[other] for own, other in later_norms(material).items()}
    feature, token_map = material.architecture.feature, material.token_map
    if feature:
        head = material.target_head if token_map is None else material.target_head[token_map]
    else:
        head = material.filed.get("lm_head.weight")
        head = material.served.get("lm_head.weight", material.target_head) if head is None else head
    return Recipe(
        architecture=material.architecture,
        tensors=tensors,
        embedding=material.target_embedding,
        head=head,
        token_of=token_map if feature else offsets(material.filed.get("d2t")),
        layers=CAPTURED if feature else intended_layers(material, recording),
        apply_fc=f"{material.architecture.fusion}.weight" in tensors,
    )


def later_norms(material: Material) -> dict[str, str]:
    """The norms of later layers that the file has under speculators' name: the engine's name -> that of the file."""
    names = [
        (f"layers.{layer}.hidden_norm.weight", f"layers.{layer}.input_layernorm.weight")
        for layer in range(1, material.architecture.layers)
    ]
    return {own: other for own, other in names if own not in material.filed and other in material.filed}


def offsets(d2t: Tensor | None) -> Tensor | None:
    """The map of a `d2t` that holds offsets from the draft id (SGLang reads it so), [Vd] int64."""
    return None if d2t is None else d2t.long() + torch.arange(len(d2t))


def intended_layers(material: Material, recording: Recording) -> tuple[int, ...]:
    """Target layers whose inputs the configuration asks for; `CAPTURED` where those are what was captured, or where
    their states were not recorded."""
    wanted, captured = material.expected.get("aux.layers_captured"), material.facts.get("aux.layers_captured")
    if not isinstance(wanted, list) or wanted == captured:
        return CAPTURED
    layers = tuple(int(layer) for layer in wanted)  # pyright: ignore[reportUnknownVariableType]
    return layers if recorded(recording, layers) else CAPTURED


def recorded(recording: Recording, layers: tuple[int, ...]) -> bool:
    """Whether the inputs of some target layers were recorded for every sequence."""
    return bool(layers) and all(layer in s.layers for s in recording.sequences for layer in layers)
