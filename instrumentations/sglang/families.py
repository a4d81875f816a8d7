"""The families of drafts that SGLang's EAGLE workers serve, as data: what each is fed, and what follows from that.

Read from srt/models/{llama_eagle3,kimi_k25_eagle3,llama_eagle,qwen2_eagle,mistral_eagle}.py, from those that end in
_nextn.py or _mtp.py, and from srt/speculative/standalone_worker_v2.py of 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Drafts that are fed alike.

    `algorithm` is the `--speculative-algorithm` that serves them. With `aux_states` the fusion layer takes the states
    of several target layers side by side; without, it takes the embedding and the target's last hidden state. Drafts
    that are `alone` are given nothing of the target and have no fusion layer.
    """

    name: str
    classes: re.Pattern[str]
    algorithm: str
    aux_states: bool
    alone: bool = False

    def fitting(self, algorithm: str | None) -> str | None:
        """The algorithm to serve it with, where `algorithm` does; None where that takes any language model, as a worker
        of its own may."""
        known = any(algorithm == family.algorithm for family in FAMILIES)
        return self.algorithm if known or not self.alone else None


EAGLE3 = Family("eagle3", re.compile(r"eagle-?3", re.IGNORECASE), "EAGLE3", aux_states=True)
EAGLE = Family("eagle", re.compile(r"Eagle$"), "EAGLE", aux_states=False)
"""EAGLE-1, and EAGLE-2, which is the same draft under trees that grow where it is sure."""
NEXTN = Family("nextn", re.compile(r"(NextN|MTP)$"), "EAGLE", aux_states=False)
"""Layers of multi-token prediction, trained with the target and often in its own checkpoint."""
STANDALONE = Family("standalone", re.compile(r"For(CausalLM|ConditionalGeneration)$"), "STANDALONE", False, alone=True)
"""A language model of its own, smaller than the target."""

FAMILIES = (EAGLE3, EAGLE, NEXTN, STANDALONE)
FUSION_LAYERS = ("fc", "eh_proj")
"""What the layer is called that takes hidden states and, but for EAGLE-3, the embedding."""
SHARED_PARTS = ("shared_head.head.", "embed_tokens.", "lm_head.")
"""Tensors that the engine passes over in the file of a `NEXTN` layer: it uses the target's."""


def family_of(architecture: str, *, fuses: bool, maps: bool) -> Family | None:
    """The family of a draft class; None for one that is not described.

    `fuses`: the model has a fusion layer; `maps`: its file has a `d2t`, which EAGLE-3 drafts alone have.
    """
    if maps and fuses:
        return EAGLE3
    return next((f for f in FAMILIES if f.alone is not fuses and f.classes.search(architecture)), None)
