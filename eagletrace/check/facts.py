"""What the checks on files are made from: the draft, the target if it was given, and what the engine makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from eagletrace.check.maps import MapFacts, map_facts
from eagletrace.checkpoint import CheckpointError, Draft
from eagletrace.checkpoint.engines import Landing, Release, predict
from eagletrace.checkpoint.engines.parameters import aux_count
from eagletrace.checkpoint.engines.rules import AUX_IDS_READ, RULES, NamingRules
from eagletrace.checkpoint.engines.sizes import Unbuildable
from eagletrace.checkpoint.folder import read_json
from eagletrace.checkpoint.target import Target

_CLASSES = {
    ("EAGLE3", "gqa"): "LlamaForCausalLMEagle3",
    ("EAGLE3", "mla"): "Eagle3DeepseekV2ForCausalLM",
    ("EAGLE", "gqa"): "LlamaForCausalLMEagle",
}
"""SGLang's class for a draft of this kind, whatever its config.json names."""


@dataclass
class Facts:
    """Facts of one draft for one release; what needs a tensor's values is read when it is asked for."""

    draft: Draft
    target: Target | None
    release: Release

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The configuration on one level, as the engine would see it once it stands there."""
        return self.draft.settings

    @cached_property
    def fitting_class(self) -> str | None:
        """The engine's class for this draft: the one that config.json names if it is one, else by the tensors."""
        named = self.draft.architecture
        if named in RULES:
            return named
        if self.draft.algorithm == "NEXTN":
            return self.release.served_as(named)
        return _CLASSES.get((self.draft.algorithm, self.draft.attention))

    @cached_property
    def rules(self) -> NamingRules | None:
        """The naming rules of the fitting class in this release; None where they are not known."""
        return self.release.rules(self.fitting_class)

    @cached_property
    def _predicted(self) -> tuple[Landing | None, str | None]:
        """Where the tensors land, and why the engine cannot build the class as config.json stands."""
        if self.rules is None:
            return None, None
        landing, refused = self._follow(self.settings, self.rules)
        return (landing, None) if landing else (self._follow(self._readable, self.rules)[0], refused)

    def _follow(self, settings: Mapping[str, Any], rules: NamingRules) -> tuple[Landing | None, str | None]:
        tensors = {info.key: info for info in self.draft.checkpoint.infos()}
        try:
            return predict(tensors, settings, rules), None
        except Unbuildable as error:
            return None, str(error)

    @property
    def _readable(self) -> dict[str, Any]:
        """The settings without what the class trips over before it looks at any tensor, as `--fix` writes them."""
        settings = {"draft_vocab_size": self.draft.head_rows, **self.settings}
        if settings.get("target_hidden_size", 0) is None:
            del settings["target_hidden_size"]
        return settings

    @property
    def landing(self) -> Landing | None:
        """Where the tensors land, once the class can be built; None where it cannot be told."""
        return None if self.quantised or self.not_described else self._predicted[0]

    @property
    def why_no_landing(self) -> str:
        """What a check says that needs `landing` and has none."""
        if self.quantised:
            return "config.json says that the draft is quantised, and the names of quantised parameters are not known"
        if self.not_described:
            return f"config.json has {self.not_described}, and the names that its parameters have are not known"
        return "the names that the draft's class reads are not known: see config.architecture and config.settings"

    @property
    def not_described(self) -> str | None:
        """A setting with which the class builds parameters that its rules do not have."""
        names = sorted(self.rules.not_described) if self.rules else []
        return next((name for name in names if self.settings.get(name) is not None), None)

    @property
    def unbuildable(self) -> str | None:
        """Why the engine cannot build the draft from its sizes."""
        return self._predicted[1]

    @property
    def quantised(self) -> bool:
        """The draft's own configuration says how its weights are quantised."""
        return bool(self.settings.get("quantization_config") or self.settings.get("compression_config"))

    @property
    def needs_aux(self) -> bool:
        """The fusion layer takes more than the target's last hidden state."""
        d = self.draft
        return d.algorithm == "EAGLE3" and d.fc_in is not None and d.fc_in != d.target_hidden_size

    @property
    def engine_aux_count(self) -> int | None:
        """How many aux states the engine builds the fusion layer for."""
        return aux_count(self.settings, self.rules) if self.rules and self.draft.algorithm == "EAGLE3" else None

    @cached_property
    def ids_read(self) -> tuple[int, ...] | None:
        """The aux layer ids that the engine reads, or None: its default."""
        return next((place.ids for place in self.draft.aux_ids if place.path == AUX_IDS_READ), None)

    @cached_property
    def captured(self) -> list[int] | None:
        """Layers whose inputs the target captures; None where that depends on a target that was not given."""
        architecture = self.target.architecture if self.target else None
        depth = self.target.layers if self.target else None
        if self.ids_read is None and depth is None:
            return None
        return self.release.captured(architecture, self.ids_read, depth or 0)

    @property
    def shares_embedding(self) -> bool:
        """The engine gives the draft the target's embeddings (it does not where the hidden sizes differ)."""
        return self.draft.target_hidden_size == self.draft.hidden_size

    @property
    def head_from_target(self) -> bool:
        """The engine gives the draft the target's head."""
        if self.draft.algorithm != "EAGLE3":
            return True
        return not self.draft.tied and self.draft.draft_vocab_size is None

    @property
    def served_rows(self) -> int | None:
        """Rows of the head that is served."""
        d = self.draft
        if d.tied or self.head_from_target:
            return self.vocabulary
        return d.draft_vocab_size

    @property
    def vocabulary(self) -> int | None:
        """The target's vocabulary: the target's own word for it, else the draft's."""
        return (self.target.vocab_size if self.target else None) or self.draft.vocab_size

    @cached_property
    def d2t(self) -> npt.NDArray[np.int64] | None:
        """The draft vocabulary's map as it is stored."""
        return self._integers("d2t")

    @cached_property
    def t2d(self) -> npt.NDArray[np.bool_] | None:
        """Which target tokens are in the draft vocabulary, as it is stored."""
        values = self._integers("t2d")
        return None if values is None else values != 0

    def _integers(self, name: str) -> npt.NDArray[np.int64] | None:
        key = self.draft.names.get(name)
        return None if key is None else self.draft.checkpoint.read(key).reshape(-1).astype(np.int64)

    @cached_property
    def readings(self) -> tuple[MapFacts, MapFacts] | None:
        """The stored map read as offsets and as ids; None without one."""
        if self.d2t is None or not len(self.d2t):
            return None
        as_offsets = self.d2t + np.arange(len(self.d2t))
        return map_facts(as_offsets, self.vocabulary, self.t2d), map_facts(self.d2t, self.vocabulary, self.t2d)

    @cached_property
    def map_ids(self) -> npt.NDArray[np.int64] | None:
        """The target id of each draft id, as SGLang reads `d2t` (offsets); None without a map that is read."""
        if self.d2t is None or (self.rules is not None and self.rules.map_by is None):
            return None
        return self.d2t + np.arange(len(self.d2t))


def tokens_of(folder: Path) -> dict[str, int] | None:
    """Token -> id of a folder's tokenizer.json; None where there is none that can be read."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        model: Any = read_json(file).get("model")
    except CheckpointError:
        return None
    vocabulary: Any = model.get("vocab") if isinstance(model, dict) else None
    return cast("dict[str, int]", vocabulary) if isinstance(vocabulary, dict) else None
