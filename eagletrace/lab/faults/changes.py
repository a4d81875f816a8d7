"""What a fault changes in the files of a pair, as data: each change is a frozen value with one `apply`.

A change that would change nothing raises: a catalogue that no longer fits the pair must not pass silently.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from eagletrace.errors import EagletraceError
from eagletrace.lab.faults.checkpoint import Checkpoint

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
"""Config key of the aux layers; SGLang captures the input of layer id + 1 and reads it under `eagle_config`."""


class NoEffectError(EagletraceError):
    """A change that does not fit the checkpoint that it was applied to."""


@dataclass
class PairFiles:
    """The two models of a pair, as changes see them."""

    draft: Checkpoint
    target: Checkpoint


class Change(Protocol):
    """One edit of a pair's files."""

    def apply(self, pair: PairFiles) -> None:
        """Edit in place; NoEffectError when there is nothing to edit."""
        ...


@dataclass(frozen=True)
class RenameKeys:
    """Draft keys that start with `old` start with `new` instead."""

    old: str
    new: str

    def apply(self, pair: PairFiles) -> None:
        """Rename; order of the keys is kept."""
        tensors = pair.draft.tensors
        if not any(key.startswith(self.old) for key in tensors):
            raise NoEffectError(f"the draft has no key that starts with {self.old!r}")
        pair.draft.tensors = {
            self.new + key.removeprefix(self.old) if key.startswith(self.old) else key: tensor
            for key, tensor in tensors.items()
        }


@dataclass(frozen=True)
class DropKeys:
    """Draft keys that match `pattern` (a regular expression, whole key) are not in the file."""

    pattern: str

    def apply(self, pair: PairFiles) -> None:
        """Drop them."""
        kept = {key: tensor for key, tensor in pair.draft.tensors.items() if not re.fullmatch(self.pattern, key)}
        if len(kept) == len(pair.draft.tensors):
            raise NoEffectError(f"the draft has no key that matches {self.pattern!r}")
        pair.draft.tensors = kept


@dataclass(frozen=True)
class AddRandomTensor:
    """A draft key more, with random values of the given scale; `shape` names config entries or sizes."""

    key: str
    shape: tuple[str | int, ...]
    scale: float
    seed: int = 0

    def apply(self, pair: PairFiles) -> None:
        """Add (or replace) it, in the type of the other weights."""
        sizes = [size if isinstance(size, int) else int(pair.draft.config[size]) for size in self.shape]
        values = torch.randn(sizes, generator=torch.Generator().manual_seed(self.seed)) * self.scale
        pair.draft.tensors[self.key] = values.to(pair.draft.tensors["fc.weight"].dtype)


@dataclass(frozen=True)
class D2tAsAbsoluteIds:
    """`d2t` holds target ids instead of offsets from the draft id."""

    def apply(self, pair: PairFiles) -> None:
        """Add the draft id to every entry."""
        d2t = tensor_of(pair.draft, "d2t")
        pair.draft.tensors["d2t"] = d2t + torch.arange(len(d2t), dtype=d2t.dtype)


@dataclass(frozen=True)
class FillTensor:
    """Every entry of a draft tensor has one value."""

    key: str
    value: float

    def apply(self, pair: PairFiles) -> None:
        """Fill it."""
        pair.draft.tensors[self.key] = torch.full_like(tensor_of(pair.draft, self.key), self.value)


@dataclass(frozen=True)
class AddToTail:
    """The entries of a draft tensor from the share `start` on are `amount` larger."""

    key: str
    start: float
    amount: int

    def apply(self, pair: PairFiles) -> None:
        """Add to a copy of the tensor."""
        tensor = tensor_of(pair.draft, self.key).clone()
        tensor[int(len(tensor) * self.start) :] += self.amount
        pair.draft.tensors[self.key] = tensor


@dataclass(frozen=True)
class InvertMask:
    """A boolean draft tensor says the opposite."""

    key: str

    def apply(self, pair: PairFiles) -> None:
        """Negate it."""
        pair.draft.tensors[self.key] = ~tensor_of(pair.draft, self.key)


@dataclass(frozen=True)
class SetConfig:
    """A config entry of the draft (or the target) has this value; dots in `path` lead into nested entries."""

    path: str
    value: Any
    side: str = "draft"

    def apply(self, pair: PairFiles) -> None:
        """Set it, creating the nested entries that are missing."""
        checkpoint = pair.draft if self.side == "draft" else pair.target
        parent, name = nested(checkpoint.config, self.path)
        if name in parent and parent[name] == self.value:
            raise NoEffectError(f"{self.path} is {self.value!r} already")
        parent[name] = self.value


@dataclass(frozen=True)
class DropConfig:
    """A config entry at the top of the draft's config is not there."""

    name: str

    def apply(self, pair: PairFiles) -> None:
        """Drop it."""
        if self.name not in pair.draft.config:
            raise NoEffectError(f"the draft's config has no {self.name}")
        del pair.draft.config[self.name]


@dataclass(frozen=True)
class MoveRopeTheta:
    """rope_theta stands under `rope_parameters`, as newer exporters write it, and not at the top."""

    def apply(self, pair: PairFiles) -> None:
        """Move it."""
        if "rope_theta" not in pair.draft.config:
            raise NoEffectError("the draft's config has no rope_theta")
        theta = pair.draft.config.pop("rope_theta")
        pair.draft.config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}


