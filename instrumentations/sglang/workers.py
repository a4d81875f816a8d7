"""Which parts of the speculative worker that serves are hooked.

SGLang has workers that share nothing of a launch with those that are hooked (n-gram, frozen-KV MTP, DFLASH, DSpark and
Uno; of 0.5.9 the multi-layer worker without the overlap scheduler). Without a word about it their servers would look as
if nothing was drafted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_LAUNCH = "forward_batch_generation"
_VERIFY = ("verify", "verdicts")
# The draft's side of a launch, as either worker calls it.
_DRAFT = (("draft", "drafted trees"), ("forward_draft_extend_after_decode", "draft extends"),
          ("_draft_extend_for_decode", "draft extends"))  # fmt: skip


@dataclass(frozen=True)
class Unhooked:
    """A part of the worker that none of our hooks sees: `module:Class.method`, and what follows from it."""

    target: str
    detail: str


def unhooked(worker: Any, hooked: Collection[str]) -> list[Unhooked]:
    """The parts of `worker` that are not among the paths of `hooked` targets; nothing if it is traced whole.

    A worker whose launch is not hooked is one entry: no round of it is recorded, whatever else it inherits. `worker` is
    what the scheduler calls its draft worker, None without speculation.
    """
    if worker is None:
        return []
    name, launch = type(worker).__name__, _path(worker, _LAUNCH)
    if launch is None or launch not in hooked:
        missing = launch or f"{type(worker).__module__}:{name}.{_LAUNCH}"
        return [Unhooked(missing, f"the speculative worker is {name}, which is not traced: no rounds are recorded")]
    drafts: Any = getattr(worker, "draft_worker", worker)  # the second worker has one, or none on other pipeline stages
    parts = [(worker, *_VERIFY), *((drafts, *part) for part in _DRAFT if drafts is not None)]
    found: list[Unhooked] = []
    for part, method, what in parts:
        path = _path(part, method)
        if path is not None and path not in hooked:
            found.append(Unhooked(path, f"{type(part).__name__} has its own {method}, which is not traced: no {what}"))
    return found


def _path(part: Any, name: str) -> str | None:
    """Where the method that runs is defined; None if there is no such method."""
    owner = next((c for c in type(part).__mro__ if name in vars(c)), None)
    return None if owner is None else f"{owner.__module__}:{owner.__qualname__}.{name}"
