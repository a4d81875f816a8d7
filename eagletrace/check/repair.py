"""Repairs of a draft's files that are certain: keys renamed, `d2t` written anew, settings of config.json set."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.check import vocabulary
from eagletrace.check.facts import Facts
from eagletrace.check.nextn import elsewhere
from eagletrace.checkpoint.config import LAYER_IDS, NESTED, flat, is_speculators
from eagletrace.checkpoint.engines import predict
from eagletrace.checkpoint.engines.rules import NamingRules
from eagletrace.checkpoint.engines.sizes import Parameter, Part, Unbuildable
from eagletrace.checkpoint.names import canonical

_META = ("architectures", "auto_map", "model_type", "transformers_version")


@dataclass
class Plan:
    """A repair: the configuration, a new name for some keys, new values for some, what was changed and what was not."""

    config: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[str, npt.NDArray[Any]] = field(default_factory=dict[str, npt.NDArray[Any]])
    changed: list[str] = field(default_factory=list[str])

    def set(self, name: str, value: Any, why: str) -> None:
        """Set an entry at the top of the configuration."""
        self.config[name] = value
        self.changed.append(f'config.json: "{name}": {_json(value)} ({why})')

    def nested(self, name: str, value: Any, why: str) -> None:
        """Set an entry under `eagle_config`."""
        eagle: Any = self.config.get("eagle_config")
        self.config["eagle_config"] = {**(eagle if isinstance(eagle, dict) else {}), name: value}
        self.changed.append(f'config.json: "eagle_config": {{"{name}": {_json(value)}}} ({why})')


def plan(facts: Facts) -> Plan:
    """All repairs that are certain for these files and this release."""
    made = Plan(copy.deepcopy(facts.draft.checkpoint.config))
    for repair in _REPAIRS:
        repair(facts, made)
    return made


def _layout(f: Facts, made: Plan) -> None:
    """Sizes nested for the layers come to the top; the engine's class is named."""
    nested = [name for name in NESTED if isinstance(made.config.get(name), dict)]
    if nested and "hidden_size" not in made.config and f.draft.algorithm != "NEXTN":
        inner: Mapping[str, Any] = made.config.pop(nested[0])
        settings = flat(inner)
        kept = {k: v for k, v in settings.items() if k not in _META and made.config.get(k) is None}
        made.config.update(kept)
        made.config.setdefault("model_type", settings.get("model_type", "llama"))
        made.config.setdefault("num_hidden_layers", f.draft.layers)
        made.changed.append(f"config.json: {len(kept)} settings moved from {nested[0]} to the top")
    if f.fitting_class is not None and f.draft.architecture != f.fitting_class and f.draft.algorithm != "NEXTN":
        made.config.pop("auto_map", None)
        made.set("architectures", [f.fitting_class], "the engine's class for these tensors")


def _sizes(f: Facts, made: Plan) -> None:
    """Settings that the class cannot do without, and those that its tensors contradict."""
    if f.draft.algorithm != "EAGLE3":
        return
    config, rows = made.config, f.draft.head_rows
    if "target_hidden_size" in config and config["target_hidden_size"] is None:
        del config["target_hidden_size"]
        made.changed.append("config.json: target_hidden_size taken away (it was null)")
    if rows is not None and config.get("tie_word_embeddings"):
        made.set("tie_word_embeddings", False, "the file has a head")
    if rows is not None and config.get("draft_vocab_size") != rows:
        made.set("draft_vocab_size", rows, "the rows of lm_head")
    allowed = f.rules is None or f.rules.max_layers in (None, f.draft.layers)
    if allowed and config.get("num_hidden_layers", f.draft.layers) != f.draft.layers:
        made.set("num_hidden_layers", f.draft.layers, "the layers in the file")


def _number(f: Facts, made: Plan) -> None:
    """A layer of multi-token prediction that is exported alone is layer 0 of one."""
    if elsewhere(f) is not None and all(key.startswith("model.layers.0.") for key in f.draft.checkpoint):
        made.set("num_hidden_layers", 1, "the file is an export of the layer alone")


def _aux(f: Facts, made: Plan) -> None:
    """Aux states on, and their ids where the engine reads them, if their meaning is known."""
    if not f.needs_aux:
        return
    if not f.draft.use_aux_hidden_state:
        made.nested("use_aux_hidden_state", True, "the fusion layer needs aux hidden states")
    if f.ids_read is None and is_speculators(f.draft.checkpoint.config):
        places = [place for place in f.draft.aux_ids if place.means_inputs and min(place.ids) > 0]
        if places:
            inputs = list(places[0].ids)
            made.nested(LAYER_IDS, _ids_for(f, inputs), f"{places[0].path} names the inputs of layers {inputs}")


