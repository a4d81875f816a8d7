"""Looks at the SGLang of this environment without importing it: which targets its sources define, what shuts us out.

Reading sources instead of importing them takes no GPU, no compiled kernels and no seconds.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from eagletrace.activate import PLUGIN_NAME, shut_out
from eagletrace.instrumentations.patching import Target
from eagletrace.instrumentations.sglang.targets import TARGETS
from eagletrace.settings import from_environ, is_on


def inspect_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """`{schema_version, sglang, activation, hooks}` as `eagletrace doctor --json` prints it.

    `sglang` is the installed version, None without one; `activation` says how tracing would start and what shuts
    it out; each hook is `{target, required, status, detail}` with status `found`, `missing` or `shut_out`.
    """
    version = _version("sglang")
    root = _package_folder("sglang")
    activation = _activation(environ, root)
    hooks: list[dict[str, Any]] = []
    if version and root:
        present = {t.name for t in TARGETS if defines(root, t.path)}
        hooks = [_hook(t, present, activation["shut_out"]) for t in TARGETS]
    return {"schema_version": 1, "sglang": version, "activation": activation, "hooks": hooks}


def _hook(target: Target, present: set[str], shut_out_by: str | None) -> dict[str, Any]:
    other = next((n for n in target.alternatives if n in present), None)
    if target.name in present:
        status, detail = ("shut_out", shut_out_by) if shut_out_by else ("found", target.doc)
    else:
        status = "missing"
        detail = f"{other} does its work in this release" if other else f"not in this release ({target.doc})"
    required = target.required and (target.name in present or other is None)
    return {"target": target.path, "required": required, "status": status, "detail": detail}


def _activation(environ: Mapping[str, str], root: Path | None) -> dict[str, Any]:
    plugins = root is not None and (root / "srt" / "plugins" / "__init__.py").exists()
    pth = _has_pth()
    way = "plugin" if plugins and _registered() else "pth" if pth else None
    return {
        "EAGLETRACE": "on" if is_on(environ) else "off: set EAGLETRACE=1 in the server's environment",
        "way": {"plugin": "entry point sglang.srt.plugins", "pth": "eagletrace.pth in site-packages"}.get(way or "")
        or "none: install eagletrace into the environment that runs the server",
        "shut_out": shut_out(environ) if plugins else None,
        "settings_ignored": [str(bad) for bad in from_environ(environ).bad],
    }


def _registered() -> bool:
    return any(e.name == PLUGIN_NAME for e in importlib.metadata.entry_points(group="sglang.srt.plugins"))


def _has_pth() -> bool:
    import site
    import sysconfig

    folders = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}
    return any((Path(folder) / "eagletrace.pth").exists() for folder in folders)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def defines(root: Path, path: str) -> bool:
    """Whether the sources below a package's folder define `module:Class.attribute` or `module:function`."""
    module, _, dotted = path.partition(":")
    tree = _parsed(root.joinpath(*module.split(".")[1:]).with_suffix(".py"))
    body: Iterable[ast.stmt] = tree.body if tree else ()
    *classes, name = dotted.split(".")
    for part in classes:
        found = next((s for s in body if isinstance(s, ast.ClassDef) and s.name == part), None)
        body = found.body if found else ()
    return any(isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name == name for s in body)


@cache
def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
