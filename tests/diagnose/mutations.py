"""Changes one comparison, connective, number or threshold of a check's SQL at a time, and looks for what no test sees.

    python tests/diagnose/mutations.py [NAME ...]      files of queries/checks and of the views that only checks read

A change is seen where a check's answer in some case of `outcomes.py` is not the stored one any more: then
`test_outcomes.py` is red. Everything runs in this process, each case is written and opened once. Exit status: 0 if
every change is seen or listed in `EQUIVALENT` with the reason why it cannot be; 1 otherwise.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import outcomes
from equivalent_mutants import EQUIVALENT, equivalent

from eagletrace.diagnose import checks
from eagletrace.diagnose.acceptance import measure
from eagletrace.diagnose.checks import CheckFile, CheckRunner, load_checks
from eagletrace.store import Run, open_run
from eagletrace.store.sqlfile import SqlFile, load_folder

VIEWS = (
    "split_findings", "split_verdicts", "round_split_pairs", "round_splits", "round_kinds", "late_from",
    "position_cliff", "rope_offsets", "scale_keys", "loaded_values", "input_norms", "depth_rates",
)  # fmt: skip
"""Views that only checks read."""

HELD = ("round_kinds", "round_splits", "round_split_pairs")
"""Views whose content is computed once for a diagnosis, in the order of that."""

_TOKEN = re.compile(
    r"(?P<text>'(?:[^']|'')*')|(?P<param>\$\w+)|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<operator><>|<=|>=|->>|->|\|\||[=<>])"
)
_SWAPS = {
    "=": ("<>",), "<>": ("=",), "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file: `line` is the changed line as it is then, `what` the change."""

    file: str
    sql: str
    line: str
    what: str


def mutants(file: SqlFile) -> Iterator[Mutant]:
    """Every change of a file, one at a time."""
    tokens = list(_TOKEN.finditer(file.sql))
    between = False
    for number, token in enumerate(tokens):
        kind, text = token.lastgroup, token[0]
        before = tokens[number - 1][0].upper() if number else ""
        new: Sequence[str] = ()
        if kind == "operator":
            new = _SWAPS.get(text, ())
        elif kind == "number":
            new = (f"({text} + 1)",) if before not in ("LIMIT",) else ()
        elif kind == "param":
            new = (f"({text} * 2)", *_other(file, text))
        elif kind == "word" and text.upper() in ("AND", "OR"):
            new = () if text.upper() == "AND" and between else ("OR" if text.upper() == "AND" else "AND",)
            between = False
        elif kind == "word" and text.upper() == "NOT":
            new = ("",)
        elif kind == "word" and text.upper() == "NULL" and before == "IS":
            new = ("NOT NULL",)
        between = between or text.upper() == "BETWEEN"
        for changed in new:
            sql = file.sql[: token.start()] + changed + file.sql[token.end() :]
            start = sql.rfind("\n", 0, token.start()) + 1
            line = sql[start:].split("\n", 1)[0].strip()
            yield Mutant(file.name, sql, line, f"{text} -> {changed or 'nothing'}")


def _other(file: SqlFile, text: str) -> list[str]:
    """The file's parameter whose value is the farthest from this one's."""
    own = float(file.params[text[1:]].default)
    others = [name for name in file.params if f"${name}" != text]
    return [f"${max(others, key=lambda name: abs(float(file.params[name].default) - own))}"] if others else []


class Cases:
    """All cases, opened, with what is to be answered."""

    def __init__(self, folder: Path, stack: ExitStack, *, refresh: bool = False) -> None:
        self.runs: dict[str, Run] = {}
        self.runners: dict[str, CheckRunner] = {}
        for number, (name, case) in enumerate(outcomes.CASES.items()):
            run = stack.enter_context(open_run(case.build().write(folder, f"run-{number}")))
            measure(run)
            self.runs[name], self.runners[name] = run, CheckRunner(run)
        if refresh:
            outcomes.write({name: outcomes.observe(run, outcomes.CASES[name]) for name, run in self.runs.items()})
        self._stored = outcomes.load()

    def telling(self, check: str) -> list[str]:
        """Cases in the order in which they are likely to show a change of a check."""
        asked = [name for name, case in outcomes.CASES.items() if case.asks(check)]
        return sorted(asked, key=lambda name: check not in self._stored[name] or name == outcomes.HEALTHY)

    def of_note(self, reading: Sequence[CheckFile]) -> list[str]:
        """Cases in which one of some checks has another status than in the healthy run, and that run."""
        healthy = self._stored[outcomes.HEALTHY]
        return [
            case for case, stored in self._stored.items() if case == outcomes.HEALTHY
            or any(check.id in stored and stored[check.id][0] != healthy[check.id][0] for check in reading)
        ]  # fmt: skip

    def answers(self, check: CheckFile, case: str) -> bool:
        """Whether a check says in a case what is stored."""
        answer = outcomes.answer(self.runners[case].run(check))
        return answer == outcomes.expected(self._stored, case)[check.id]


