"""What every check says of every run that the tests know: the runs, and how to ask.

`outcomes.json` beside this file holds the answers. They are compared word for word, so that a changed comparison,
number or connective in a check's SQL shows in at least one of them; `mutations.py` shows that it does. After a wanted
change: `python tests/diagnose/outcomes.py`, and read the difference.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from boundary_cases import BOUNDARIES
from cases import CONTROLS, FAULTS
from runtime_cases import RUNTIME_FAULTS, varied
from synthetic import Synthetic

from eagletrace.diagnose import Check
from eagletrace.diagnose.acceptance import measure
from eagletrace.diagnose.checks import CheckRunner, load_checks
from eagletrace.store import Run, open_run

STORED = Path(__file__).with_name("outcomes.json")
HEALTHY = "healthy"


@dataclass(frozen=True)
class Case:
    """A run, and the checks that are asked of it: all, or those whose ids begin like one of the words."""

    build: Callable[[], Synthetic]
    about: str = ""

    def asks(self, check_id: str) -> bool:
        """Whether a check is asked."""
        return not self.about or check_id.startswith(tuple(self.about.split()))


_WHOLE = {**FAULTS, **CONTROLS, **RUNTIME_FAULTS}
CASES: dict[str, Case] = {
    HEALTHY: Case(Synthetic),
    "every kind of round": Case(varied),
    **{name: Case(build) for name, (build, _) in _WHOLE.items() if name != HEALTHY},
    **{name: Case(build, about) for about, cases in BOUNDARIES.items() for name, build in cases.items()},
}
Outcomes = dict[str, list[str]]  # by check: status, reason, and a digest of the evidence


def answer(check: Check) -> list[str]:
    """What is compared of a check's outcome. Floating numbers of the evidence count to six digits."""
    rows = [row for evidence in check.evidence for row in evidence.rows]
    text = json.dumps(rows, sort_keys=True, default=str)
    text = re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.6g}", text)
    return [check.status, check.reason, hashlib.sha256(text.encode()).hexdigest()[:8]]


def observe(run: Run, case: Case) -> Outcomes:
    """What the checks say of a run."""
    measure(run)
    runner = CheckRunner(run)
    return {check.id: answer(runner.run(check)) for check in load_checks().values() if case.asks(check.id)}


def expected(stored: Mapping[str, Outcomes], case: str) -> Outcomes:
    """The stored answers of a case: those of the healthy run, and what is stored to be different."""
    answers = {**stored[HEALTHY], **stored[case]}
    return {id: answer for id, answer in answers.items() if CASES[case].asks(id)}


def load() -> dict[str, Outcomes]:
    """The stored answers: all of the healthy run, of the others what differs from it."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def write(found: Mapping[str, Outcomes]) -> None:
    """Store the answers of all cases."""
    healthy = found[HEALTHY]
    kept = {
        case: {id: answer for id, answer in answers.items() if case == HEALTHY or answer != healthy[id]}
        for case, answers in found.items()
    }
    STORED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Ask all checks of all cases, and store the answers."""
    found: dict[str, Outcomes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, case) in enumerate(CASES.items()):
            with open_run(case.build().write(Path(folder), f"run-{number}")) as run:
                found[name] = observe(run, case)
    write(found)


if __name__ == "__main__":
    main()
