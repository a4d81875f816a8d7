"""Moves values from the device to the host without making the engine wait.

On a GPU, values are packed into one tensor per dtype, copied to pinned memory on the current stream, and read once
the event after the copy has fired; the background thread alone waits for it. On a CPU they are already there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

from eagletrace.record.rounds import Part, Values, on_host
from eagletrace.record.tensor_rows import Bytes, HostCopy

Read = Callable[[], npt.NDArray[Any]]


def pack(
    int_parts: tuple[Part, ...], ints: Sequence[torch.Tensor],
    float_parts: tuple[Part, ...] = (), floats: Sequence[torch.Tensor] = (),
) -> Values:  # fmt: skip
    """Values of one launch: tensors of integers (int32 or int64) and of float32, in the order of their parts.

    The packed copy is ours, so the engine may use its tensors again at once.
    """
    flat = [t if t.dim() == 1 else t.reshape(-1) for t in ints]
    read, ready = _host(torch.cat([t if t.dtype is torch.int64 else t.to(torch.int64) for t in flat]))
    if not floats:
        return Values(int_parts, read, ready=ready)
    read_floats, ready = _host(torch.cat([t if t.dim() == 1 else t.reshape(-1) for t in floats]))
    return Values(int_parts, read, float_parts, read_floats, ready)


def stage(values: Mapping[str, torch.Tensor | None]) -> dict[str, Read | None]:
    """Readers of host copies, by name; each keeps its tensor's shape. Integers come as int64, others as float32."""
    readers: dict[str, Read | None] = dict.fromkeys(values)
    present = [(name, tensor) for name, tensor in values.items() if tensor is not None]
    for floating, dtype in ((False, torch.int64), (True, torch.float32)):
        group = [(n, t) for n, t in present if t.is_floating_point() == floating]
        if group:
            readers.update(_stage_group(group, dtype))
    return readers


def copy_out(tensor: torch.Tensor) -> HostCopy:
    """A copy of a tensor [rows, ...] as it is now; its memory may be used again at once."""
    tensor = tensor.detach()
    rows, shape = tensor.shape[0], tuple(tensor.shape[1:])
    dtype = str(tensor.dtype).removeprefix("torch.")
    row_bytes = tensor.element_size() * math.prod(shape)
    if tensor.device.type != "cuda":
        kept = tensor.to("cpu", copy=True).contiguous()
        return HostCopy(dtype, rows, shape, row_bytes, lambda: _bytes(kept))
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def read() -> Bytes:
        event.synchronize()
        return _bytes(pinned)

    return HostCopy(dtype, rows, shape, row_bytes, read)


def _bytes(tensor: torch.Tensor) -> Bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _stage_group(group: Sequence[tuple[str, torch.Tensor]], dtype: torch.dtype) -> dict[str, Read]:
    packed = torch.cat([tensor.detach().reshape(-1).to(dtype) for _, tensor in group])
    read, _ = _host(packed)
    readers: dict[str, Read] = {}
    start = 0
    for name, tensor in group:
        readers[name] = _slice(read, start, start + tensor.numel(), tuple(tensor.shape))
        start += tensor.numel()
    return readers


def _slice(read: Read, start: int, end: int, shape: tuple[int, ...]) -> Read:
    return lambda: read()[start:end].reshape(shape)


def _host(packed: torch.Tensor) -> tuple[Read, Callable[[], bool]]:
    """A reader of a host copy, and whether it would return at once."""
    if packed.device.type != "cuda":
        if packed.device.type != "cpu":
            packed = packed.cpu()
        return packed.numpy, on_host
    pinned = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
    pinned.copy_(packed, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def read() -> npt.NDArray[Any]:
        event.synchronize()
        return pinned.numpy()

    return read, event.query
