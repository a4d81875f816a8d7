"""The whole catalogue: serve each case, diagnose its run from outside, and compare with what is expected."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eagletrace.lab.faults import CASES, HEALTHY, Case, case, draft_folder, variant_beside
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.run import LabResult, lab_run

SCHEMA_VERSION = 1
ALL_LAYERS = {"EAGLETRACE_AUX_LAYERS": "all"}
PROOF_FIDELITY, PROOF_REGAINED = 0.98, 0.95
Progress = Callable[[str], None]


@dataclass(frozen=True)
class MatrixCase:
    """One row of the matrix; `right` judges the diagnosis, accept lengths are the engine's own, and fidelity and the
    regained accept length are those of the first cause's proof.

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
    """The control that a case's accept length is compared with: the healthy pair on the same engine and worker, or
    the control that the case names because it has the same flags and load."""
    if entry.base is not None:
        return entry.base
    if entry.engine == case(HEALTHY).engine:
        return HEALTHY
    name = f"{HEALTHY}-{entry.engine}"
    return name if entry.worker == "v1" else f"{name}-{entry.worker}"


def run_matrix(options: ServeOptions, load: LoadOptions, only: Sequence[str], progress: Progress) -> list[MatrixCase]:
    """Run the named cases (all when none is named), each with its healthy control first.

    Servers record level `tensors`, with the states of all layers of the target, unless `options` says otherwise.
    UnknownNameError for a name that is not in the catalogue. The controls needed for comparison are
    served once, and appear in the result only if they were asked for.
    """
    options = replace(options, level=options.level or "tensors", extra_env={**ALL_LAYERS, **options.extra_env})
    wanted = [case(name) for name in only] or list(CASES.values())
    healthy: dict[str, LabResult] = {}
    rows: list[MatrixCase] = []
    for number, entry in enumerate(wanted, 1):
        base = healthy_name(entry)
        if base not in healthy:
            progress(f"     {base}: serving for comparison")
            healthy[base] = lab_run(replace(options, fault=base), load)
        served = healthy[base] if entry.name == base else lab_run(replace(options, fault=entry.name), load)
        row = judge(entry, served, healthy[base], proof_draft(entry, served, options))
        rows.append(row)
        progress(f"{number:2}/{len(wanted)} {summary(row)}")
        if served.run is None:
            progress(f"      it left no run: {served.reason or 'is the tracer installed in that environment?'}")
    return rows


def proof_draft(entry: Case, served: LabResult, options: ServeOptions) -> Path:
    """The draft that `diagnose` is given: the one served, or the trainer's own where the case needs it."""
    if entry.proof_draft is None:
        return served.draft
    if options.draft is not None:
        return variant_beside(options.draft, entry.proof_draft)
    return draft_folder(options.pair_dir or shipped_pair(), entry.proof_draft)


def judge(entry: Case, served: LabResult, healthy: LabResult, draft: Path | None = None) -> MatrixCase:
    """Diagnose one run and compare: a fault's first cause must be an expected one, a control must have none.

    `draft` is given to the diagnosis; by default the one that was served.
    """
    models = (draft or served.draft, served.target)
    found = diagnose(served.run, *models) if served.run is not None else Diagnosis({}, 2)
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


def diagnose(run: Path, draft: Path, target: Path) -> Diagnosis:
    """Diagnose in a process of its own, as a user would; what it cannot read gives verdict `error`."""
    command = [sys.executable, "-m", "eagletrace.cli", "diagnose", str(run)]
    command += ["--draft", str(draft), "--target", str(target), "--json"]
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
        "| case | kind | accept length | healthy | regained | fidelity | verdict | first cause | expected | right |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = list(rows)
    for row in rows:
        cells = (
            f"`{row.name}`", row.kind, _served(row), _number(row.healthy_accept_length),
            _number(row.regained_accept_length), _number(row.fidelity, 3), row.verdict,
            _code(row.found[:1]), _code(row.expected), "yes" if row.right else "**no**",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", totals(rows)]) + "\n"


def totals(rows: Sequence[MatrixCase]) -> str:
    """One line of counts: what was named, what was proved, what stayed open."""
    faults, controls = ([row for row in rows if row.kind == kind] for kind in ("fault", "control"))
    quiet = sum(row.verdict == "healthy" and not row.found for row in controls)
    return (
        f"{sum(row.right for row in faults)} of {len(faults)} faults named first by an expected cause "
        f"({sum(proved(row) for row in faults)} with a proof), {quiet} of {len(controls)} controls without a cause; "
        f"{sum(row.verdict == 'inconclusive' for row in rows)} inconclusive, "
        f"{sum(row.verdict == 'error' for row in rows)} not diagnosed."
    )


def proved(row: MatrixCase) -> bool:
    """Whether the first cause's proof reproduces what was served and regains what the healthy pair reaches."""
    numbers = (row.fidelity, row.regained_accept_length, row.healthy_accept_length)
    if any(number is None for number in numbers):
        return False
    fidelity, regained, healthy = (number or 0.0 for number in numbers)
    return fidelity >= PROOF_FIDELITY and regained >= PROOF_REGAINED * healthy


def page(rows: Iterable[MatrixCase], pair: str) -> str:
    """The matrix as a page of the docs: faults, then controls, each in the order of the catalogue."""
    order = list(CASES)
    known = sorted(rows, key=lambda row: (row.kind != "fault", order.index(row.name) if row.name in order else 0))
    right = sum(row.right for row in known)
    return (
        "# Faults and controls on the real engine\n\n"
        f"{right} of {len(known)} cases are right. Each is served by SGLang on the CPU with {pair}, traced, and\n"
        "diagnosed from the run and the two checkpoints, which do not know its name. `accept length` is the engine's\n"
        "own figure (completion tokens / verify rounds), `healthy` that of the same engine without the change. A\n"
        "fault must be named first, by an id of `expected`; a control must be healthy. `fidelity` is the share of\n"
        "served draft tokens that a replay under the first cause reproduces, `regained` the accept length of the\n"
        f"replay without it; a proof has {PROOF_FIDELITY} or more of the first, and {PROOF_REGAINED} of the healthy\n"
        "accept length or more.\n\n"
        f"{markdown(known)}"
    )


def to_json(rows: Iterable[MatrixCase]) -> dict[str, Any]:
    """The object of `lab matrix --json`."""
    return {"schema_version": SCHEMA_VERSION, "cases": [row.public() for row in rows]}


def _served(row: MatrixCase) -> str:
    length = _number(row.accept_length)
    return (f"{length}, died" if row.accept_length else "died") if row.engine_died else length


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _code(ids: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in ids) or "none"
