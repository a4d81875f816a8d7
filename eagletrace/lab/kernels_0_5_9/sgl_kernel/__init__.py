"""CPU stand-in for the compiled package ``sgl_kernel``, as SGLang 0.5.9 imports it.

SGLang 0.5.9 imports many kernels by name at the top of modules that a CPU server never calls into.
So every name and every submodule can be imported here; calling a kernel without a stand-in raises.
The one exception is ``sgl_kernel.scalar_type``, which holds values: SGLang copes with its absence.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from lab_tree_kernels import build_tree as build_tree_kernel_efficient
from lab_tree_kernels import verify_tree_greedy

__all__ = ["build_tree_kernel_efficient", "verify_tree_greedy"]


def _missing_kernel(module: str, name: str) -> Callable[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{module}.{name} has no CPU stand-in in the lab")

    return missing


class _Submodule(types.ModuleType):
    """A submodule in which every name exists and no kernel can be called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing_kernel(self.__name__, name)


class _SubmoduleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``sgl_kernel.<anything>`` that has no file."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(__name__ + ".") and fullname != __name__ + ".scalar_type":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing_kernel(__name__, name)


sys.meta_path.append(_SubmoduleFinder())
