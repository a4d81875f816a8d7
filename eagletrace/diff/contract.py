"""Compares the load-time facts of two runs, the important ones first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from eagletrace.checkpoint.names import canonical
from eagletrace.diff.facts import Facts
from eagletrace.diff.importance import importance
from eagletrace.diff.result import LEVELS, FactChange, Kind

TOLERANCE = 1e-6
"""Relative difference below which two numbers of the contract are one."""

UNRECORDED = "the other run did not record it"
OTHER_RELEASE = "an argument that the other release does not have"
DRAFT_PARAMS = "params/draft/"
_PATHS = {
    "draft": ("server.speculative_draft_model_path",),
    "target": ("server.model_path", "server_args/tokenizer_path", "server_args/served_model_name"),
}
_ABSENT = object()


@dataclass(frozen=True)
class Contract:
    """Changes, important ones first, and how many facts are the same."""

    changes: tuple[FactChange, ...]
    same: int

    def of(self, *levels: str) -> tuple[FactChange, ...]:
        """The changes of these levels of importance."""
        return tuple(c for c in self.changes if c.importance in levels)


def compare_contract(a: Facts, b: Facts) -> Contract:
    """Compare every fact that either run recorded."""
    b = _under_the_names_of(a, b)
    changes, same = list[FactChange](), 0
    for key in dict.fromkeys([*a.values, *b.values]):
        if _has_own_key(key, a) and _has_own_key(key, b):
            continue
        there_a, there_b = a.values.get(key, _ABSENT), b.values.get(key, _ABSENT)
        unrecorded = (there_a is _ABSENT and not a.recorded(key)) or (there_b is _ABSENT and not b.recorded(key))
        if (there_a is _ABSENT or there_b is _ABSENT) and "/" in key:
            found = [_change(key, there_a, there_b)]
        else:
            found = list(_changes(key, there_a, there_b))
        same += not found
        changes += [_unrecorded(c) if unrecorded else c for c in found]
    judged = [_judged(c, a, b) for c in changes]
    return Contract(tuple(sorted(judged, key=lambda c: LEVELS.index(c.importance))), same)


def _under_the_names_of(a: Facts, b: Facts) -> Facts:
    """B with each parameter of the draft under A's name of it: releases name modules otherwise (SGLang 0.5.12 turned
    `midlayer` into `layers.0`)."""
    alone = [{canonical(n): n for n in f.of("params/draft") if DRAFT_PARAMS + n not in o.values}
             for f, o in ((a, b), (b, a))]  # fmt: skip
    names = {DRAFT_PARAMS + alone[1][n]: DRAFT_PARAMS + name for n, name in alone[0].items() if n in alone[1]}
    return replace(b, values={names.get(key, key): value for key, value in b.values.items()}) if names else b


def _has_own_key(key: str, facts: Facts) -> bool:
    """Whether the contract has a fact of `run.json` under a key of its own."""
    own = {"run/sglang": "engine.version", "run/engine": "engine.name"}.get(key)
    own = own or (key.replace("server_args/", "server.", 1) if key.startswith("server_args/") else None)
    return own is not None and own in facts.values


def _changes(key: str, a: Any, b: Any) -> Iterator[FactChange]:
    """The differences of two values, of dicts entry by entry."""
    if isinstance(a, dict) and isinstance(b, dict):
        mine, other = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
        between = "/" if "/" in key else "."
        for name in dict.fromkeys([*mine, *other]):
            yield from _changes(f"{key}{between}{name}", mine.get(name, _ABSENT), other.get(name, _ABSENT))
    elif not _equal(a, b):
        yield _change(key, a, b)


def _change(key: str, a: Any, b: Any) -> FactChange:
    kind: Kind = "added" if a is _ABSENT else "gone" if b is _ABSENT else "changed"
    level, why = importance(key)
    mine, other = (None if v is _ABSENT else _shown(key, v) for v in (a, b))
    return FactChange(key, mine, other, kind, level, why)


def _shown(key: str, value: Any) -> Any:
    """What is told of an entry that one run alone has: of a tensor its shape, of a hook its status."""
    if "/" not in key or not isinstance(value, dict):
        return value
    entry = cast("dict[str, Any]", value)
    return {k: entry[k] for k in ("shape", "dtype", "fate", "status") if entry.get(k) is not None}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b if isinstance(a, bool) or isinstance(b, bool) else a == b


def _unrecorded(change: FactChange) -> FactChange:
    """A fact that one run did not look at says nothing of a difference."""
    level = "noise" if change.importance == "noise" else "minor"
    return replace(change, importance=level, why=UNRECORDED, unrecorded=True)


def _judged(change: FactChange, a: Facts, b: Facts) -> FactChange:
    """The change with an importance that needs more than its own key."""
    for side, keys in _PATHS.items():
        if change.key in keys and _same_weights(side, a, b):
            return replace(change, importance="noise", why=f"another folder with the same {side}")
    if change.key.startswith("server_args/") and change.kind != "changed" and change.importance != "noise":
        # Its default is not known here: one that is on may say when a draft is accepted.
        off = not change.a and not change.b
        if off or change.importance != "decisive":
            return replace(change, importance="minor", why=OTHER_RELEASE)
    if change.key.startswith("params/") and change.key.endswith("/checksum"):
        name = change.key.removesuffix("/checksum")
        if _is_memory(a.values.get(name)) and _is_memory(b.values.get(name)):
            return replace(change, importance="noise", why="nobody wrote it: it holds what memory held")
        sides = (a.values.get(name), b.values.get(name))
        if all(isinstance(v, Mapping) and cast("Mapping[str, Any]", v).get("shared_with") for v in sides):
            return replace(change, why="shared with the target, whose values are others")
    return change


def _same_weights(side: str, a: Facts, b: Facts) -> bool:
    """Whether every checksum that was recorded of the draft's file, or of the target, is the same in both runs."""
    of_a, of_b = (_checksums(side, f) for f in (a, b))
    return bool(of_a) and of_a == of_b


def _checksums(side: str, facts: Facts) -> dict[str, Any]:
    """Checksums of the draft's file, or of those parameters of the target that were looked at, before any update."""
    if side == "draft":
        found = {name: entry.get("checksum") for name, entry in facts.of("checkpoint_keys").items()}
    else:
        found = {name: entry.get("checksum") for name, entry in facts.of("params/target").items()}
    return found if all(found.values()) else {}


def _is_memory(entry: Any) -> bool:
    """A weight that is neither loaded, nor shared, nor of one value."""
    if not isinstance(entry, Mapping):
        return False
    param = cast("Mapping[str, Any]", entry)
    loaded, elements = param.get("elements_loaded"), param.get("elements")
    unwritten = loaded is not None and elements is not None and loaded < elements
    return unwritten and not param.get("shared_with") and param.get("constant") is None
