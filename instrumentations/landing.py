"""Which checkpoint tensor landed in which parameter, without knowing any naming rule.

The engine's `load_weights` runs under a dispatch mode and is fed its tensors one by one. A copy into memory of a
parameter is a landing; it belongs to the tensor whose memory it reads, to each of those that were put one below the
other in that memory, or, if the engine made a new tensor otherwise, to the tensor that was handed out last. What the
load gives to threads of a pool is followed there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from eagletrace.instrumentations.tensor_stats import checksum, place, summary

logger = logging.getLogger("eagletrace")
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
    checksum: str | None
    rms: float | None
    landed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    touched: bool = False
    passed_over: bool = False
    value: torch.Tensor | None = None  # kept only for small integer and boolean tensors (vocabulary maps)

    def fate(self, skipped_by_design: Iterable[str]) -> str:
        """loaded, consumed_as_attribute, ignored_by_engine or dropped."""
        if self.landed:
            return "loaded"
        if self.passed_over or any(part in self.key for part in skipped_by_design):
            return "ignored_by_engine"
        return "consumed_as_attribute" if self.touched else "dropped"


@dataclass(frozen=True)
class _Parameter:
    """Where a parameter lies: `start` in its storage, without keeping it alive."""

    name: str
    start: int
    elements: int
    storage: StorageWeakRef


class LandingMode(TorchDispatchMode):
    """Records landings while active. `feed` wraps the engine's iterator of (name, tensor).

    Of tensors whose names are `passed_over` no statistics are taken: those of a whole target take long.
    """

    def __init__(self, model: torch.nn.Module, passed_over: Callable[[str], bool] = lambda _: False) -> None:
        super().__init__()
        self._passed_over = passed_over
        self._original: Any = ThreadPoolExecutor.submit
        self._submit: Any = None  # what stands in its place while active
        self.keys: list[KeyRecord] = []
        # Not the parameters themselves: those that are repacked after loading must be free to go.
        self._parameters: dict[tuple[int, int], list[_Parameter]] = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            known = _Parameter(
                name, int(tensor.storage_offset()), tensor.numel(), StorageWeakRef(tensor.untyped_storage())
            )
            self._parameters.setdefault(place(tensor), []).append(known)
        self._sources: dict[tuple[int, int], tuple[StorageWeakRef, KeyRecord | None]] = {}
        # what was put one below the other: its memory, and the tensors with their elements
        self._joined: dict[tuple[int, int], tuple[StorageWeakRef, list[tuple[KeyRecord, int]]]] = {}
        self._before = fingerprints(model)
        self._device = next((p.device for p in model.parameters() if p.is_cuda), None)
        self._current: KeyRecord | None = None
        self._paused = False
        self.failure: str | None = None  # why observing stopped; the load itself goes on

    def feed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hand out the tensors unchanged, one by one."""
        for name, tensor in weights:
            self._paused = True
            try:
                self._current = self._begin(name, tensor)
            except Exception as error:  # noqa: BLE001 - the engine's load must not fail of it
                self._fail(f"{name}: {error!r}")
            finally:
                self._paused = False
            yield name, tensor

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
            logger.warning("eagletrace: cannot follow the weights (%s); loading is not affected", reason)

    def _begin(self, name: str, tensor: torch.Tensor) -> KeyRecord:
        is_map = tensor.dim() == 1 and not tensor.is_floating_point() and tensor.numel() <= 1 << 22
        passed = self._passed_over(name)
        check, rms = (None, None) if passed else _statistics(tensor, self._device)
        record = KeyRecord(
            name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.numel(), check, rms,
            passed_over=passed, value=tensor.detach().clone() if is_map else None,
        )  # fmt: skip
        self.keys.append(record)
        where = place(tensor)
        # Two tensors in one storage (a whole file mapped at once) cannot be told apart by it.
        shared = self._source(where) is not None
        self._sources[where] = (StorageWeakRef(tensor.untyped_storage()), None if shared else record)
        return record

    def _source(self, where: tuple[int, int]) -> tuple[StorageWeakRef, KeyRecord | None] | None:
        """The tensor handed out in that memory, unless it is gone: its address may be another's by now."""
        found = self._sources.get(where)
        return None if found is None or found[0].expired() else found

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self.observe(func, args, result, self._current)
        return result

    def __enter__(self) -> LandingMode:
        """Follow this thread, and what it gives to pools of threads."""
        loading, original = threading.get_ident(), ThreadPoolExecutor.submit

        def submit(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == loading and self._submit is not None:
                return original(pool, self._followed(function), *args, **kwargs)
            return original(pool, function, *args, **kwargs)

        self._original, self._submit = original, submit
        ThreadPoolExecutor.submit = submit
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        """Cease to; where another tool has replaced `submit` since, ours stays below it and does nothing."""
        super().__exit__(*raised)
        if ThreadPoolExecutor.submit is self._submit:
            ThreadPoolExecutor.submit = self._original
        self._submit = None

    def _followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What was given to a pool, so that its thread is followed; it loads the tensor that was handed out last."""
        current = self._current

        def run(*args: Any, **kwargs: Any) -> Any:
            with _Thread(self, current):
                return function(*args, **kwargs)

        return run

    def observe(self, func: Any, args: tuple[Any, ...], result: Any, current: KeyRecord | None) -> None:
        """Note what one operation did; `current` is the tensor that was handed out last when it was asked for."""
        if current is None:
            return
        try:
            self._observe(func, args, result, current)
        except Exception as error:  # noqa: BLE001 - as in feed
            self._fail(f"{func}: {error!r}")

    def _observe(self, func: Any, args: tuple[Any, ...], result: Any, current: KeyRecord) -> None:
        if func is torch.ops.aten.cat.default:
            self._join(args[0], args[1] if len(args) > 1 else 0, result)
            return
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        source = next((found[1] for found in (self._source(place(t)) for t in tensors) if found and found[1]), None)
        if source is not None:
            source.touched = True
        if func in _COPIES and tensors:
            parts = next((found for found in map(self._parts, tensors[1:]) if found), None)
            self._land(tensors[0], parts or [(source or current, tensors[0].numel())])

    def _join(self, parts: Sequence[torch.Tensor], dim: int, result: torch.Tensor) -> None:
        """Remember what a tensor was put together from, rows below rows. It may be thrown away: that is no use yet."""
        found = [self._source(place(part)) for part in parts]
        records = [source[1] for source in found if source is not None and source[1] is not None]
        if dim == 0 and len(records) == len(parts):
            sizes = [part.numel() for part in parts]
            joined = list(zip(records, sizes, strict=True))
            self._joined[place(result)] = StorageWeakRef(result.untyped_storage()), joined

    def _parts(self, tensor: torch.Tensor) -> list[tuple[KeyRecord, int]]:
        """The tensors that a whole one was put together from; none if it was not, or is a part of it."""
        storage, parts = self._joined.get(place(tensor), (None, []))
        whole = tensor.numel() == sum(elements for _, elements in parts)
        return parts if storage is not None and not storage.expired() and whole else []

    def _land(self, destination: torch.Tensor, parts: list[tuple[KeyRecord, int]]) -> None:
        for parameter in self._parameters.get(place(destination), ()):
            offset = destination.storage_offset() - parameter.start
            if not 0 <= offset < max(parameter.elements, 1) or parameter.storage.expired():
                continue
            for record, elements in parts:
                record.landed.append({"parameter": parameter.name, "offset": offset, "elements": elements})
                offset += elements

    def unseen(self, model: torch.nn.Module) -> set[str]:
        """Parameters that nothing was seen to write and that changed all the same, such as by code that was compiled,
        or by threads of no pool, where a dispatch mode does not reach."""
        seen = {landing["parameter"] for record in self.keys for landing in record.landed}
        changed: set[str] = set()
        for name, (where, sample) in fingerprints(model).items():
            before = self._before.get(name)
            # In other memory than before it is a new parameter, made after loading (repacked, quantised).
            if name not in seen and before is not None and before[0] == where and before[1] != sample:
                changed.add(name)
        return changed


class _Thread(TorchDispatchMode):
    """What a thread does for the load that `mode` follows."""

    def __init__(self, mode: LandingMode, current: KeyRecord | None) -> None:
        super().__init__()
        self._mode, self._current = mode, current

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._mode.observe(func, args, result, self._current)
        return result


def fingerprints(model: torch.nn.Module) -> dict[str, tuple[tuple[int, int], bytes]]:
    """Where each parameter lies, and the bytes of up to 256 of its elements; without those that cannot be read."""
    found: dict[str, tuple[tuple[int, int], bytes]] = {}
    for name, tensor in model.named_parameters():
        try:
            flat = tensor.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 256)][:256].contiguous().view(torch.uint8).cpu()
            found[name] = (place(tensor), sample.numpy().tobytes())
        except Exception:  # noqa: BLE001, PERF203 - any tensor subclass may be there
            continue
    return found


def _statistics(tensor: torch.Tensor, device: torch.device | None) -> tuple[str | None, float | None]:
    """Checksum and RMS; NULL for a packed type that cannot be converted."""
    try:
        return checksum(tensor, device), summary(tensor, device)["rms"] if tensor.is_floating_point() else None
    except (RuntimeError, NotImplementedError, TypeError):
        return None, None


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