def seen_in_check(mutant: Mutant, check: CheckFile, cases: Cases) -> str | None:
    """The first case that shows the change of a check's own SQL."""
    used = set(re.findall(r"\$(\w+)", mutant.sql))
    params = {name: param for name, param in check.file.params.items() if name in used}
    changed = replace(check, file=replace(check.file, sql=mutant.sql, params=params))
    return next((case for case in cases.telling(check.id) if not cases.answers(changed, case)), None)


def seen_in_view(mutant: Mutant, file: SqlFile, reading: Sequence[CheckFile], cases: Cases) -> str | None:
    """The first case that shows the change of a view, through the checks that read it."""
    asked = {case: [c for c in reading if outcomes.CASES[case].asks(c.id)] for case in cases.of_note(reading)}
    order = dict.fromkeys(case for check in reading for case in cases.telling(check.id)[:5])
    order = [case for case in order if case in asked] + [case for case in asked if case not in order]
    return next((case for case in order if _shows(mutant, file, asked[case], case, cases)), None)


def _shows(mutant: Mutant, file: SqlFile, reading: Sequence[CheckFile], case: str, cases: Cases) -> bool:
    run = cases.runs[case]
    try:
        _create(run, file, mutant.sql)
        return not all(cases.answers(check, case) for check in reading)
    except Exception:  # noqa: BLE001 - SQL that does not run is seen
        return True
    finally:
        _create(run, file, file.sql)


def _create(run: Run, file: SqlFile, sql: str) -> None:
    kind = "MACRO main." if file.meta.get("kind") == "macro" else "VIEW main."
    run.execute(f"CREATE OR REPLACE {kind}{file.name} {'' if 'MACRO' in kind else 'AS '}{sql}")
    held = [view for view in (*HELD, *checks.HELD) if view == file.name or file.name in _words().get(view, ())]
    held = list(HELD[HELD.index(held[0]) :]) if held and held[0] in HELD else held
    for view in held:
        run.execute(f"DROP TABLE temp.main.{view}")  # `main.x` is the temporary table while there is one
    for view in held:
        run.execute(f"CREATE TEMP TABLE {view} AS SELECT * FROM main.{view}")


@cache
def _words() -> dict[str, set[str]]:
    """The words in the SQL of each view."""
    return {name: set(re.findall(r"\w+", file.sql)) for name, file in load_folder("views").items()}


def readers(view: str, files: dict[str, CheckFile]) -> list[CheckFile]:
    """Checks that read a view, also through another."""
    names, words = {view}, _words()
    while more := {name for name in VIEWS if name not in names and names & words[name]}:
        names |= more
    return [check for check in files.values() if names & set(re.findall(r"\w+", check.file.sql))]


def main(argv: Sequence[str] | None = None) -> int:
    """Try every change; print those that nothing shows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="files, without .sql; all without one")
    parser.add_argument("--refresh", action="store_true", help="store the answers of all cases first")
    options = parser.parse_args(argv)
    names = set(options.names)
    start, files, views = time.monotonic(), load_checks(), load_folder("views")
    if unknown := names - {check.file.name for check in files.values()} - set(VIEWS):
        parser.error(f"no check or view of that name: {', '.join(sorted(unknown))}")
    tried = survived = listed = 0
    used: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cases = Cases(Path(folder), stack, refresh=options.refresh)
        print(f"{len(cases.runs)} cases in {time.monotonic() - start:.0f} s", file=sys.stderr)
        todo = [(c.file, [c]) for c in files.values()] + [(views[v], readers(v, files)) for v in VIEWS]
        for file, reading in todo:
            if names and file.name not in names:
                continue
            for mutant in mutants(file):
                tried += 1
                of_view = file.name in VIEWS
                found = (
                    seen_in_view(mutant, file, reading, cases) if of_view else seen_in_check(mutant, reading[0], cases)
                )
                if found is not None:
                    continue
                if equivalent(mutant.file, mutant.line, mutant.what):
                    listed += 1
                    used.add((mutant.file, mutant.line))
                    continue
                survived += 1
                print(f"{mutant.file}: {mutant.what}: {mutant.line}", flush=True)
            print(f"{file.name} {tried} {time.monotonic() - start:.0f} s", file=sys.stderr)
    unused = [] if names else sorted(set(EQUIVALENT) - used)
    for name, line in unused:
        print(f"{name}: listed as equivalent, and not so: {line}")
    print(f"{tried} changes in {time.monotonic() - start:.0f} s: {survived} not seen, {listed} equivalent")
    return 1 if survived or unused else 0


if __name__ == "__main__":
    sys.exit(main())
