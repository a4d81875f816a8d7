"""Where each tensor of a draft's checkpoint lands in an engine's parameters, predicted from the engine's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eagletrace.checkpoint.engines.parameters import Parameter, Part, build
from eagletrace.checkpoint.engines.rules import NamingRules
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
    """`fates` by key, `parameters` by name, `filled`: for each parameter the key of each part, `misfits`."""

    parameters: dict[str, Parameter]
    fates: dict[str, Fate] = field(default_factory=dict[str, Fate])
    filled: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    misfits: list[Misfit] = field(default_factory=list[Misfit])

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


def predict(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any], rules: NamingRules) -> Landing:
    """Follow every tensor; Unbuildable (a CheckpointError) where the class cannot be built from the settings."""
    landing = Landing(build(settings, rules))
    for key, info in tensors.items():
        landing.fates[key] = _follow(landing, key, info, rules)
    _unpair(landing, rules)
    return landing


def _follow(landing: Landing, key: str, info: TensorInfo, rules: NamingRules) -> Fate:
    name = _renamed(key, rules)
    if _is_map(name, "d2t", rules):
        return "consumed_as_attribute"
    if _is_map(name, "t2d", rules) or any(part in name for part in rules.skips):
        return "ignored_by_engine"
    for fused in rules.fused:
        if fused.part in name:
            found = _lookup(landing, name.replace(fused.part, fused.whole), rules)
            return _put(landing, key, info, found, fused.part.removeprefix("."))
    if rules.pairs:
        for part in rules.pairs[:2]:
            if part in name:
                found = _lookup(landing, name.replace(part, rules.pairs[2]), rules)
                return _put(landing, key, info, found, part)
    return _put(landing, key, info, _lookup(landing, name, rules), "")


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
