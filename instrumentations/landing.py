"""Which checkpoint tensor landed in which parameter, without knowing any naming rule.

The engine's `load_weights` runs under a dispatch mode and is fed its tensors one by one. A copy into memory of a
parameter is a landing; it belongs to the tensor whose memory it reads, or, if the engine made a new tensor of it,
to the tensor that was handed out last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eagletrace.instrumentations.tensor_stats import checksum, place, summary

_COPIES = {
    torch.ops.aten.copy_.default,
    torch.ops.aten.set_.source_Tensor,
    torch.ops.aten.index_copy_.default,
    torch.ops.aten.index_put_.default,
}


@dataclass
class KeyRecord:
    """One checkpoint tensor: where it landed, and whether the engine touched it at all."""

    key: str
    shape: list[int]
    dtype: str
    elements: int
    checksum: str
    rms: float | None
    landed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    touched: bool = False
    value: torch.Tensor | None = None  # kept only for small integer and boolean tensors (vocabulary maps)

    def fate(self, skipped_by_design: Iterable[str]) -> str:
        """loaded, consumed_as_attribute, ignored_by_engine or dropped."""
        if self.landed:
            return "loaded"
        if any(part in self.key for part in skipped_by_design):
            return "ignored_by_engine"
        return "consumed_as_attribute" if self.touched else "dropped"


class LandingMode(TorchDispatchMode):
    """Records landings while active. `feed` wraps the engine's iterator of (name, tensor)."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.keys: list[KeyRecord] = []
        self._parameters: dict[tuple[int, int], list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._parameters.setdefault(place(tensor), []).append((name, tensor))
        self._sources: dict[tuple[int, int], KeyRecord | None] = {}
        self._current: KeyRecord | None = None
        self._paused = False

    def feed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hand out the tensors unchanged, one by one."""
        for name, tensor in weights:
            self._paused = True
            try:
                self._current = self._begin(name, tensor)
            finally:
                self._paused = False
            yield name, tensor

    def _begin(self, name: str, tensor: torch.Tensor) -> KeyRecord:
        small = not tensor.is_floating_point() and tensor.numel() <= 1 << 22
        record = KeyRecord(
            name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.numel(), checksum(tensor),
            summary(tensor)["rms"] if tensor.is_floating_point() else None,
            value=tensor.detach().clone() if small else None,
        )  # fmt: skip
        self.keys.append(record)
        where = place(tensor)
        # Two tensors in one storage (a whole file mapped at once) cannot be told apart by it.
        self._sources[where] = None if where in self._sources else record
        return record

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._paused and self._current is not None:
            self._observe(func, args)
        return result

    def _observe(self, func: Any, args: tuple[Any, ...]) -> None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        source = next((r for r in (self._sources.get(place(t)) for t in tensors) if r is not None), None)
        if source is not None:
            source.touched = True
        if func in _COPIES and tensors:
            self._land(tensors[0], source or self._current)

    def _land(self, destination: torch.Tensor, record: KeyRecord | None) -> None:
        if record is None:
            return
        for name, parameter in self._parameters.get(place(destination), ()):
            offset = destination.storage_offset() - parameter.storage_offset()
            if 0 <= offset < max(parameter.numel(), 1):
                record.landed.append({"parameter": name, "offset": offset, "elements": destination.numel()})


def elements_loaded(keys: Iterable[KeyRecord]) -> dict[str, tuple[int, list[str]]]:
    """Per parameter: elements written (a place written twice counts once) and the keys that wrote."""
    ranges: dict[str, dict[tuple[int, int], None]] = {}
    names: dict[str, list[str]] = {}
    for record in keys:
        for landing in record.landed:
            name = landing["parameter"]
            ranges.setdefault(name, {})[landing["offset"], landing["elements"]] = None
            if record.key not in names.setdefault(name, []):
                names[name].append(record.key)
    return {name: (sum(count for _, count in parts), names[name]) for name, parts in ranges.items()}
