"""The whole catalogue: serve each case, diagnose its run from outside, and compare with what is expected."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eagletrace.lab.faults import CASES, HEALTHY, Case, case
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run

SCHEMA_VERSION = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class MatrixCase:
    """One row of the matrix; `right` judges the diagnosis, accept lengths are the engine's own.

    `accept_length` is None when the server died before it answered anything.
    """

    name: str
    kind: str
    expected: list[str]
    found: list[str]
    verdict: str
    accept_length: float | None
    healthy_accept_length: float | None
    fidelity: float | None
    regained_accept_length: float | None
    right: bool
    engine_died: bool = False

    def public(self) -> dict[str, Any]:
        """The entry of `lab matrix --json`."""
        entry = asdict(self)
        del entry["engine_died"]
        return entry


@dataclass(frozen=True)
class Diagnosis:
    """What `eagletrace diagnose RUN --json` printed, and its exit status."""

    body: dict[str, Any]
    exit_code: int

    @property
    def verdict(self) -> str:
        """The verdict, or `error` when there was none."""
        return str(self.body.get("verdict", "error"))

    @property
    def causes(self) -> list[str]:
        """Cause ids, the best first."""
        return [str(cause["id"]) for cause in self.body.get("causes", [])]

    def proof(self, name: str) -> float | None:
        """A number of the first cause's proof; None where it has none."""
        causes: list[dict[str, Any]] = self.body.get("causes") or [{}]
        proof: dict[str, Any] = causes[0].get("proof") or {}
        value = proof.get(name)
        return float(value) if isinstance(value, int | float) else None


def healthy_name(entry: Case) -> str:
    """The control that a case's accept length is compared with: the healthy pair on the same engine and worker."""
    if entry.engine == case(HEALTHY).engine:
        return HEALTHY
    name = f"{HEALTHY}-{entry.engine}"
    return name if entry.worker == "v1" else f"{name}-{entry.worker}"


def run_matrix(options: ServeOptions, load: LoadOptions, only: Sequence[str], progress: Progress) -> list[MatrixCase]:
    """Run the named cases (all when none is named), each with its healthy control first.

    UnknownNameError for a name that is not in the catalogue. The controls needed for comparison are
    served once, and appear in the result only if they were asked for.
    """
    wanted = [case(name) for name in only] or list(CASES.values())
    healthy: dict[str, LabResult] = {}
    rows: list[MatrixCase] = []
    for number, entry in enumerate(wanted, 1):
        base = healthy_name(entry)
        if base not in healthy:
            progress(f"     {base}: serving for comparison")
            healthy[base] = lab_run(replace(options, fault=base), load)
        served = healthy[base] if entry.name == base else lab_run(replace(options, fault=entry.name), load)
        row = judge(entry, served, healthy[base])
        rows.append(row)
        progress(f"{number:2}/{len(wanted)} {summary(row)}")
        if served.run is None:
            progress(f"      it left no run: {served.reason or 'is the tracer installed in that environment?'}")
    return rows


def judge(entry: Case, served: LabResult, healthy: LabResult) -> MatrixCase:
    """Diagnose one run and compare: a fault's first cause must be an expected one, a control must have none."""
    found = diagnose(served.run) if served.run is not None else Diagnosis({}, 2)
    if entry.kind == "fault":
        right = found.exit_code == 1 and found.causes[:1] != [] and found.causes[0] in entry.expected
    else:
        right = found.exit_code == 0 and found.verdict == "healthy" and not found.causes
    return MatrixCase(
        name=entry.name,
        kind=entry.kind,
        expected=list(entry.expected),
        found=found.causes,
        verdict=found.verdict,
        accept_length=served.accept_length,
        healthy_accept_length=healthy.accept_length,
        fidelity=found.proof("reproduces_served"),
        regained_accept_length=found.proof("repaired_accept_length"),
        right=right,
        engine_died=served.engine_died,
    )


def diagnose(run: Path) -> Diagnosis:
    """Diagnose in a process of its own, as a user would; what it cannot read gives verdict `error`."""
    command = [sys.executable, "-m", "eagletrace.cli", "diagnose", str(run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return Diagnosis(dict(json.loads(done.stdout)), done.returncode)
    except ValueError:
        print(done.stderr.strip(), file=sys.stderr)
        return Diagnosis({}, done.returncode)


def summary(row: MatrixCase) -> str:
    """One line of progress."""
    mark = "right" if row.right else "WRONG"
    found = ", ".join(row.found) or "no cause"
    return f"{mark} {row.name}: accept length {_served(row)} ({_number(row.healthy_accept_length)} healthy), {found}"


def markdown(rows: Iterable[MatrixCase]) -> str:
    """The matrix as a Markdown table, for the docs."""
    lines = [
        "| case | kind | accept length | healthy | verdict | first cause | expected | right |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = (
            f"`{row.name}`", row.kind, _served(row), _number(row.healthy_accept_length), row.verdict,
            _code(row.found[:1]), _code(row.expected), "yes" if row.right else "**no**",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(rows: Iterable[MatrixCase], pair: str) -> str:
    """The matrix as a page of the docs: faults, then controls, each in the order of the catalogue."""
    order = list(CASES)
    known = sorted(rows, key=lambda row: (row.kind != "fault", order.index(row.name) if row.name in order else 0))
    right = sum(row.right for row in known)
    return (
        "# Faults and controls on the real engine\n\n"
        f"{right} of {len(known)} cases are right. Each is served by SGLang on the CPU with {pair}, traced, and "
        "diagnosed from the run alone, which\ndoes not know its name. `accept length` is the engine's own figure "
        "(completion tokens / verify rounds), `healthy` that of\nthe same engine without the change. A fault must be "
        "named first, by an id of `expected`; a control must be healthy.\n\n"
        f"{markdown(known)}"
    )


def to_json(rows: Iterable[MatrixCase]) -> dict[str, Any]:
    """The object of `lab matrix --json`."""
    return {"schema_version": SCHEMA_VERSION, "cases": [row.public() for row in rows]}


def _served(row: MatrixCase) -> str:
    length = _number(row.accept_length)
    return (f"{length}, died" if row.accept_length else "died") if row.engine_died else length


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _code(ids: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in ids) or "none"
