"""A target as its files describe it: the sizes and tensors that a draft has to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagletrace.checkpoint import config as configs
from eagletrace.checkpoint.config import Rope
from eagletrace.checkpoint.errors import CheckpointError
from eagletrace.checkpoint.folder import Checkpoint

EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "tok_embeddings.weight", "wte.weight")
HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
_OTHER_PARTS = ("vision", "visual", "audio", "mtp", "draft", "eagle", "per_layer")


@dataclass(frozen=True)
class Target:
    """Sizes are None where config.json does not tell; `embed_key` and `head_key` where no tensor has such a name."""

    checkpoint: Checkpoint
    architecture: str | None
    settings: Mapping[str, Any]
    layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    max_positions: int | None
    rope: Rope
    embed_key: str | None
    head_key: str | None


def describe_target(checkpoint: Checkpoint) -> Target:
    """Describe a target's folder; CheckpointError when the folder holds no language model with layers."""
    settings = configs.flat(checkpoint.config)
    embed = _find(checkpoint, EMBEDDINGS)
    layers = configs.integer(settings, "num_hidden_layers") or configs.integer(settings, "n_layer")
    hidden = configs.integer(settings, "hidden_size") or configs.integer(settings, "n_embd")
    if embed is None and layers is None and hidden is None:
        raise CheckpointError(f"{checkpoint.path} is no target: it has neither layers in config.json nor embeddings")
    head = _find(checkpoint, HEADS)
    return Target(
        checkpoint=checkpoint,
        architecture=configs.architecture(checkpoint.config),
        settings=settings,
        layers=layers,
        hidden_size=hidden,
        vocab_size=configs.integer(settings, "vocab_size"),
        max_positions=configs.integer(settings, "max_position_embeddings"),
        rope=configs.rope(settings),
        embed_key=embed,
        head_key=head or (embed if settings.get("tie_word_embeddings") else None),
    )


def _find(checkpoint: Checkpoint, names: tuple[str, ...]) -> str | None:
    found = [
        key for key in checkpoint
        if key.endswith(names) and not any(part in key for part in _OTHER_PARTS) and _whole(key, names)
    ]  # fmt: skip
    return min(found, key=len, default=None)


def _whole(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.endswith(f".{name}") for name in names)
