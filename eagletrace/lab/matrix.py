"""The whole catalogue: serve each case, diagnose its run from outside, and compare with what is expected."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from eagletrace.errors import EagletraceError
from eagletrace.lab.confusion import MatrixCase, summary
from eagletrace.lab.faults import CASES, HEALTHY, HEALTHY_OF, Case, case, draft_folder, variant_beside
from eagletrace.lab.load import Answer, LoadOptions, accept_length
from eagletrace.lab.options import DEFAULT_DIR, ServeOptions
from eagletrace.lab.pair import PAIRS, shipped_pair
from eagletrace.lab.run import LabResult, lab_run_at

KEPT = "matrix.jsonl"
ALL_LAYERS = {"EAGLETRACE_AUX_LAYERS": "all"}
Progress = Callable[[str], None]
FACTS_KEPT = 3
T = TypeVar("T")
R = TypeVar("R")


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
        return HEALTHY_OF[entry.pair]
    name = f"{HEALTHY}-{entry.engine}"
    return name if entry.worker == "v1" else f"{name}-{entry.worker}"


def compared_with(entry: Case) -> str:
    """The control whose run a diff compares the case's with: the same, or of a control that is its own the pair's."""
    return HEALTHY_OF[entry.pair] if healthy_name(entry) == entry.name else healthy_name(entry)


def run_matrix(
    options: ServeOptions,
    load: LoadOptions,
    only: Sequence[str],
    progress: Progress,
    rounds: Sequence[int] = (),
    jobs: int = 1,
    resume: bool = False,
) -> list[MatrixCase]:
    """Run the named cases, `jobs` at once, each judged after every number of `rounds`.

    When none is named, all of `options.pair`; without a pair all there are, or with `options.pair_dir` those of llama.

    Servers record level `tensors`, with the states of all layers of the target, unless `options` says otherwise.
    UnknownNameError for a name that is not in the catalogue. The controls needed for comparison are
    served once, first, and appear in the result only if they were asked for. Rows come in the order of the catalogue,
    those of one case by rounds. Each case that is done is kept in `matrix.jsonl` of the folder; with `resume` those
    that are there with all of `rounds` are not served again.
    """
    options = replace(options, level=options.level or "tensors", extra_env={**ALL_LAYERS, **options.extra_env})
    rounds = sorted(set(rounds or [load.rounds]))
    pair = options.pair or (PAIRS[0] if options.pair_dir else None)
    wanted = [case(name) for name in only] or [entry for entry in CASES.values() if pair in (None, entry.pair)]
    folders: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    for job in range(jobs):
        folders.put(options.dir and (options.dir / f"job-{job}" if jobs > 1 else options.dir))

    def serve(entry: Case) -> dict[int, LabResult]:
        folder = folders.get()
        try:
            return lab_run_at(replace(options, fault=entry.name, pair=None, dir=folder), load, rounds)
        finally:
            folders.put(folder)

    def compare(entry: Case) -> dict[int, LabResult]:
        progress(f"      {entry.name}: serving for comparison")
        return serve(entry)

    kept = Kept((options.dir or DEFAULT_DIR) / KEPT, rounds)
    done = kept.read() if resume else {}
    if resume:
        progress(f"      {sum(entry.name in done for entry in wanted)} of {len(wanted)} cases are in {kept.path}")
    todo = [entry for entry in wanted if entry.name not in done]
    bases = {name: case(name) for entry in todo for name in (healthy_name(entry), compared_with(entry))}
    healthy = dict(zip(bases, in_threads(compare, bases.values(), jobs), strict=True))

    def rows_of(entry: Case) -> list[MatrixCase]:
        base = healthy_name(entry)
        served = healthy[base] if entry.name == base else serve(entry)
        found = [
            judge(entry, served[number], healthy[base][number], proof_draft(entry, served[number], options), number)
            for number in rounds
        ]
        if (beside := compared_with(entry)) != entry.name:
            last, other = served[rounds[-1]], healthy[beside][rounds[-1]]
            found[-1] = compared(entry, found[-1], last, other, proof_draft(entry, last, options))
        for row in found:
            progress(summary(row))
        if served[rounds[-1]].run is None:
            reason = served[rounds[-1]].reason or "is the tracer installed in that environment?"
            progress(f"      it left no run: {reason}")
        kept.add(found)
        return found

    if not resume:
        kept.path.unlink(missing_ok=True)
    done |= {entry.name: found for entry, found in zip(todo, in_threads(rows_of, todo, jobs), strict=True)}
    return [row for entry in wanted for row in done[entry.name]]


class Kept:
    """Rows of cases that are done, a line of JSON for each case: a run over all takes an hour and may be cut off."""

    def __init__(self, path: Path, rounds: Sequence[int]) -> None:
        self.path, self.rounds = path, list(rounds)
        self._lock = threading.Lock()

    def read(self) -> dict[str, list[MatrixCase]]:
        """By name, those with these numbers of rounds; the last of a name counts."""
        if not self.path.exists():
            return {}
        try:
            rows = [[MatrixCase(**row) for row in json.loads(line)] for line in self.path.read_text().splitlines()]
        except (ValueError, TypeError) as error:
            raise EagletraceError(
                f"{self.path} holds no cases of this release ({error}); leave --resume out"
            ) from error
        return {found[0].name: found for found in rows if [row.rounds for row in found] == self.rounds}

    def add(self, found: Sequence[MatrixCase]) -> None:
        """Append the rows of a case."""
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps([asdict(row) for row in found]) + "\n")


def in_threads(work: Callable[[T], R], items: Iterable[T], jobs: int) -> list[R]:
    """Results in order, from threads that do not keep this process alive when it is told to end."""
    tasks: list[Future[R]] = []
    waiting: queue.SimpleQueue[tuple[Future[R], T]] = queue.SimpleQueue()

    def take() -> None:
        while True:
            task, item = waiting.get()
            try:
                task.set_result(work(item))
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                task.set_exception(error)

    for item in items:
        tasks.append(Future())
        waiting.put((tasks[-1], item))
    for _job in range(jobs):
        threading.Thread(target=take, daemon=True).start()
    return [task.result() for task in tasks]


def proof_draft(entry: Case, served: LabResult, options: ServeOptions) -> Path:
    """The draft that `diagnose` is given: the one served, or the trainer's own where the case needs it."""
    if entry.proof_draft is None:
        return served.draft
    if options.draft is not None:
        return variant_beside(options.draft, entry.proof_draft)
    return draft_folder(options.pair_dir or shipped_pair(entry.pair), entry.proof_draft)


