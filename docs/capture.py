"""Which target classes of each SGLang release can capture aux hidden states, and what a layer id means to them.

`python -m docs.capture [FOLDER]` reads the wheels of the registry (or unpacked ones, FOLDER/release/sglang/...)
and writes eagletrace/checkpoint/engines/capture.json, which `eagletrace check` reads. Only syntax trees are read.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from docs.releases import pip, released

METHOD = "set_eagle3_layers_to_capture"
OUT = Path(__file__).resolve().parents[1] / "eagletrace" / "checkpoint" / "engines" / "capture.json"
MODELS = "sglang/srt/models/"
DRAFTS = re.compile(r"Eagle|NextN|MTP$|Assistant")
LANGUAGE_MODELS = {
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
}
"""What a wrapper that passes the call on wraps (kimi_k25.py, mllama4.py, gemma3_mm.py)."""

Class = tuple[list[str], str | None]
"""Bases of a class, and the body of its own METHOD."""


def meaning(body: str) -> str:
    """What ids mean, by the body of METHOD; ValueError for one that is not known yet."""
    flat = re.sub(r"\s+", " ", body)
    if "language_model.set_eagle3_layers_to_capture(layer_ids)" in flat:
        return "passed_on"
    if "layer_ids[0] == 1" in flat:
        return "outputs_if_first_is_1"
    if "max(layer_ids) == num_layers" in flat:
        return "outputs_unless_max_is_depth"
    if re.search(r"layer_ids = \[2, num_layers // 2, num_layers - 3\] self", flat):
        return "outputs_and_default_too"
    if "[val + 1 for val in layer_ids]" in flat:
        return "outputs"
    if "self.model.set_eagle3_layers_to_capture(layer_ids)" in flat:
        return "unknown"
    raise ValueError(f"{METHOD} does what this script does not know: {flat}")


def read(sources: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Architecture -> meaning of ids (None: it cannot capture), from (module, text) of a release's models."""
    classes: dict[str, dict[str, Class]] = {}
    served: list[tuple[str, str]] = []
    for module, text in sources:
        for node in ast.parse(text.lstrip("\ufeff")).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, {})[module] = _class(node)
            elif isinstance(node, ast.Assign) and "EntryClass" in [ast.unparse(t) for t in node.targets]:
                served += [(module, name.id) for name in ast.walk(node.value) if isinstance(name, ast.Name)]
    found = {name: _meaning_of(module, name, classes, ()) for module, name in served if not DRAFTS.search(name)}
    return {
        name: found.get(LANGUAGE_MODELS[name]) if value == "passed_on" else value for name, value in found.items()
    }  # fmt: skip


def _class(node: ast.ClassDef) -> Class:
    own = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == METHOD), None)
    return [ast.unparse(base).split(".")[-1] for base in node.bases], ast.unparse(own) if own else None


def _meaning_of(
    module: str, name: str, classes: Mapping[str, Mapping[str, Class]], seen: tuple[str, ...]
) -> str | None:
    homes = classes.get(name, {})
    if not homes or name in seen:
        return None
    bases, body = homes.get(module) or next(iter(homes.values()))
    if body:
        return meaning(body)
    home = module if module in homes else next(iter(homes))
    return next((m for b in bases if (m := _meaning_of(home, b, classes, (*seen, name)))), None)


def of_folder(folder: Path) -> dict[str, str | None]:
    """An unpacked wheel."""
    files = sorted((folder / MODELS).glob("*.py"))
    return read((file.stem, file.read_text(encoding="utf-8")) for file in files)


def of_release(version: str) -> dict[str, str | None]:
    """A wheel of the registry, downloaded and forgotten."""
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, f"sglang=={version}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(n for n in archive.namelist() if re.fullmatch(re.escape(MODELS) + r"\w+\.py", n))
            return read((Path(n).stem, archive.read(n).decode("utf-8")) for n in names)


def main() -> None:
    """Write the file."""
    versions = released()
    unpacked = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    found = {v: of_folder(unpacked / v) if unpacked else of_release(v) for v in versions}
    names = sorted({name for release in found.values() for name in release})
    changes: dict[str, list[list[str | None]]] = {}
    for name in names:
        known = [v for v in versions if name in found[v]]
        changes[name] = [[next(iter(run)), value] for value, run in groupby(known, key=lambda v: found[v][name])]
    lines = [f"  {json.dumps(name)}: {json.dumps(runs)}" for name, runs in changes.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{OUT}: {len(names)} architectures in {len(versions)} releases")


if __name__ == "__main__":
    main()
