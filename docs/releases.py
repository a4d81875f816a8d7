"""`make releases`: which hook targets each release of SGLang has, read from the wheels of the registry.

Nothing is installed: a wheel is downloaded without its requirements and its syntax trees are read. What was read is
kept in docs/sglang-releases.json, so that expectations can be compared again without a download; the page made of it is
docs/sglang-releases.md. Exit status: 0, 1 if a release lacks a required target and nothing stands in for it, 2 if the
registry cannot be asked.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.version import Version

from eagletrace.errors import EagletraceError
from eagletrace.instrumentations.sglang import signatures
from eagletrace.instrumentations.sglang.signatures import Facts
from eagletrace.instrumentations.sglang.sources import Sources
from eagletrace.instrumentations.sglang.targets import TARGETS, EngineTarget

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "sglang-releases.json"
PAGE = ROOT / "docs" / "sglang-releases.md"
OLDEST = "0.5.3"
DOWNLOADS = 4
TIMEOUT_S = 300.0

Release = dict[str, Facts | None]
"""The facts of every target of one release, by the target's name."""


class RegistryError(EagletraceError):
    """The package registry gave no answer."""


# -- from the registry -------------------------------------------------------------------------------------------------


def pip(*arguments: str) -> str:
    """What pip prints; RegistryError with its last words if it fails."""
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RegistryError(f"pip {arguments[0]} gave no answer in {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["no message"]
        raise RegistryError(f"pip {arguments[0]} failed: {words[-1]}")
    return done.stdout


def released() -> list[str]:
    """Releases that the registry serves for this Python, from OLDEST on, the oldest first."""
    text = pip("index", "versions", "sglang")
    found = re.search(r"Available versions: (.*)", text)
    versions = [Version(v) for v in found[1].split(",")] if found else []
    return [str(v) for v in sorted(versions) if v >= Version(OLDEST)]


def read_wheel(wheel: Path) -> Release:
    """The facts of a downloaded wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return signatures.read_all(Sources(zipfile.Path(archive, "sglang/")))


def read_release(version: str) -> Release:
    """Download the wheel of a release, read it, and forget it."""
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder, f"sglang=={version}")
        (wheel,) = Path(folder).glob("*.whl")
        return read_wheel(wheel)


def read_releases(versions: Sequence[str]) -> dict[str, Release]:
    """Every release, some at a time."""
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        return dict(zip(versions, pool.map(read_release, versions), strict=True))


# -- what was read, on disk --------------------------------------------------------------------------------------------


def dumps(releases: Mapping[str, Release]) -> str:
    """As JSON: for each target the releases where its facts changed."""
    targets: dict[str, dict[str, Any]] = {}
    for target in TARGETS:
        runs = groupby(releases, key=lambda v: releases[v][target.name])
        changes = [{"from": next(iter(run)), **_written(facts)} for facts, run in runs]
        targets[target.name] = {**_asked(target), "runs": changes}
    return json.dumps({"schema_version": 1, "releases": list(releases), "targets": targets}, indent=1) + "\n"


def _asked(target: EngineTarget) -> dict[str, Any]:
    """What of a target decides the facts that are read."""
    return {"path": target.path, "reads": [list(place) for place in target.reads]}


def unread(text: str) -> list[str]:
    """Targets that the stored facts (as `dumps`) know nothing of, or not what is asked now."""
    stored = json.loads(text)["targets"]
    return [t.name for t in TARGETS if {k: stored.get(t.name, {}).get(k) for k in ("path", "reads")} != _asked(t)]


def _written(facts: Facts | None) -> dict[str, Any]:
    if facts is None:
        return {"present": False}
    return {"present": True, "parameters": facts.parameters and list(facts.parameters), "lacks": list(facts.lacks)}


def loads(text: str) -> dict[str, Release]:
    """The facts of every release, from `dumps`."""
    stored = json.loads(text)
    releases: dict[str, Release] = {version: {} for version in stored["releases"]}
    for name, target in stored["targets"].items():
        starts = {run["from"]: _read(run) for run in target["runs"]}
        facts: Facts | None = None
        for version, release in releases.items():
            facts = starts.get(version, facts)
            release[name] = facts
    return releases


def _read(run: Mapping[str, Any]) -> Facts | None:
    if not run["present"]:
        return None
    parameters = run["parameters"]
    return Facts(None if parameters is None else tuple(parameters), tuple(run["lacks"]))


# -- the page ----------------------------------------------------------------------------------------------------------

_HEAD = """# SGLang releases

Made by `make releases` from the wheels of the registry, which are read and not installed: every release from {oldest}
to {newest}. `eagletrace doctor` answers the same for the SGLang of one environment. No version is parsed when a server
is traced: a target that is there as its hook expects is hooked.

Traced in the lab, end to end and against the engine's own counts: 0.5.9 (both workers), 0.5.20 and 0.5.23. Served once
by hand with the same stand-ins, with no error of a hook: 0.5.8 (with a stub for `torchao`), 0.5.11 and 0.5.12 (first
worker, trees), 0.5.10.post1 (both), 0.5.12 (second) and 0.5.22. The others are read, not run.

"""
_WORKERS = """## Workers

`v1` is `EAGLEWorker`, `v2` is `EAGLEWorkerV2`; which one runs is SGLang's choice. `MultiLayerEagleWorkerV2`, with a
draft for each step, was read in 0.5.9, 0.5.20 and 0.5.23 alone and is in no table here: where it serves and is as its
hooks expect, it is traced; elsewhere log and `hooks` say that it is not. Other workers (n-gram, frozen-KV MTP, DFLASH,
DSpark, Uno) are not traced.

"""
_TARGETS = """
## Targets

*yes*: there, with the parameters and attributes that the hook relies on; *changed*: there, but not as expected (the
hook would see nothing); empty: not there. Required ones are bold; another target may stand in for one, as
[the list of targets](architecture.md#how-a-hook-works) says.

"""
_PARAMETERS = """
## Parameters

Where a target's parameters changed, without the instance; of compiled kernels, the keywords that callers give.

"""


def span(versions: Sequence[str]) -> str:
    """`first to last`, or the only one."""
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def page(releases: Mapping[str, Release]) -> str:
    """docs/sglang-releases.md."""
    from docs.generate import table

    found = {version: signatures.statuses(facts) for version, facts in releases.items()}
    groups = [list(run) for _, run in groupby(found, key=lambda v: found[v])]
    workers = [list(run) for _, run in groupby(found, key=lambda v: (signatures.families(found[v]), _losses(found[v])))]
    order = list(releases)
    parts = [
        _HEAD.format(oldest=order[0], newest=order[-1]),
        _WORKERS,
        table(("releases", "workers traced", "lost"), (
            (span(run), ", ".join(signatures.families(found[run[0]])) or "none", _losses(found[run[0]]) or "nothing")
            for run in workers
        )),
        _TARGETS,
        table(("target", *map(span, groups)), (
            (f"**{t.name}**" if t.required else t.name, *(_cell(*found[run[0]][t.name]) for run in groups))
            for t in TARGETS
        )),
        _PARAMETERS,
        table(("target", "releases", "parameters"), _parameter_rows(releases)),
    ]  # fmt: skip
    return "".join(parts)


def _losses(found: Mapping[str, tuple[str, str | None]]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in signatures.lost(found).items())


def _cell(state: str, detail: str | None) -> str:
    return {signatures.FOUND: "yes", signatures.MISSING: ""}.get(state, f"changed: {detail}")


def _parameter_rows(releases: Mapping[str, Release]) -> Iterable[tuple[str, str, str]]:
    for target in TARGETS:
        for facts, run in groupby(releases, key=lambda v: releases[v][target.name]):
            if facts is not None:
                names = "*imported*" if facts.parameters is None else ", ".join(f"`{p}`" for p in facts.parameters)
                yield target.name, span(list(run)), names


# -- the command -------------------------------------------------------------------------------------------------------


def losses(releases: Mapping[str, Release]) -> list[str]:
    """One line for each required target that a release lost."""
    return [
        f"sglang {version}: {name} is lost ({why})"
        for version, facts in releases.items()
        for name, why in signatures.lost(signatures.statuses(facts)).items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Read every release and write both files; with `--newest` only say what the newest release lost."""
    parser = argparse.ArgumentParser(prog="python -m docs.releases", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--newest", action="store_true", help="read only the newest release, write nothing")
    options = parser.parse_args(argv)
    try:
        versions = released()
        if not versions:
            raise RegistryError(f"the registry serves no sglang from {OLDEST} on for this Python")
        releases = read_releases(versions[-1:] if options.newest else versions)
    except RegistryError as error:
        print(f"eagletrace: {error}", file=sys.stderr)
        return 2
    if not options.newest:
        STORED.write_text(dumps(releases), encoding="utf-8")
        PAGE.write_text(page(releases), encoding="utf-8")
    lost = losses(releases)
    print("\n".join(lost) or f"sglang {span(list(releases))}: no required target is lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