def _ids_for(f: Facts, inputs: list[int]) -> list[int]:
    """The ids for which the target's class captures the inputs of these layers; without a target, a Llama's."""
    architecture, depth = (f.target.architecture, f.target.layers) if f.target else (None, None)
    outputs = [i - 1 for i in inputs]
    captured = f.release.captured(architecture, tuple(outputs), depth or 0)
    return outputs if captured == inputs else inputs


def _norms(f: Facts, made: Plan) -> None:
    """A norm whose tensors are there is switched on, where the release has it."""
    if f.rules is None or f.draft.algorithm != "EAGLE3":
        return
    names, norms = f.draft.names, f.draft.norms
    if "input_norm.weight" in names and not norms.before_fc and "norm_before_fc" in f.rules.switches:
        made.set("norm_before_fc", True, "the file has input_norm")
        eagle: Any = made.config.get("eagle_config")
        if isinstance(eagle, dict) and "norm_before_fc" in eagle:
            made.nested("norm_before_fc", True, "the file has input_norm")
    if any(n.startswith("fc_norm.") for n in names) and not norms.each_aux and "fc_norm" in f.rules.switches:
        made.set("fc_norm", True, "the file has fc_norm")


def _keys(f: Facts, made: Plan) -> None:
    """Tensors that would land nowhere get the name under which the engine reads what they are.

    Not those of a layer of multi-token prediction: it is found by its number.
    """
    if f.rules is None or f.rules.reads is not None:
        return
    checkpoint = f.draft.checkpoint
    infos = {info.key: info for info in checkpoint.infos()}
    try:
        landing = predict(infos, flat(made.config), f.rules)
    except Unbuildable:
        return
    gaps = {
        _stored(landing.parameters[name], part, f.rules): part
        for name, parts in landing.missing().items()
        for part in parts
    }
    dropped = landing.dropped()
    for name_of in (canonical, _last_words):
        meant = {name: stored for name, stored in _unique(gaps, name_of).items() if stored not in made.names.values()}
        for name, key in _unique([k for k in dropped if k not in made.names], name_of).items():
            stored = meant.get(name)
            if stored is not None and stored not in infos and infos[key].shape == gaps[stored].shape:
                made.names[key] = stored
                made.changed.append(f"{key} renamed to {stored}")


def _unique(keys: Iterable[str], name_of: Callable[[str], str]) -> dict[str, str]:
    """Keys by a name of theirs, without those whose name another one has too."""
    keys = list(keys)
    names = Counter(map(name_of, keys))
    return {name_of(key): key for key in keys if names[name_of(key)] == 1}


def _last_words(key: str) -> str:
    """The module and the kind of a tensor: `k_proj.weight`."""
    return ".".join(key.split(".")[-2:])


def _stored(parameter: Parameter, part: Part, rules: NamingRules) -> str:
    """The name in a file under which every release that has the class reads a part of a parameter."""
    name = parameter.name.removeprefix("model.")
    if rules.parameters in ("llama_eagle3", "mla_eagle3"):
        name = name.replace("layers.0.", "midlayer.", 1)
    if not part.name:
        return name
    module, _, kind = name.rpartition(".")
    return f"{module.rpartition('.')[0]}.{part.name}.{kind}"


def _map(f: Facts, made: Plan) -> None:
    """Absolute ids become offsets; a map that is missing or cannot be right is rebuilt from a t2d of the right size."""
    if f.draft.algorithm != "EAGLE3":
        return
    key = f.draft.names.get("d2t", "d2t")
    rebuilt = vocabulary.from_t2d(f)
    if f.d2t is not None and vocabulary.is_absolute(f) and len(f.d2t) == f.draft.head_rows:
        made.values[key] = f.d2t - np.arange(len(f.d2t))
        made.changed.append(f"{key}: absolute ids written as offsets")
        return
    reduced = f.draft.head_rows is not None and f.vocabulary is not None and f.draft.head_rows < f.vocabulary
    broken = f.d2t is None or "alarm" in (vocabulary.missing(f).status, vocabulary.mismatch(f).status) or (
        len(f.d2t) != f.draft.head_rows
    )  # fmt: skip
    if reduced and broken and rebuilt is not None:
        made.values[key] = rebuilt
        made.changed.append(f"{key}: rebuilt from t2d, which marks {len(rebuilt)} tokens, as many as lm_head has rows")


_REPAIRS: tuple[Callable[[Facts, Plan], None], ...] = (_layout, _sizes, _number, _aux, _norms, _keys, _map)


def _json(value: Any) -> str:
    return json.dumps(value)
