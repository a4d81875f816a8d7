"""A draft as its files describe it, in one form for all trainers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagletrace.checkpoint import config as configs
from eagletrace.checkpoint.config import AuxIds, Rope
from eagletrace.checkpoint.errors import CheckpointError
from eagletrace.checkpoint.folder import Checkpoint
from eagletrace.checkpoint.names import canonical, canonical_names, layer_numbers

Algorithm = Literal["EAGLE3", "EAGLE", "NEXTN"]
Trainer = Literal["speculators", "specforge", "eagle"]

_MTP = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")
"""In keys of layers of multi-token prediction that stand beside the target's layers (MiMo, ERNIE, Qwen3-Next)."""

DEFAULT_AUX = 3
"""Aux hidden states of an EAGLE-3 draft that says nothing of them."""


@dataclass(frozen=True)
class NormFlags:
    """What the configuration says of norms: before `fc` over the whole input, or over each aux state; on the output.

    `before_residual`: the residual of the layer is the normed hidden state (speculators). None: not said.
    """

    before_fc: bool | None
    each_aux: bool | None
    output: bool | None
    before_residual: bool | None


@dataclass(frozen=True)
class Draft:
    """What a draft is. Sizes are None where neither configuration nor tensors tell.

    `names` maps canonical names (`layers.0.self_attn.q_proj.weight`, see `names.py`) to keys of the checkpoint.
    `vocab_size` is the target's as the draft's configuration has it, `head_rows` the rows of the stored head;
    `fc_in` is the input width of the stored fusion layer, `aux_count` how many aux states that makes.
    """

    checkpoint: Checkpoint
    trainer: Trainer
    algorithm: Algorithm
    architecture: str | None
    attention: configs.Attention
    settings: Mapping[str, Any]
    names: Mapping[str, str]
    layers: int
    hidden_size: int | None
    target_hidden_size: int | None
    vocab_size: int | None
    draft_vocab_size: int | None
    head_rows: int | None
    fc_in: int | None
    aux_count: int | None
    aux_ids: tuple[AuxIds, ...]
    use_aux_hidden_state: bool
    norms: NormFlags
    rope: Rope
    max_positions: int | None
    tied: bool

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of the tensor with a canonical name; None if the checkpoint has none."""
        key = self.names.get(name)
        return None if key is None else self.checkpoint.info(key).shape


def describe(checkpoint: Checkpoint) -> Draft:
    """Describe a draft's folder. CheckpointError when it holds a model that is no draft."""
    config = checkpoint.config
    settings = configs.flat(config)
    names = canonical_names(checkpoint)
    layer = next((name.split(".")[1] for name in names if re.fullmatch(r"layers\.\d+\.eh_proj\.weight", name)), None)
    if layer is not None:
        names = _of_layer(checkpoint, layer)
    hidden = configs.integer(settings, "hidden_size") or _last(checkpoint, names, "norm.weight")
    algorithm = _algorithm(checkpoint, settings, names, hidden)
    target_hidden = configs.integer(settings, "target_hidden_size") or hidden
    fc_in = _last(checkpoint, names, "fc.weight")
    counted = algorithm == "EAGLE3" and fc_in is not None and target_hidden and fc_in % target_hidden == 0
    return Draft(
        checkpoint=checkpoint,
        trainer=_trainer(config, names),
        algorithm=algorithm,
        architecture=configs.architecture(config),
        attention=configs.attention(settings),
        settings=settings,
        names=names,
        layers=len(layer_numbers(names)) or configs.integer(settings, "num_hidden_layers") or 1,
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        vocab_size=configs.integer(settings, "vocab_size"),
        draft_vocab_size=configs.integer(settings, "draft_vocab_size"),
        head_rows=_first(checkpoint, names, "lm_head.weight"),
        fc_in=fc_in,
        aux_count=fc_in // target_hidden if counted and fc_in and target_hidden else None,
        aux_ids=configs.aux_places(config),
        use_aux_hidden_state=_use_aux(config),
        norms=_norms(config, settings),
        rope=configs.rope(settings),
        max_positions=configs.integer(settings, "max_position_embeddings"),
        tied=bool(settings.get("tie_word_embeddings")),
    )


def _of_layer(checkpoint: Checkpoint, layer: str) -> dict[str, str]:
    """Canonical names of a layer of multi-token prediction, as layer 0. It may stand behind the target's own layers, in
    its checkpoint: those are no part of the draft. Its head is the draft's."""
    own, of_layer = f"layers.{layer}.", re.compile(rf"(?:.*\.)?layers\.{layer}\.")
    names = canonical_names(key for key in checkpoint if of_layer.match(key) or canonical(key).startswith(own))
    names = {name.replace(own, "layers.0.", 1): key for name, key in names.items()}
    head = names.pop("layers.0.shared_head.head.weight", None)
    return names if head is None else {**names, "lm_head.weight": head}


def _algorithm(
    checkpoint: Checkpoint, settings: Mapping[str, Any], names: Mapping[str, str], hidden: int | None
) -> Algorithm:
    architecture = configs.architecture(settings) or ""
    method = str(settings.get("speculators_model_type") or "").lower()
    if re.search(r"eagle-?3", architecture, re.IGNORECASE) or method == "eagle3":
        return "EAGLE3"
    if re.search(r"NextN|MTP", architecture) or any(name.endswith("eh_proj.weight") for name in names):
        return "NEXTN"
    if any(_MTP.search(key) for key in names.values()):
        return "NEXTN"
    if "layers.0.hidden_norm.weight" in names:
        return "EAGLE3"
    fc_in = _last(checkpoint, names, "fc.weight")
    if fc_in is None:
        raise CheckpointError(
            f"{checkpoint.path} is no EAGLE draft: it has no fc.weight, and its architecture is "
            f"{architecture or 'not named'}; give the draft's folder, and the target's with --target (a language model "
            "of its own, which STANDALONE serves, has nothing that is checked or replayed)"
        )
    return "EAGLE" if hidden is None or fc_in == 2 * hidden else "EAGLE3"


def _trainer(config: Mapping[str, Any], names: Mapping[str, str]) -> Trainer:
    if configs.is_speculators(config):
        return "speculators"
    return "specforge" if (configs.architecture(config) or "").endswith("Eagle3") or "t2d" in names else "eagle"


def _use_aux(config: Mapping[str, Any]) -> bool:
    value = configs.lookup(config, "eagle_config.use_aux_hidden_state")
    return True if value is None else bool(value)


def _norms(config: Mapping[str, Any], settings: Mapping[str, Any]) -> NormFlags:
    nested: Any = configs.lookup(config, "eagle_config.norm_before_fc")
    each = configs.flag(settings, "fc_norm")
    return NormFlags(
        before_fc=bool(nested) if nested is not None else configs.flag(settings, "norm_before_fc"),
        each_aux=each if each else configs.flag(settings, "use_aux_norm") if each is None else each,
        output=configs.flag(settings, "norm_output"),
        before_residual=configs.flag(settings, "norm_before_residual"),
    )


def _last(checkpoint: Checkpoint, names: Mapping[str, str], name: str) -> int | None:
    shape = checkpoint.info(names[name]).shape if name in names else ()
    return shape[-1] if shape else None


def _first(checkpoint: Checkpoint, names: Mapping[str, str], name: str) -> int | None:
    shape = checkpoint.info(names[name]).shape if name in names else ()
    return shape[0] if shape else None
