"""Changes of files for layers of multi-token prediction: a plain language model as target, and the layer within it."""

from __future__ import annotations

from dataclasses import dataclass

from eagletrace.lab.faults.changes import NoEffectError, PairFiles, tensor_of
from eagletrace.lab.faults.checkpoint import Checkpoint

WRAPPED = "language_model."
ALONE = "model.layers.0."
"""Prefix of a layer that is exported alone."""


@dataclass(frozen=True)
class LanguageModelAlone:
    """The target is the language model that its multimodal wrapper holds: of Kimi-K2.5 a DeepSeek-V3."""

    def apply(self, pair: PairFiles) -> None:
        """Take its settings to the top and its prefix off the keys; what is not its own is left out."""
        target = pair.target
        if "text_config" not in target.config:
            raise NoEffectError("the target is no wrapper: its config has no text_config")
        target.config = dict(target.config["text_config"])
        target.tensors = {
            key.removeprefix(WRAPPED): tensor for key, tensor in target.tensors.items() if key.startswith(WRAPPED)
        }


@dataclass(frozen=True)
class LayerInTarget:
    """The layer stands in the target's checkpoint, behind its layers, as DeepSeek-V3 has it; draft and target are one
    folder."""

    def apply(self, pair: PairFiles) -> None:
        """Put it there, and have the draft be the target."""
        target, layers = pair.target, int(pair.target.config["num_hidden_layers"])
        if not all(key.startswith(ALONE) for key in pair.draft.tensors):
            raise NoEffectError(f"the draft is no layer that is exported alone: its keys begin otherwise than {ALONE}")
        behind = f"model.layers.{layers}."
        target.tensors |= {behind + key.removeprefix(ALONE): tensor for key, tensor in pair.draft.tensors.items()}
        target.config["num_nextn_predict_layers"] = 1
        pair.draft = Checkpoint(target.source, dict(target.tensors), dict(target.config))


@dataclass(frozen=True)
class ExchangeTensors:
    """Two tensors of the draft stand under each other's name."""

    first: str
    second: str

    def apply(self, pair: PairFiles) -> None:
        """Exchange them."""
        one, other = tensor_of(pair.draft, self.first), tensor_of(pair.draft, self.second)
        pair.draft.tensors |= {self.first: other, self.second: one}
