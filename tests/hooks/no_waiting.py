"""Fails when a hook waits for the device.

On a GPU CUDA's own sync debug mode says so. Elsewhere tensors of `FakeTensorMode` stand in for a GPU's: they have a
CUDA device and shapes but no values, so whatever needs a value on the host (`.item()`, `.tolist()`, `bool()`, printing,
nonzero, boolean masks) raises; copies between host and device are seen here, and must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from eagletrace.instrumentations.patching import Observer
from eagletrace.instrumentations.sglang import distributions

VALUES = (
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy", "argwhere",
    "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
)  # fmt: skip


class WaitError(AssertionError):
    """A hook waited for the device."""


class _Operators(TorchDispatchMode):
    """Sees what reaches the device while a hook runs."""

    def __init__(self, waits: Callable[[str], None]) -> None:
        super().__init__()
        self.waits = waits
        self.pinned: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in VALUES:
            self.waits(f"{name} needs a value on the host")
        if name in ("index", "index_put", "index_put_"):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            if masks and masks[0].device.type == "cuda":
                self.waits("a boolean mask needs the number of its elements on the host")
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        if name == "repeat_interleave" and given.get("output_size") is None:
            self.waits("repeat_interleave needs a sum on the host")
        out = func(*args, **kwargs)
        if given.get("pin_memory"):
            self.pinned.add(_storage(out))
        if name in ("_to_copy", "to"):  # `to` in inference mode, where it is not taken apart
            self._copy(args[0], out, given.get("non_blocking", False))
        elif name == "copy_":
            self._copy(given["src"], args[0], given.get("non_blocking", False))
        return out

    def _copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        places = source.device.type, target.device.type
        if places[0] == places[1] or "cuda" not in places:
            return
        host = source if places[0] == "cpu" else target
        if not non_blocking:
            self.waits(f"a blocking copy from {places[0]} to {places[1]}")
        elif _storage(host) not in self.pinned:
            self.waits(f"a copy from {places[0]} to {places[1]} of memory that is not pinned")


def forget_cached() -> None:
    """Forget tensors that functions keep by shape and device: these here have no values."""
    for function in vars(distributions).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]  # a FakeTensor has no data_ptr


class _Event:
    """Stands in for `torch.cuda.Event`."""

    waits: Callable[[str], None] = staticmethod(print)

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing to do."""

    def query(self) -> bool:
        """Not there yet."""
        return False

    def synchronize(self) -> None:
        """A wait."""
        self.waits("an event's synchronize")


class Guard:
    """Watches hooks. `found` lists each wait as (hook, what); `inject` maps a hook to what it shall do besides."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.found: list[tuple[str, str]] = []
        self.entered: set[str] = set()
        self.inject: dict[str, Callable[[], Any]] = {}
        self._hook = ""
        self._operators = _Operators(self._waits)

    def _waits(self, what: str) -> None:
        if self._hook:
            self.found.append((self._hook, what))
            raise WaitError(f"{self._hook}: {what}")

    @contextmanager
    def engine(self, patch: Any) -> Generator[None]:
        """Where the engine runs; `patch` is pytest's monkeypatch."""
        if self.device == "cuda":
            yield
            return
        patch.setattr(_Event, "waits", staticmethod(self._waits))
        patch.setattr(torch.cuda, "Event", _Event)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(torch.cuda, "synchronize", partial(self._waits, "torch.cuda.synchronize"))
        patch.setattr(torch.Tensor, "pin_memory", _pinned)
        patch.setattr(torch, "tensor", _tensor(torch.tensor))
        forget_cached()
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
        forget_cached()

    def watch(self, name: str, hook: Observer) -> None:
        """Watch what a hook does before and after the engine's function."""
        for method in ("before", "after", "failed"):
            setattr(hook, method, self._watched(name, getattr(hook, method)))

    def watch_module(self, name: str, module: Any) -> None:
        """Watch the module hooks of a module, which nothing guards."""

        def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> None:
                with suppress(WaitError):
                    function(*args)

            return call

        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, function in list(hooks.items()):
                hooks[key] = quietly(self._watched(name, function))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            outer, self._hook = self._hook, name
            self.entered.add(name)
            try:
                with self._mode():
                    result = function(*args)
                    if name in self.inject:
                        self.inject[name]()
                return result
            except Exception as error:
                if not isinstance(error, WaitError):
                    self.found.append((name, f"{type(error).__name__}: {error}"))
                raise
            finally:
                self._hook = outer

        return watched

    def _mode(self) -> AbstractContextManager[Any]:
        return _sync_debug_mode() if self.device == "cuda" else self._operators


@contextmanager
def _sync_debug_mode() -> Generator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def _tensor(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor`, whose `pin_memory` wants a driver even of a tensor without values."""

    def tensor(data: Any, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = original(data, *args, **kwargs)
        return _pinned(made) if pin_memory else made

    return tensor
