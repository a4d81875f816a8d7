"""What a check of files says: the objects behind `check --json` and the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagletrace.diagnose.result import EXIT_CODES, Cause, Check, Verdict


@dataclass(frozen=True)
class Repair:
    """What `--fix` did: the folder written (None: nothing to repair), what was changed, what could not be, and the
    verdict on the repaired copy."""

    folder: Path | None
    changed: tuple[str, ...]
    left: tuple[str, ...]
    verdict: Verdict | None = None

    def to_json(self) -> dict[str, Any]:
        """The object as `check --json` prints it under `repair`."""
        return {
            "folder": str(self.folder) if self.folder else None,
            "changed": list(self.changed),
            "left": list(self.left),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class FileCheck:
    """The whole answer; `engine` is the release whose rules were used, `notes` what people should know beside it."""

    draft: Path
    target: Path | None
    engine: str
    verdict: Verdict
    causes: tuple[Cause, ...] = ()
    checks: tuple[Check, ...] = ()
    why: str = ""
    next: str = ""
    notes: tuple[str, ...] = ()
    repair: Repair | None = None

    @property
    def exit_code(self) -> int:
        """Exit status of `eagletrace check`."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The object as `check --json` prints it: as a diagnosis, without acceptance."""
        run = {"id": None, "sglang": self.engine, "draft": str(self.draft),
               "target": str(self.target) if self.target else None, "engine": f"sglang=={self.engine}"}  # fmt: skip
        value: dict[str, Any] = {
            "schema_version": 1,
            "run": run,
            "verdict": self.verdict,
            "causes": [c.to_json() for c in self.causes],
            "checks": [c.to_json() for c in self.checks],
        }
        if self.notes:
            value["warnings"] = list(self.notes)
        if self.repair is not None:
            value["repair"] = self.repair.to_json()
        return value
