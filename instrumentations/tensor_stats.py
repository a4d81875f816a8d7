"""Statistics of tensors at load time: checksum, RMS, constants. They synchronise; never used on the hot path."""

from __future__ import annotations

import math
from typing import Any

import torch

_CHUNK = 1 << 22  # elements at a time, so that the float32 copy of a large head stays small
_PRIME = 0x9E3779B97F4A7C15 - (1 << 64)


def checksum(tensor: torch.Tensor, device: torch.device | None = None, rounded_to: torch.dtype | None = None) -> str:
    """Position-weighted sum of the values' float32 bits (integers: of the values), 16 hex digits.

    Equal for equal values whatever their floating dtype, so that a bfloat16 file and its float32 parameter agree.
    With `device` it is computed there, a chunk at a time: a CPU needs a minute for a file of a billion values.
    With `rounded_to` it is that of the values rounded to that dtype.
    """
    flat = tensor.detach().reshape(-1)
    total = 0
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].to(device=device, dtype=rounded_to)
        bits = (
            part.to(torch.float32).view(torch.int32).to(torch.int64)
            if part.is_floating_point()
            else part.to(torch.int64)
        )
        weight = torch.arange(start + 1, start + 1 + part.numel(), device=part.device, dtype=torch.int64) * _PRIME
        total += int(((bits + 1) * (weight ^ (weight >> 29))).sum().item())
    return f"{total & (2**64 - 1):016x}"


def summary(tensor: torch.Tensor, device: torch.device | None = None) -> dict[str, Any]:
    """`{rms, nan_count, constant}` of a tensor; `constant` is NULL unless all elements are equal."""
    flat = tensor.detach().reshape(-1)
    if not flat.numel():
        return {"rms": None, "nan_count": 0, "constant": None}
    squares, bad, low, high = 0.0, 0, math.inf, -math.inf
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].to(device).to(torch.float64)
        finite = torch.isfinite(part)
        bad += int((~finite).sum().item())
        squares += float(part.square().sum().item())
        low, high = min(low, float(part.amin().item())), max(high, float(part.amax().item()))
    rms = math.sqrt(squares / flat.numel()) if not bad else math.nan
    return {"rms": rms, "nan_count": bad, "constant": low if low == high else None}


def difference(a: torch.Tensor, b: torch.Tensor) -> dict[str, float | None]:
    """`{relative_difference, cosine}` of two tensors: |a - b| / |b|, and the cosine; NULL if the shapes differ."""
    if a.shape != b.shape:
        return {"relative_difference": None, "cosine": None}
    x, y = a.detach().reshape(-1), b.detach().reshape(-1)
    apart = dot = xx = yy = 0.0
    for start in range(0, x.numel(), _CHUNK):
        u = x[start : start + _CHUNK].to(torch.float64)
        v = y[start : start + _CHUNK].to(u.device, torch.float64)
        apart += float((u - v).square().sum().item())
        dot, xx, yy = dot + float((u @ v).item()), xx + float((u @ u).item()), yy + float((v @ v).item())
    return {
        "relative_difference": math.sqrt(apart / yy) if yy else None,
        "cosine": dot / math.sqrt(xx * yy) if xx and yy else None,
    }


def place(tensor: torch.Tensor) -> tuple[int, int]:
    """What two tensors have in common when they share storage: storage address and device index."""
    return tensor.untyped_storage().data_ptr(), tensor.get_device()


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """`{checksum, shape, dtype, rms, data_ptr}`, as events show a tensor."""
    return {
        "checksum": checksum(tensor), "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
        "rms": summary(tensor)["rms"], "data_ptr": tensor.data_ptr(),
    }  # fmt: skip


def moments(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """`rms`, `nan_count` and `kurtosis` (the excess over a normal distribution's) of the last dimension of float32
    values, on their device."""
    centred = values - values.mean(-1, keepdim=True)
    variance = centred.square().mean(-1)
    return {
        "rms": values.square().mean(-1).sqrt(),
        "nan_count": (~values.isfinite()).sum(-1),
        "kurtosis": centred.pow(4).mean(-1) / variance.square().clamp(min=1e-30) - 3.0,
    }


def module_types(model: torch.nn.Module) -> dict[str, str]:
    """Class of the module that holds each parameter."""
    modules = list(model.named_modules())
    return {
        f"{path}.{name}" if path else name: type(module).__name__
        for path, module in modules
        for name, _ in module.named_parameters(recurse=False)
    }
