"""Runs the checks of `queries/checks`: one SQL file each, rows `status, subject, reason, evidence`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import duckdb

from eagletrace.diagnose import policy
from eagletrace.diagnose.result import Check, Evidence, Severity, Status
from eagletrace.format.facts import CONTRACT_KEYS
from eagletrace.store import Run
from eagletrace.store.sqlfile import SqlFile, load_folder

Certainty = Literal["sure", "possible", "symptom", "harmless"]
"""What an alarm says of harm. sure: such a fact costs acceptance or kills the engine; possible: it often costs
nothing; symptom: something is wrong, not what; harmless: worth knowing, never a cause."""

FACT_PREFIX = "contract:"
REASONS_SHOWN = 3
ROWS_KEPT = 20
_WORST: tuple[Status, ...] = ("alarm", "unknown", "ok", "not_applicable")

HOW_TO_RECORD = {
    "params": "trace the start of the server (EAGLETRACE=1), where the draft is loaded",
    "checkpoint_keys": "trace the start of the server (EAGLETRACE=1), where the draft is loaded",
    "contract": "trace the start of the server (EAGLETRACE=1)",
    "hooks": "trace the start of the server (EAGLETRACE=1)",
    "requests": "send requests to the traced server",
    "rounds": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens",
    "drafts": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens",
    "verifies": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens",
    "position_stats": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens",
    "first_draft_tokens": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens",
    "first_draft_entropy": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens",
    "hidden": "send requests to the traced server, with EAGLETRACE_LEVEL=tokens and a smaller EAGLETRACE_HIDDEN_EVERY",
}


@dataclass(frozen=True)
class CheckFile:
    """A check as its file declares it.

    `fix` is the remedy for what this check finds, where the cause has several; `rank` orders the checks of one cause,
    the more telling one first. `not_for` are a family of drafts (`draft.family`) that it does not apply to, and why.
    """

    id: str
    file: SqlFile
    severity: Severity
    certainty: Certainty
    requires: tuple[str, ...]
    causes: tuple[str, ...]
    fix: str = ""
    rank: int = 5
    not_for: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, file: SqlFile) -> CheckFile:
        """The check that a file of `queries/checks` declares."""
        return cls(
            id=file.meta["id"],
            file=file,
            severity=cast("Severity", file.meta["severity"]),
            certainty=cast("Certainty", file.meta["certainty"]),
            requires=tuple(file.words("requires")),
            causes=tuple(file.words("causes")),
            fix=file.meta.get("fix", ""),
            rank=int(file.meta.get("rank", "5")),
            not_for=_pair(file.meta.get("not_for", "")),
        )

    def check(self, status: Status, reason: str, rows: Sequence[dict[str, Any]] = ()) -> Check:
        """An outcome of this check; `rows` are its evidence."""
        evidence = (Evidence(self.file.name, reason, tuple(rows[:ROWS_KEPT])),) if rows else ()
        return Check(self.id, status, reason, self.file.title, self.causes, evidence)


def _pair(text: str) -> tuple[str, str]:
    family, _, reason = text.partition(": ")
    return family, reason


def load_checks() -> dict[str, CheckFile]:
    """All checks by id, in the order of their file names."""
    return {check.id: check for check in map(CheckFile.of, load_folder("checks").values())}


HELD = (
    "contract", "params", "checkpoint_keys", "events", "draft_params", "dropped_keys", "aux_layers",
    "draft_counts", "first_draft_entropy", "dropped_rows", "rope_offsets",
)  # fmt: skip
"""Small views that most checks read: computed once, into temporary tables that hide the views."""


class CheckRunner:
    """Runs checks on one run; remembers which tables are empty and which facts were recorded."""

    def __init__(self, run: Run, *, verdicts: bool | None = None) -> None:
        """`verdicts`: whether the run has any, where that is known; to look costs a scan."""
        self._run = run
        for view in HELD:
            run.execute(f"CREATE OR REPLACE TEMP TABLE {view} AS SELECT * FROM main.{view}")
        self._facts = {str(row[0]) for row in run.execute("SELECT key FROM contract")}
        self._family = next((str(row[0]) for row in run.execute("SELECT fact('draft.family')") if row[0]), None)
        self._filled: dict[str, bool] = {} if verdicts is None else {"verifies": verdicts}

    def run(self, check: CheckFile) -> Check:
        """The outcome of one check: `unknown` with what to record when something that it requires is not there."""
        family, why = check.not_for
        if self._family is not None and self._family == family:
            return check.check("not_applicable", why)
        missing = [r for r in check.requires if not self._recorded(r)]
        if missing:
            return check.check("unknown", _missing(missing))
        values = {name: policy.SQL_PARAMS[name] for name in check.file.params}
        try:
            rows = self._run.rows(check.file.sql, values or None)
            return _outcome(check, rows)
        except (duckdb.Error, ValueError, TypeError) as error:
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            return check.check("unknown", f"the run holds values that this check cannot read ({what})")

    def _recorded(self, requirement: str) -> bool:
        if requirement.startswith(FACT_PREFIX):
            return requirement.removeprefix(FACT_PREFIX) in self._facts
        if requirement not in self._filled:
            counted = "draft_counts" if requirement == "drafts" else requirement
            self._filled[requirement] = bool(self._run.execute(f"SELECT 1 FROM {counted} LIMIT 1"))
        return self._filled[requirement]


def _missing(requirements: Sequence[str]) -> str:
    facts = [r.removeprefix(FACT_PREFIX) for r in requirements if r.startswith(FACT_PREFIX)]
    tables = [r for r in requirements if not r.startswith(FACT_PREFIX)]
    parts = [f"no rows of {name}: {HOW_TO_RECORD.get(name, 'record them')}" for name in tables]
    if facts:
        how = "send a request to the traced server" if all(f.startswith("forward.") for f in facts) else (
            HOW_TO_RECORD["contract"])  # fmt: skip
        parts.append("not recorded: " + ", ".join(f"{f} ({CONTRACT_KEYS[f]})" for f in facts) + f": {how}")
    return "; ".join(parts)


def _outcome(check: CheckFile, rows: Sequence[Mapping[str, Any]]) -> Check:
    if not rows:
        return check.check("not_applicable", "nothing to check")
    status: Status = next(s for s in _WORST if any(row["status"] == s for row in rows))
    decisive = [row for row in rows if row["status"] == status]
    reasons = [str(row["reason"]) for row in decisive]
    reason = "; ".join(reasons[:REASONS_SHOWN])
    if len(reasons) > REASONS_SHOWN:
        reason += f"; and {len(reasons) - REASONS_SHOWN} more"
    return check.check(status, reason, [_evidence_row(row) for row in decisive])


def _evidence_row(row: Mapping[str, Any]) -> dict[str, Any]:
    evidence: Any = json.loads(row["evidence"]) if row["evidence"] else {}
    return {"subject": row["subject"], **cast("dict[str, Any]", evidence)}


def downgrade(check: Check, why: str) -> Check:
    """The same finding, with why it is no cause."""
    return replace(check, reason=f"{check.reason} ({why})")
