"""Faults of the engine's runtime: each patches one module of the lab's server and leaves the tracer's code alone.

A server with a patch gets its code in `LAB_START`, and `start/` first on its PYTHONPATH. `start/sitecustomize.py`
arranges for the patch to be made right after the engine's module is imported, before the tracer wraps anything: what is
recorded is what the patched engine does. The code is a hash, so that nothing a run records names the fault.

A patch is written against SGLang 0.5.23, and changes the engine where an error in the engine would sit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "LAB_START"
START = Path(__file__).parent / "start"
_CODE_DIGITS = 8


@dataclass(frozen=True)
class Patch:
    """`apply` changes `module`, which has just been imported."""

    name: str
    module: str
    apply: Callable[[Any], None]

    @property
    def code(self) -> str:
        """What selects the patch in a server's environment."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:_CODE_DIGITS]


def patches() -> Mapping[str, Patch]:
    """Every patch by its name."""
    from eagletrace.lab.runtime import cache, hidden, positions, rows, verdicts, wrapper

    modules = (hidden, positions, cache, rows, verdicts, wrapper)
    found = (patch for module in modules for patch in module.PATCHES)
    return {patch.name: patch for patch in found}


def environment(name: str, inherited: str = "") -> dict[str, str]:
    """The variables that give a server the named patch; `inherited` is the PYTHONPATH that it gets otherwise."""
    path = os.pathsep.join([str(START), *([inherited] if inherited else [])])
    return {VARIABLE: patches()[name].code, "PYTHONPATH": path}


def arrange(code: str) -> None:
    """Make the patch of this code as soon as the engine's module is imported; ValueError for an unknown code."""
    import wrapt

    for patch in patches().values():
        if patch.code == code:
            wrapt.register_post_import_hook(patch.apply, patch.module)
            return
    raise ValueError(f"{VARIABLE}={code}: there is no such patch")
