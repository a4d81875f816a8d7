"""Patches of the wrapper around Kimi-K2.5's language model: what becomes of the request for aux hidden states.

Its own method hands `set_eagle3_layers_to_capture` on to the language model (`models/kimi_k25.py`, 0.5.23). Each patch
is a way in which wrappers of other releases, or of other models, have not.
"""

from __future__ import annotations

from typing import Any

from eagletrace.lab.runtime import Patch

MODEL = "sglang.srt.models.kimi_k25"
METHOD = "set_eagle3_layers_to_capture"


def swallow_the_request(module: Any) -> None:
    """The method is there, and does nothing."""

    def set_eagle3_layers_to_capture(self: Any, layer_ids: Any = None) -> None:
        del self, layer_ids

    setattr(module.KimiK25ForConditionalGeneration, METHOD, set_eagle3_layers_to_capture)


def lack_the_method(module: Any) -> None:
    """There is no such method, as in 0.5.9."""
    delattr(module.KimiK25ForConditionalGeneration, METHOD)


def mark_the_wrapper(module: Any) -> None:
    """The method is a copy of a text model's own: flag and layers stand on the wrapper and on what it calls its model,
    and the language model's decoder never looks there."""

    def set_eagle3_layers_to_capture(self: Any, layer_ids: Any = None) -> None:
        layers = self.config.text_config.num_hidden_layers
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = layer_ids or [2, layers // 2, layers - 3]

    setattr(module.KimiK25ForConditionalGeneration, METHOD, set_eagle3_layers_to_capture)


PATCHES = (
    Patch("capture-swallowed", MODEL, swallow_the_request),
    Patch("capture-lacking", MODEL, lack_the_method),
    Patch("capture-on-wrapper", MODEL, mark_the_wrapper),
)
