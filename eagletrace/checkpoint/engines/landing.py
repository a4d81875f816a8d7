"""Where each tensor of a draft's checkpoint lands in an engine's parameters, predicted from the engine's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eagletrace.checkpoint.config import integer
from eagletrace.checkpoint.engines.parameters import build
from eagletrace.checkpoint.engines.rules import NamingRules
from eagletrace.checkpoint.engines.sizes import Parameter, Part
from eagletrace.checkpoint.header import TensorInfo

Fate = Literal["loaded", "consumed_as_attribute", "ignored_by_engine", "dropped"]
"""As in the table `checkpoint_keys`."""


@dataclass(frozen=True)
class Misfit:
    """A tensor whose shape its parameter does not take: the engine raises while it loads."""

    key: str
    shape: tuple[int, ...]
    parameter: str
    due: tuple[int, ...]


@dataclass
class Landing:
    """`fates` by key, `parameters` by name, `filled`: for each parameter the key of each part, `misfits`.

    `not_built`: for each key that ends the loading with a KeyError the parameter that the engine takes for granted.
    """

    parameters: dict[str, Parameter]
    fates: dict[str, Fate] = field(default_factory=dict[str, Fate])
    filled: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    misfits: list[Misfit] = field(default_factory=list[Misfit])
    not_built: dict[str, str] = field(default_factory=dict[str, str])

    def dropped(self) -> list[str]:
        """Keys that land nowhere."""
        return [key for key, fate in self.fates.items() if fate == "dropped"]

    def missing(self) -> dict[str, tuple[Part, ...]]:
        """The parts that no tensor fills, by parameter."""
        gaps: dict[str, tuple[Part, ...]] = {}
        for name, parameter in self.parameters.items():
            parts = tuple(p for p in parameter.parts if p.name not in self.filled.get(name, {}))
            if parts:
                gaps[name] = parts
        return gaps


def layer_number(settings: Mapping[str, Any]) -> int:
    """The number under which a layer of multi-token prediction is looked for: that of the target's layers, or 0 where
    config.json has one layer, an export of the layer alone (`_initialize_nextn_conf` of SGLang 0.5.23)."""
    layers = integer(settings, "num_hidden_layers")
    return 0 if layers in (None, 1) else layers


def predict(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any], rules: NamingRules) -> Landing:
    """Follow every tensor; Unbuildable (a CheckpointError) where the class cannot be built from the settings."""
    landing = Landing(build(settings, rules))
    number = str(layer_number(settings))
    reads = re.compile((rules.reads or "").replace("{n}", number))
    moves = [(re.compile(old.replace("{n}", number)), new) for old, new in rules.moves]
    targets = _targets(tensors, settings) if rules.reads else set[str]()
    for key, info in tensors.items():
        if reads.search(key):
            moved = next((old.sub(new, key) for old, new in moves if old.search(key)), key)
            landing.fates[key] = _follow(landing, key, moved, info, rules)
        else:
            shared = key in targets or any(part in key for part in rules.skips)
            landing.fates[key] = "ignored_by_engine" if shared else "dropped"
    _unpair(landing, rules)
    return landing


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def _targets(keys: Iterable[str], settings: Mapping[str, Any]) -> set[str]:
    """The tensors of the target, in a file that holds the whole of it; nothing of a layer that is exported alone."""
    layers = integer(settings, "num_hidden_layers") or 1
    numbers = {key: int(found[1]) if (found := _LAYER.search(key)) else None for key in keys if "mtp" not in key}
    embedded = any(number is None and key.endswith("embed_tokens.weight") for key, number in numbers.items())
    if not embedded or not set(range(layers)) <= set(numbers.values()):
        return set()
    return {key for key, number in numbers.items() if number is None or number < layers}


def _follow(landing: Landing, key: str, moved: str, info: TensorInfo, rules: NamingRules) -> Fate:
    name = _renamed(moved, rules)
    if _is_map(name, "d2t", rules):
        return "consumed_as_attribute"
    if _is_map(name, "t2d", rules) or any(part in name for part in rules.skips):
        return "ignored_by_engine"
    if rules.experts != "none" and ".experts." in name:
        return _put(landing, key, info, *_of_experts(landing, name, rules))
    for fused in rules.fused:
        if fused.part in name:
            whole = name.replace(fused.part, fused.whole)
            found = _expected(landing, key, whole, rules, fused=True)
            return _put(landing, key, info, found, fused.part.removeprefix("."))
    if rules.pairs:
        for part in rules.pairs[:2]:
            found = _lookup(landing, name.replace(part, rules.pairs[2]), rules) if part in name else None
            if found is not None:
                return _put(landing, key, info, found, part)
    return _put(landing, key, info, _expected(landing, key, name, rules, fused=False), "")


def _expected(landing: Landing, key: str, name: str, rules: NamingRules, *, fused: bool) -> Parameter | None:
    """The parameter of a name; where there is none and the class takes it for granted, this is noted."""
    found, matrix = _lookup(landing, name, rules), not name.endswith(".bias")
    insists = {"never": False, "on_fused": fused and matrix, "always_but_biases": matrix, "always": True}
    if found is None and insists[rules.insists]:
        landing.not_built[key] = name
    return found


_EXPERT = re.compile(r"\.experts\.(\d+)\.((?:gate|up|down)_proj)\.")
_STACKED = {".experts.gate_up_proj": ".experts.w13_weight", ".experts.down_proj": ".experts.w2_weight"}
"""Names of one tensor of all experts, [experts, rows, width], as transformers 5 writes them."""


def _of_experts(landing: Landing, name: str, rules: NamingRules) -> tuple[Parameter | None, str]:
    """The parameter of a tensor of the routed experts, and which part it is ("": all of them)."""
    one = _EXPERT.search(name)
    if one:
        whole = ".experts.w2_" if one[2] == "down_proj" else ".experts.w13_"
        return _lookup(landing, name.replace(one[0], whole), rules), f"{one[1]}.{one[2]}"
    for end, whole in _STACKED.items():
        if name.endswith(end) and rules.experts == "or_stacked":
            return _lookup(landing, name.removesuffix(end) + whole, rules), ""
    return None, ""


def _renamed(key: str, rules: NamingRules) -> str:
    name = key
    for old, new in rules.renames:
        name = name.replace(old, new)
    for old, new in rules.anchored:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _is_map(name: str, which: str, rules: NamingRules) -> bool:
    if rules.map_by == "part":
        return which in name
    return rules.map_by == "last" and (name == which or name.endswith(f".{which}"))


def _lookup(landing: Landing, name: str, rules: NamingRules) -> Parameter | None:
    if rules.prefix == "always" or (rules.prefix == "always_but_head" and not name.startswith("lm_head.")):
        return landing.parameters.get(f"model.{name}")
    found = landing.parameters.get(name)
    return landing.parameters.get(f"model.{name}") if found is None and rules.prefix == "optional" else found


def _put(landing: Landing, key: str, info: TensorInfo, parameter: Parameter | None, part_name: str) -> Fate:
    if parameter is None:
        return "dropped"
    parts = [p for p in parameter.parts if p.name == part_name or not part_name]
    if not parts:
        return "dropped"
    landing.filled.setdefault(parameter.name, {}).update({p.name: key for p in parts})
    due = parts[0].shape if len(parts) == 1 else parameter.shape  # a tensor that is fused in the file fills all parts
    if info.shape != due:
        landing.misfits.append(Misfit(key, info.shape, parameter.name, due))
    return "loaded"


def _unpair(landing: Landing, rules: NamingRules) -> None:
    """Of a pair that is loaded together, one alone lands nowhere."""
    if rules.pairs is None:
        return
    for name, parts in landing.filled.items():
        if rules.pairs[2] in name and len(parts) < len(landing.parameters[name].parts):
            for key in parts.values():
                landing.fates[key] = "dropped"
            parts.clear()
