"""One release of SGLang, as the rules see it."""

from __future__ import annotations

import importlib.metadata
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from eagletrace.checkpoint.engines.rules import RELEASES, RULES, SERVED_AS, USE_AUX_READ_SINCE, NamingRules
from eagletrace.errors import EagletraceError

DEFAULT_LAYERS = "[2, n/2, n-3]"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


def order(version: str) -> tuple[int, ...]:
    """A sort key; EagletraceError for what is no version."""
    match = _VERSION.match(version)
    if not match:
        raise EagletraceError(f"{version!r} is no version of SGLang; give one such as {RELEASES[-1]}")
    return tuple(int(part or 0) for part in match.groups())


@dataclass(frozen=True)
class Release:
    """A release; `rules_of` is the release whose rules are used, and `note` says so where it is another one."""

    version: str
    rules_of: str
    note: str = ""

    def at_least(self, version: str) -> bool:
        """Whether it is this version or a newer one."""
        return order(self.rules_of) >= order(version)

    def rules(self, architecture: str | None) -> NamingRules | None:
        """The naming rules for a draft's architecture; None where it has none, or none that are described."""
        known = [r for r in RULES.get(architecture or "", ()) if self.at_least(r.since)]
        return known[-1] if known else None

    def served_as(self, target_architecture: str | None) -> str | None:
        """The class of the layer of multi-token prediction in a checkpoint of this architecture, if it has rules."""
        since, draft = SERVED_AS.get(target_architecture or "", ("", None))
        return draft if draft is not None and self.at_least(since) else None

    def reads_use_aux(self) -> bool:
        """Whether eagle_config.use_aux_hidden_state is read."""
        return self.at_least(USE_AUX_READ_SINCE)

    def id_meaning(self, target_architecture: str | None) -> str | None:
        """What aux layer ids mean to a target's class ("outputs", ...); "unknown", or None if it cannot capture."""
        runs = _capture().get(target_architecture or "")
        if runs is None:
            return "unknown"
        meaning: str | None = None
        for since, value in runs:
            if since is not None and self.at_least(since):
                meaning = value
        return meaning

    def captured(self, target_architecture: str | None, ids: tuple[int, ...] | None, depth: int) -> list[int]:
        """Layers whose inputs a target of `depth` layers captures for these configured ids (None: its default)."""
        meaning = self.id_meaning(target_architecture)
        if ids is None:
            default = [2, depth // 2, depth - 3]
            return [i + 1 for i in default] if meaning == "outputs_and_default_too" else default
        as_inputs = (
            (meaning == "outputs_if_first_is_1" and ids[0] != 1)
            or (meaning == "outputs_unless_max_is_depth" and max(ids) == depth)
        )  # fmt: skip
        return list(ids) if as_inputs else [i + 1 for i in ids]


def release(engine: str | None = None) -> Release:
    """The release that `--engine` names ("sglang==0.5.23" or "0.5.23"); without a name the one installed here.

    EagletraceError for another engine, or a release older than the rules.
    """
    note = ""
    if engine is None:
        version, note = _installed()
    else:
        name, _, version = engine.rpartition("==")
        if name.strip() not in ("", "sglang"):
            raise EagletraceError(f"the rules of {name.strip()} are not known; give --engine sglang=={RELEASES[-1]}")
        version = version.strip()
    if order(version) < order(RELEASES[0]):
        raise EagletraceError(f"the rules of SGLang {version} are not known; the oldest release known is {RELEASES[0]}")
    known = [r for r in RELEASES if order(r) <= order(version)]
    if known[-1] != version:
        note = f"the rules of SGLang {version} are not known; those of {known[-1]} are used"
    return Release(version, known[-1], note)


def _installed() -> tuple[str, str]:
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return RELEASES[-1], f"no --engine was given and SGLang is not installed here: {RELEASES[-1]} is assumed"
    return (version, "") if _VERSION.match(version) else (RELEASES[-1], f"SGLang {version} is taken as {RELEASES[-1]}")


@cache
def _capture() -> dict[str, list[list[str | None]]]:
    """Target architecture -> [first release, meaning of ids], made by docs/capture.py."""
    return json.loads((files("eagletrace.checkpoint.engines") / "capture.json").read_text())
