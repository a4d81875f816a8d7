"""Looks at the SGLang of this environment without importing it: which targets its sources have, what shuts us out.

Reading sources instead of importing them takes no GPU, no compiled kernels and no seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagletrace.activate import PLUGIN_NAME, shut_out
from eagletrace.instrumentations.sglang import signatures
from eagletrace.instrumentations.sglang.sources import Sources
from eagletrace.instrumentations.sglang.targets import BY_NAME, MULTI_LAYER, TARGETS, EngineTarget
from eagletrace.settings import from_environ, is_on


def inspect_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """`{schema_version, sglang, activation, hooks}` as `eagletrace doctor --json` prints it.

    `sglang` is the installed version, None without one; `activation` says how tracing would start and what shuts
    it out and which speculative workers would be traced; each hook is `{target, required, status, detail}` with status
    `found`, `changed` (it is there, but not as the hook relies on it), `missing` or `shut_out`. A release may lack the
    multi-layer worker: its hooks are not required.
    """
    version = _version("sglang")
    root = _package_folder("sglang")
    activation = _activation(environ, root)
    hooks: list[dict[str, Any]] = []
    if version and root:
        sources = Sources(root)
        facts = signatures.read_all(sources) | {t.name: signatures.read(sources, t) for t in MULTI_LAYER}
        found = signatures.statuses(facts, BY_NAME.values())
        lost = signatures.lost(found)
        activation["workers_traced"] = signatures.families(found)
        hooks = [_hook(t, found, lost, activation["shut_out"]) for t in TARGETS]
        alone = (replace(t, required=False, alternatives=()) for t in MULTI_LAYER)
        hooks += [_hook(t, found, lost, activation["shut_out"]) for t in alone]
    return {"schema_version": 1, "sglang": version, "activation": activation, "hooks": hooks}


def _hook(
    target: EngineTarget, found: Mapping[str, tuple[str, str | None]], lost: Mapping[str, str], shut_out_by: str | None
) -> dict[str, Any]:
    status, why = found[target.name]
    detail = target.doc
    if status == signatures.FOUND and shut_out_by:
        status, detail = "shut_out", shut_out_by
    elif status != signatures.FOUND:
        other = next((n for n in target.alternatives if found[n][0] == signatures.FOUND), None)
        detail = why or f"not in this release ({target.doc})"
        if other and target.name not in lost:
            detail = f"{other} does its work in this release" + (f" ({why})" if why else "")
    required = target.required and (found[target.name][0] == signatures.FOUND or target.name in lost)
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
