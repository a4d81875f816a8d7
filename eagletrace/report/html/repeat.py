"""How to repeat what a report shows: the commands, the recording's settings, the server's arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from eagletrace.report.html.gather import RunReport
from eagletrace.settings import VARIABLES, Settings

SECRET = re.compile(r"(^|_)(key|key_b|keys|password|secret|token|auth)$")
"""Names of server arguments that are not shown; the recorder leaves most of them out already."""


@dataclass(frozen=True)
class Origin:
    """Where a report comes from: paths as the user gave them, None where not given."""

    run: str
    draft: Path | None = None
    target: Path | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True)
class Step:
    """One command and what it does."""

    what: str
    command: str


def steps(report: RunReport, origin: Origin) -> list[Step]:
    """The commands that give the same again, and those that show more."""
    run = shlex.quote(origin.run)
    proof = "".join(f" --{name} {shlex.quote(str(path))}" for name, path in
                    (("draft", origin.draft), ("target", origin.target)) if path is not None)  # fmt: skip
    text = f" --tokenizer {shlex.quote(str(origin.tokenizer))}" if origin.tokenizer is not None else ""
    found = [
        Step("This page", f"eagletrace report {run}{proof}{text}"),
        Step("The diagnosis on the terminal; --json for scripts", f"eagletrace diagnose {run}{proof}"),
    ]
    if proof:
        found.append(Step("The replay, stage by stage", f"eagletrace replay {run}{proof}"))
    found += [Step(f"What {c.id} is, and public cases", f"eagletrace explain {c.id}") for c in report.diagnosis.causes]
    draft, target = report.diagnosis.run.draft, report.diagnosis.run.target
    if draft and target:
        files = f"{shlex.quote(draft)} --target {shlex.quote(target)}"
        found.append(Step("The checks on the checkpoints alone, without a server", f"eagletrace check {files}"))
    return [*found, Step("Record again", recording(report))]


def recording(report: RunReport) -> str:
    """The variables that the run was recorded with, before the server's command."""
    settings = _dict(report.info.raw.get("settings"))
    given, defaults = ["EAGLETRACE=1"], Settings()
    for variable in VARIABLES:
        value = settings.get(variable.field)
        if value not in (None, "", getattr(defaults, variable.field)):
            given.append(f"{variable.name}={shlex.quote(_plain(value))}")
    return " ".join([*given, "<the server's command>"])


def server_arguments(report: RunReport) -> list[tuple[str, str]]:
    """The server's arguments that were set to something, by name; values of secrets are not shown."""
    arguments = _dict(report.info.raw.get("server_args"))
    unset: tuple[Any, ...] = (None, False, "", [], {})
    return [
        (name, "(not shown)" if SECRET.search(name) else _plain(value))
        for name, value in sorted(arguments.items())
        if value not in unset
    ]


def _plain(value: Any) -> str:
    return "1" if value is True else str(value)


def _dict(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
