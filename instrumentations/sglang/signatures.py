"""What the hooks rely on, against what a release has: found, changed or missing.

The same comparison serves a wheel that is only read (docs/sglang-releases.md), the installed engine (`eagletrace
doctor`) and a function about to be wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from eagletrace.instrumentations.sglang.sources import Function, Sources
from eagletrace.instrumentations.sglang.targets import BY_NAME, TARGETS, EngineTarget

FOUND, CHANGED, MISSING = "found", "changed", "missing"
FAMILIES = ("v1", "v2")
"""The workers, as their targets' names begin. A release needs one of them whole."""
OF_STEPS = "multi_layer"
"""The worker with a draft for each step, which serves beside them."""


@dataclass(frozen=True)
class Facts:
    """What a release's source says of one target: its parameters (None: only imported there), and what lacks."""

    parameters: tuple[str, ...] | None
    lacks: tuple[str, ...] = ()


def read(sources: Sources, target: EngineTarget) -> Facts | None:
    """The facts of one target; None if it is not there."""
    function = sources.function(target.path)
    return None if function is None else Facts(function.parameters, tuple(_lacks(sources, target, function)))


def read_all(sources: Sources) -> dict[str, Facts | None]:
    """The facts of every target, by its name."""
    return {target.name: read(sources, target) for target in TARGETS}


def _lacks(sources: Sources, target: EngineTarget, function: Function) -> Iterable[str]:
    for place, attributes in target.reads:
        module, _, name = place.rpartition(":")
        if not module:
            module = function.module
            name = next((function.annotations[n] for n in place.split("|") if n in function.annotations), "")
        known = sources.attributes(module, name) if name else None
        if known is not None:
            yield from (f"{name}.{a}" for a in attributes.split() if not known & set(a.split("|")))


def mismatch(target: EngineTarget, parameters: Sequence[str]) -> str | None:
    """Why a hook cannot rely on a function with these parameters (as `Function.parameters`); None if it can."""
    positional = list(takewhile(lambda name: not name.startswith("*"), parameters))
    catches_all = any(p.startswith("*") and not p.startswith("**") and p != "*" for p in parameters)
    for index, expected in enumerate(target.takes):
        if index < len(positional):
            if positional[index] not in expected.split("|"):
                return f"parameter {index + 1} is {positional[index]!r}, not {expected.replace('|', ' or ')!r}"
        elif not catches_all:
            return f"it has no parameter {expected.replace('|', ' or ')!r}"
    named = set(parameters)
    for expected in target.keywords:
        if not named & set(expected.split("|")) and not any(p.startswith("**") for p in parameters):
            return f"it has no parameter {expected.replace('|', ' or ')!r}"
    return None


def of_callable(target: EngineTarget, function: Callable[..., Any]) -> str | None:
    """`mismatch` of a function about to be wrapped, as it stands in its module or class; None if it cannot be told."""
    try:
        signature = inspect.signature(getattr(function, "__func__", function))
    except (TypeError, ValueError):
        return None
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(n.startswith("*") for n in names):
            names.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        names.append(f"{stars}{parameter.name}")
    method = "." in target.path.partition(":")[2] and not isinstance(function, staticmethod)
    return mismatch(target, names[1:] if method and names and not names[0].startswith("*") else names)


def status(target: EngineTarget, facts: Facts | None) -> tuple[str, str | None]:
    """(`found`, `changed` or `missing`; what differs) of a target in a release."""
    if facts is None:
        return MISSING, None
    if facts.lacks:
        return CHANGED, f"no {', '.join(facts.lacks)}"
    reason = mismatch(target, facts.parameters) if facts.parameters is not None else None
    return (CHANGED, reason) if reason else (FOUND, None)


def statuses(
    facts: Mapping[str, Facts | None], targets: Iterable[EngineTarget] = TARGETS
) -> dict[str, tuple[str, str | None]]:
    """The status of every target of a release."""
    return {t.name: status(t, facts.get(t.name)) for t in targets}


def families(found: Mapping[str, tuple[str, str | None]]) -> list[str]:
    """The workers that a release has whole: all of their required targets as expected. The worker with a draft for each
    step is among them where its targets were looked for."""
    return [f for f in (*FAMILIES, OF_STEPS) if all(found.get(n, (MISSING,))[0] == FOUND for n in _family(f))]


def _family(name: str) -> list[str]:
    return [t.name for t in BY_NAME.values() if t.required and t.name.startswith(f"{name}.")]


def lost(found: Mapping[str, tuple[str, str | None]]) -> dict[str, str]:
    """Required targets that a release has neither itself nor through an alternative: name to what is wrong.

    A worker whose launch is as expected must have its other targets too: the other worker cannot stand in for them. A
    worker that a release does not have, or whose launch changed, is missed only if there is no other.
    """
    launches = {family: found[f"{family}.generate"][0] == FOUND for family in FAMILIES}
    gone: dict[str, str] = {}
    for target in TARGETS:
        state, detail = found[target.name]
        if state == FOUND or not target.required:
            continue
        family, _, part = target.name.partition(".")
        if family in launches:
            missed = launches[family] or (part == "generate" and not any(launches.values()))
        else:
            missed = not any(found[n][0] == FOUND for n in target.alternatives)
        if missed:
            gone[target.name] = detail or "not in this release"
    return gone