def judge(
    entry: Case, served: LabResult, healthy: LabResult, draft: Path | None = None, rounds: int | None = None
) -> MatrixCase:
    """Diagnose one run and compare: a fault's first cause must be an expected one, a control must have none.

    The healthy accept length is that of as many requests of the healthy run, which are the same ones: a draft that is
    accepted less needs fewer for as many rounds. A fault has acted once one of them was answered otherwise.
    `draft` is given to the diagnosis; by default the one that was served. `rounds` were asked for.
    """
    models = (draft or served.draft, served.target)
    found = diagnose(served.run, *models) if served.run is not None else Diagnosis({}, 2)
    if entry.kind == "fault":
        right = found.exit_code == 1 and found.causes[:1] != [] and found.causes[0] in entry.expected
    else:
        right = found.exit_code == 0 and found.verdict == "healthy" and not found.causes
    of_same_requests = healthy.answers[: len(served.answers)]
    return MatrixCase(
        name=entry.name,
        kind=entry.kind,
        expected=list(entry.expected),
        found=found.causes,
        verdict=found.verdict,
        accept_length=served.accept_length,
        healthy_accept_length=accept_length(of_same_requests) or healthy.accept_length,
        fidelity=found.proof("reproduces_served"),
        regained_accept_length=found.proof("repaired_accept_length"),
        right=right,
        rounds=served.rounds if rounds is None else rounds,
        engine_died=served.engine_died,
        acted=served.engine_died or _course(served.answers) != _course(of_same_requests),
    )


def compared(entry: Case, row: MatrixCase, served: LabResult, other: LabResult, draft: Path) -> MatrixCase:
    """The row with what a diff of another run and this one names: of a fault causes, of a control facts.

    Both runs are replayed only where the diff of what was recorded gains no cause that a fault is expected to have.
    `draft` is what the diagnosis was given.
    """
    if served.run is None or other.run is None:
        return row
    paths = ("--draft", other.draft, "--target", other.target, "--draft", draft, "--target", served.target)
    for models in ((), paths) if entry.kind == "fault" else ((),):
        body = eagletrace("diff", other.run, served.run, *models)[0]
        if entry.kind == "fault":
            names = list(map(str, body.get("causes", {}).get("gained", [])))
        else:
            facts = [str(fact["key"]) for fact in body.get("contract", []) if fact["importance"] == "decisive"]
            names = facts[:FACTS_KEPT]
        row = replace(row, diff=str(body.get("verdict", "error")), diff_names=names, diff_replayed=bool(models))
        if row.diff_names_expected:
            break
    return row


def _course(answers: Sequence[Answer]) -> list[tuple[list[int], int]]:
    """Tokens and rounds of each request."""
    return [(answer.output_ids, answer.rounds) for answer in answers]


def diagnose(run: Path, draft: Path, target: Path) -> Diagnosis:
    """Diagnose in a process of its own, as a user would; what it cannot read gives verdict `error`."""
    return Diagnosis(*eagletrace("diagnose", run, "--draft", draft, "--target", target))


def eagletrace(*command: str | Path) -> tuple[dict[str, Any], int]:
    """The object that a command prints with `--json`, and its exit status; an empty one and a message on stderr where
    it prints none."""
    line = [sys.executable, "-m", "eagletrace.cli", *map(str, command), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout)), done.returncode
    except ValueError:
        print(done.stderr.strip(), file=sys.stderr)
        return {}, done.returncode
