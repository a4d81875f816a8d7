"""The families of drafts that SGLang's EAGLE worker serves, as data: what each is fed, and what follows from that.

Read from srt/models/{llama_eagle3,kimi_k25_eagle3,llama_eagle,qwen2_eagle,mistral_eagle}.py of 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Drafts that are fed alike.

    `algorithm` is the `--speculative-algorithm` that serves them. With `aux_states` the fusion layer takes the states
    of several target layers side by side; without, it takes the embedding and the target's last hidden state.
    """

    name: str
    classes: re.Pattern[str]
    algorithm: str
    aux_states: bool


EAGLE3 = Family("eagle3", re.compile(r"eagle-?3", re.IGNORECASE), "EAGLE3", aux_states=True)
EAGLE = Family("eagle", re.compile(r"Eagle$"), "EAGLE", aux_states=False)
"""EAGLE-1, and EAGLE-2, which is the same draft under trees that grow where it is sure."""

FAMILIES = (EAGLE3, EAGLE)


def family_of(architecture: str, *, fuses: bool, maps: bool) -> Family | None:
    """The family of a draft class; None for one that is not described (such as those of multi-token prediction).

    `fuses`: the model has a fusion layer; `maps`: its file has a `d2t`, which EAGLE-3 drafts alone have.
    """
    if not fuses:
        return None
    if maps:
        return EAGLE3
    return next((family for family in FAMILIES if family.classes.search(architecture)), None)