@dataclass(frozen=True)
class LayerIdsAtTop:
    """The aux layer ids stand at the top of the draft's config only: inputs of layers, as training libraries write."""

    def apply(self, pair: PairFiles) -> None:
        """Take them out of `eagle_config`, where SGLang reads them as outputs."""
        config = pair.draft.config
        ids, name = nested(config, f"eagle_config.{LAYER_IDS}")
        if name not in ids:
            raise NoEffectError(f"the draft's config has no eagle_config.{LAYER_IDS}")
        config[LAYER_IDS] = [int(index) + 1 for index in ids.pop(name)]
        if not ids:
            del config["eagle_config"]


@dataclass(frozen=True)
class ShiftLayerIds:
    """The aux layer ids under `eagle_config` are `by` larger than those the draft was trained on.

    Ids elsewhere in the config (training libraries write them at its top too) stay as they are.
    """

    by: int

    def apply(self, pair: PairFiles) -> None:
        """Shift; every id must stay a layer of the target."""
        config, name = nested(pair.draft.config, f"eagle_config.{LAYER_IDS}")
        ids: list[int] = config.get(name) or []
        if not ids:
            raise NoEffectError(f"the draft's config has no eagle_config.{LAYER_IDS}")
        shifted = [index + self.by for index in ids]
        settings = pair.target.config.get("text_config", pair.target.config)
        if min(shifted) < 0 or max(shifted) + 1 >= int(settings["num_hidden_layers"]):
            raise NoEffectError(f"layer ids {shifted} do not fit the target's layers")
        config[name] = shifted


@dataclass(frozen=True)
class DefaultLayerIdsAtTop:
    """The layers that SGLang captures by default, written at the top of the config, where it does not read them."""

    def apply(self, pair: PairFiles) -> None:
        """Write [2, n // 2, n - 3], the layers whose inputs are captured."""
        layers = int(pair.target.config["num_hidden_layers"])
        pair.draft.config[LAYER_IDS] = [2, layers // 2, layers - 3]


@dataclass(frozen=True)
class RoomForAbsoluteIds:
    """A target vocabulary padded so far that, were `d2t` read wrongly, about `out_of_range` draft ids would leave it.

    So it is with large vocabularies: most absolute ids read as offsets still name a token, and a server lives until
    one of the rest is drafted. Padding copies the row of token 0, which is never generated; draft ids that would
    leave too, the less rare ones first, are taken out of the draft's vocabulary.
    """

    out_of_range: int = 72  # so many that the shipped pair's server lives through its warm-up and dies soon after

    def apply(self, pair: PairFiles) -> None:
        """Pad the target's embedding and head to a multiple of 64 rows, as the engine does, and trim the draft."""
        d2t = tensor_of(pair.draft, "d2t")
        kept = d2t + torch.arange(len(d2t))
        twice_offset = (kept + torch.arange(len(d2t))).sort().values
        vocabulary = int(twice_offset[-self.out_of_range]) // _ROWS * _ROWS
        rows = list(range(len(kept)))
        while len(leaving := [i for i, row in enumerate(rows) if kept[row] + i >= vocabulary]) > self.out_of_range:
            del rows[leaving[0]]
        for key in ("model.embed_tokens.weight", "lm_head.weight"):
            _pad_rows(pair.target, key, vocabulary)
        _set_vocabulary(pair.draft, torch.tensor(rows), kept, vocabulary)
        for config in (pair.target.config, pair.draft.config):
            config["vocab_size"] = vocabulary


_ROWS = 64
"""SGLang's embedding has a multiple of so many rows (DEFAULT_VOCAB_PADDING_SIZE), whatever the config says."""


def _pad_rows(checkpoint: Checkpoint, key: str, rows: int) -> None:
    tensor = tensor_of(checkpoint, key)
    checkpoint.tensors[key] = torch.cat([tensor, tensor[:1].expand(rows - len(tensor), -1)])


def _set_vocabulary(draft: Checkpoint, rows: torch.Tensor, kept: torch.Tensor, vocabulary: int) -> None:
    """The draft keeps these rows of its head; `kept` holds the target id of every old row."""
    draft.tensors["lm_head.weight"] = tensor_of(draft, "lm_head.weight")[rows]
    draft.tensors["d2t"] = kept[rows] - torch.arange(len(rows))
    draft.tensors["t2d"] = torch.isin(torch.arange(vocabulary), kept[rows])
    draft.config["draft_vocab_size"] = len(rows)


def tensor_of(checkpoint: Checkpoint, key: str) -> torch.Tensor:
    """A tensor of a checkpoint; NoEffectError when it has none of this key."""
    if key not in checkpoint.tensors:
        raise NoEffectError(f"the checkpoint has no key {key!r}")
    return checkpoint.tensors[key]


def nested(config: MutableMapping[str, Any], path: str) -> tuple[MutableMapping[str, Any], str]:
    """The entry that holds the last part of a dotted path, created where missing, and that part's name."""
    *parents, name = path.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    return config, name
