"""Captured graphs for tests: CUDA's own, and for a CPU a recording of operators that is replayed without Python.

As on a GPU, a replay calls none of the captured functions: it runs the recorded operators again, on the same tensors,
and writes their results into the memory where the capture had them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OperatorGraph(TorchDispatchMode):
    """A recording of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operators.append((func, args, kwargs or {}, out))
        return out

    def capture(self, function: Callable[[], Any]) -> Any:
        """Run a function and record its operators."""
        with self:
            return function()

    def replay(self) -> None:
        """Run the operators again."""
        for func, args, kwargs, out in self.operators:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and _memory(old) != _memory(new):
                    old.copy_(new)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class CudaGraph:
    """CUDA's own."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], Any]) -> Any:
        """Capture a function's kernels."""
        with torch.cuda.graph(self.graph):
            return function()

    def replay(self) -> None:
        """Launch them again."""
        self.graph.replay()


class NoGraph:
    """For tensors without values: a replay has nothing to do."""

    def capture(self, function: Callable[[], Any]) -> Any:
        """Run a function."""
        return function()

    def replay(self) -> None:
        """Nothing."""


GRAPHS = {"cpu": OperatorGraph, "cuda": CudaGraph}
needs_cuda = "needs a CUDA device: torch.cuda.is_available() is false here"
