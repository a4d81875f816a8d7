"""The confusion table of the lab's cases: what was served, what was found, and from how many rounds on it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eagletrace.lab.faults import CASES

SCHEMA_VERSION = 1
PROOF_FIDELITY, PROOF_REGAINED = 0.98, 0.95


@dataclass(frozen=True)
class MatrixCase:
    """One row of the matrix; `right` judges the diagnosis, accept lengths are the engine's own, and fidelity and the
    regained accept length are those of the first cause's proof. `rounds` is how many were asked for.

    `accept_length` is None when the server died before it answered anything. `acted` is False where a fault's requests
    were answered with the same tokens in the same rounds as without it: there is nothing to be found yet. `diff` is the
    verdict of a diff of the healthy run and this one (None: none was made), with a replay of both if `diff_replayed`;
    `diff_names` are the causes that a fault gained, and of a control the first facts that say what is drafted.
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
    rounds: int
    engine_died: bool = False
    acted: bool = True
    diff: str | None = None
    diff_names: list[str] = field(default_factory=list[str])
    diff_replayed: bool = False

    @property
    def dormant(self) -> bool:
        """Whether the fault has not acted yet, and nothing was said of it."""
        return not self.right and not self.acted and self.verdict == "healthy" and not self.found

    @property
    def open(self) -> bool:
        """Whether the diagnosis said that the run shows too little to say."""
        return not self.right and self.verdict == "inconclusive" and not self.found

    @property
    def diff_names_expected(self) -> bool:
        """Whether the diff names an expected cause."""
        return bool(set(self.diff_names) & set(self.expected))

    def public(self) -> dict[str, Any]:
        """The entry of `lab matrix --json`."""
        entry = asdict(self)
        del entry["engine_died"], entry["acted"]
        verdict, names, replayed = (entry.pop(name) for name in ("diff", "diff_names", "diff_replayed"))
        found = {"verdict": verdict, "names": names, "replayed": replayed}
        return {**entry, "diff": found if verdict is not None else None}


def summary(row: MatrixCase) -> str:
    """One line of progress."""
    mark = "right" if row.right else "open " if row.open else "idle " if row.dormant else "WRONG"
    found = ", ".join(row.found) or row.verdict
    return (
        f"{mark} {row.name}, {row.rounds} rounds: accept length {_served(row)} "
        f"({_number(row.healthy_accept_length)} healthy), {found}"
    )


def markdown(rows: Iterable[MatrixCase]) -> str:
    """The matrix as a Markdown table, for the docs."""
    lines = [
        "| case | kind | accept length | healthy | regained | fidelity | verdict | first cause | expected | right "
        "| diff |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = list(rows)
    for row in rows:
        cells = (
            f"`{row.name}`", row.kind, _served(row), _number(row.healthy_accept_length),
            _number(row.regained_accept_length), _number(row.fidelity, 3), row.verdict,
            _code(row.found[:1]), _code(row.expected), "yes" if row.right else _said(row),
            _diff(row),
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


def _diff(row: MatrixCase) -> str:
    """What the diff says: of a fault whether it names an expected cause, of a control its verdict and facts."""
    if row.diff is None:
        return "-"
    if row.kind == "control":
        return f"{row.diff}: {_code(row.diff_names)}" if row.diff_names else row.diff
    if not row.diff_names_expected:
        return f"**{row.diff}: {_code(row.diff_names)}**"
    return "named, by replay" if row.diff_replayed else "named"


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
    counts = sorted({row.rounds for row in known})
    most = [row for row in known if row.rounds == counts[-1]]
    right = sum(row.right for row in most)
    return (
        "# Faults and controls on the real engine\n\n"
        f"{right} of {len(most)} cases are right. Each is served by SGLang on the CPU with {pair}, traced, and\n"
        "diagnosed from the run and the two checkpoints, which do not know its name. `accept length` is the engine's\n"
        "own figure (completion tokens / verify rounds), `healthy` that of the same requests without the change. A\n"
        "fault must be named first, by an id of `expected`; a control must be healthy. `fidelity` is the share of\n"
        "served draft tokens that a replay under the first cause reproduces, `regained` the accept length of the\n"
        f"replay without it; a proof has {PROOF_FIDELITY} or more of the first, and {PROOF_REGAINED} of the healthy\n"
        "accept length or more. `diff` is what `eagletrace diff` of the healthy run and this one says: of a fault\n"
        "whether an expected cause is gained (`by replay`: with `--draft` and `--target`), of a control its verdict\n"
        "and the first facts that say what is drafted (controls of another load are sent other requests, and those\n"
        f"alone change the accept length). {counts[-1]:,} rounds or a little more were served of each.\n\n"
        f"{markdown(most)}{_without_proof(most)}{_fewer(known, counts) if len(counts) > 1 else ''}"
    )


def _without_proof(rows: Sequence[MatrixCase]) -> str:
    """The faults without a proof, and why there can be none where there can be none."""
    faults = [row for row in rows if row.kind == "fault"]
    missing = [row for row in faults if not proved(row)]
    if not missing:
        return ""
    why = {row.name: CASES[row.name].unproved if row.name in CASES else "" for row in missing}
    due = len(faults) - sum(map(bool, why.values()))
    lines = [
        f"\n{len(faults) - len(missing)} of the {due} faults that can have a proof have one. The others:\n",
        "| case | fidelity | regained | why |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in missing:
        cells = (
            f"`{row.name}`", _number(row.fidelity, 3), _number(row.regained_accept_length),
            why[row.name] or "**one should be there**",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _fewer(rows: Sequence[MatrixCase], counts: Sequence[int]) -> str:
    """From how many rounds on a case is right: totals, and the cases that are not right from the start."""
    by_case: dict[str, dict[int, MatrixCase]] = {}
    for row in rows:
        by_case.setdefault(row.name, {})[row.rounds] = row
    lines = [
        "\n## With fewer rounds\n",
        "The same runs, each as it was after so many rounds (a case that changes weights half-way is served anew).",
        "`open` is the verdict `inconclusive`: too few rounds to say. `not yet`: the fault has not acted, as every",
        "request was answered with the same tokens in the same rounds as without it, and the verdict is `healthy`.\n",
        "| rounds | right | open | not yet | wrong | of these, controls | faults with a proof |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for count in counts:
        of_count = [row for row in rows if row.rounds == count]
        wrong = [row for row in of_count if not (row.right or row.open or row.dormant)]
        cells = (
            f"{count:,}", sum(row.right for row in of_count), sum(row.open for row in of_count),
            sum(row.dormant for row in of_count), len(wrong), sum(row.kind == "control" for row in wrong),
            sum(proved(row) for row in of_count if row.kind == "fault" and row.right),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    late = {name: found for name, found in by_case.items() if not all(row.right for row in found.values())}
    if late:
        lines += ["", "Cases that are not right at every number:", ""]
        lines += [f"| case | {' | '.join(f'{count:,}' for count in counts)} |", "| --- " * (len(counts) + 1) + "|"]
        for name, found in late.items():
            lines.append(f"| `{name}` | {' | '.join(_said(found[count]) for count in counts)} |")
    return "\n".join(lines) + "\n"


def _said(row: MatrixCase) -> str:
    if row.right:
        return "right"
    if row.dormant:
        return "not yet"
    return "open" if row.open else f"**{_code(row.found[:1]) if row.found else row.verdict}**"


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
