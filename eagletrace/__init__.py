"""Tells an inference team why its speculative decoding rejects drafts.

Importing this package loads nothing else; the public names are loaded when they are first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagletrace.activate import instrument, uninstrument
    from eagletrace.check import check
    from eagletrace.diagnose import diagnose
    from eagletrace.diff import diff
    from eagletrace.instrumentations.training import record_training
    from eagletrace.store import open_run

__version__ = "0.1.0"
__all__ = ["__version__", "check", "diagnose", "diff", "instrument", "open_run", "record_training", "uninstrument"]

_WHERE = {
    "check": "eagletrace.check",
    "diagnose": "eagletrace.diagnose",
    "diff": "eagletrace.diff",
    "instrument": "eagletrace.activate",
    "open_run": "eagletrace.store",
    "record_training": "eagletrace.instrumentations.training",
    "uninstrument": "eagletrace.activate",
}


class _CallableModule(ModuleType):
    """A subpackage that is also the function of its name: `eagletrace.diagnose(run)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _WHERE and isinstance(value, ModuleType):  # the import system binds a subpackage here
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
