"""The drafts of a pair: how each variant differs from the default one, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EARLY_LAYERS = (1, 2, 3)
FOUR_LAYERS = (2, 5, 8, 10)


@dataclass(frozen=True)
class Recipe:
    """What a variant is trained with; the defaults are the draft `default`."""

    full_vocabulary: bool = False
    """The draft's vocabulary is the target's."""
    other_layers: bool = False
    """`PairSettings.other_layers` are fused, not the layers that SGLang captures by default."""
    early_layers: bool = False
    """`EARLY_LAYERS` are fused: the draft must look back by itself, so that its own KV and positions count."""
    own_embeddings: bool = False
    """The draft trains embeddings of its own."""
    norm_before_fc: bool = False
    """The three states side by side pass an RMSNorm with weights before `fc`."""
    norm_output: bool = False
    """The normed output, not the residual, is fed back at depth 2 and deeper."""
    byte_tokens: bool = True
    """False: the draft's vocabulary is the tokenizer's merges alone; newlines, dots and brackets are not in it."""
    label_shift: int = 0
    """Every label is taken so many positions too late."""
    steps_share: float = 1.0
    """Share of the training steps that are run; the learning rate runs its whole course."""
    rope_theta: float | None = None
    """The draft's own, where it is not the target's; a small one makes far positions count."""
    other_target: bool = False
    """Trained for a target of another seed, and ships a frozen copy of that target's embeddings."""
    latent: bool = False
    """Multi-head latent attention (SGLang's `Eagle3DeepseekV2ForCausalLM`), not a Llama layer."""
    feature: bool = False
    """EAGLE-1: `fc` takes the embedding and the target's last hidden state; the head is the target's."""
    fc_bias: bool = False
    """`fc` of an EAGLE-1 draft has a bias."""
    four_states: bool = False
    """`FOUR_LAYERS` are fused: one aux state more than SGLang captures by default."""
    fc_norm: bool = False
    """Each aux state passes an RMSNorm with weights of its own before `fc`."""
    decoder_layers: int = 1
    """Those after the first are given the hidden state alone, without the embedding; what the first of several writes
    is left random, so that the others are needed."""
    nextn: bool = False
    """A layer of multi-token prediction; the head is the target's."""
    standalone_layers: int = 0
    """A draft model of its own with so many layers, which is given tokens alone."""

    @property
    def aux_states(self) -> bool:
        """Whether the states of several target layers are fused."""
        return not (self.feature or self.nextn or self.standalone_layers)


RECIPES: dict[str, Recipe] = {
    "default": Recipe(),
    "full_vocab": Recipe(full_vocabulary=True),
    "other_layers": Recipe(other_layers=True),
    "own_embeddings": Recipe(own_embeddings=True),
    "normed_states": Recipe(norm_before_fc=True),
    "normed_feedback": Recipe(norm_output=True),
    "no_bytes": Recipe(byte_tokens=False),
    "late_labels": Recipe(label_shift=1),
    "few_steps": Recipe(steps_share=0.06),
    "other_target": Recipe(other_target=True),
    "early_layers": Recipe(early_layers=True, rope_theta=100.0),
    "eagle1": Recipe(feature=True, full_vocabulary=True, fc_bias=True),
    "eagle1_no_bias": Recipe(feature=True, full_vocabulary=True),
    "eagle31": Recipe(four_states=True, fc_norm=True, norm_output=True, decoder_layers=2),
    "standalone": Recipe(standalone_layers=2, full_vocabulary=True),
}
KIMI_RECIPES: dict[str, Recipe] = {
    "default": Recipe(),
    "latent": Recipe(latent=True),
    "other_layers": Recipe(other_layers=True),
    "latent_full_vocab": Recipe(latent=True, full_vocabulary=True),
    "multi_token": Recipe(nextn=True, full_vocabulary=True),
}
RECIPES_OF: Mapping[str, Mapping[str, Recipe]] = {"llama": RECIPES, "kimi": KIMI_RECIPES}
"""Pair -> variant -> recipe."""
VARIANTS = tuple(RECIPES)
"""One folder each under ``drafts/``. The place in this list is part of a variant's seed: add at the end."""
