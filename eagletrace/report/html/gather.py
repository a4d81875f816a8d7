"""Everything that a report says of one run: the diagnosis, and what the report's own queries give."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from eagletrace.diagnose import diagnose
from eagletrace.diagnose.result import Diagnosis
from eagletrace.errors import DamagedRunError
from eagletrace.replay.result import Replay
from eagletrace.report.html.samples import SampledRequest, sample
from eagletrace.report.html.tokens import TokenNames
from eagletrace.store import Run
from eagletrace.store.folder import RunInfo
from eagletrace.store.sqlfile import SqlFile, load_folder

STEPS = 120  # of the timeline, at most
LEAST_STEPS = 10
ROUNDS_OF_A_STEP = 15  # about as many, so that a step's mean says something
MIN_STEP_NS = 1_000_000
LATER_ROUND = 16  # request rounds from this one on are taken together
MAX_ROWS = 400  # of a table of names: keys, parameters
MAX_HOOKS = 200
EVENTS_OF_A_KIND = 25

Row = dict[str, Any]


@dataclass(frozen=True)
class Timeline:
    """Accept length in steps: each row has `time` and `width` (ns), `rounds`, `accept_length`, and, counted from
    rounds, `requests` and `stderr`. `marks` are events by kind and step; `source` names the table."""

    steps: list[Row]
    marks: list[Row]
    source: str = "rounds"


@dataclass(frozen=True)
class RunReport:
    """One run as the report shows it. Rows are those of the queries of their names in `queries/report`."""

    info: RunInfo
    diagnosis: Diagnosis
    replay: Replay | None
    notes: tuple[str, ...]
    timeline: Timeline
    splits: list[Row]
    ranks: list[Row]
    events: list[Row]
    contract: list[Row]
    keys: list[Row]
    parameters: list[Row]
    hooks: list[Row]
    dropped: list[Row]
    samples: tuple[SampledRequest, ...] = ()
    names: TokenNames = field(default_factory=TokenNames)


def gather(
    run: Run, names: TokenNames | None = None, replayed: Replay | None = None, notes: tuple[str, ...] = (),
    diagnosis: Diagnosis | None = None, progress: Callable[[str], None] = lambda _: None,
) -> RunReport:  # fmt: skip
    """Read what the report shows of a run. Raises DamagedRunError as `diagnose` does.

    `names` has the tokenizer's texts; in a redacted run it is not used, with a note. `diagnosis` is made here where it
    is not given.
    """
    if diagnosis is None:
        progress("diagnosing")
        diagnosis = diagnose(run, replayed)
    try:
        return _gather(run, names, replayed, notes, diagnosis, progress)
    except (duckdb.Error, OverflowError) as error:
        raise DamagedRunError(f"{run.path} holds values that no server records: {str(error).splitlines()[0]}") from None


def _gather(
    run: Run, names: TokenNames | None, replayed: Replay | None, notes: tuple[str, ...], diagnosis: Diagnosis,
    progress: Callable[[str], None],
) -> RunReport:  # fmt: skip
    queries = load_folder("report")

    def rows(name: str, **params: Any) -> list[Row]:
        progress(queries[name].title[:1].lower() + queries[name].title[1:])
        return _rows(run, queries[name], params)

    said = list(notes)
    tokens = names or TokenNames()
    if is_redacted(run):
        if tokens.has_text:
            said.append("token ids of this run are keyed hashes (EAGLETRACE_REDACT): no tokenizer can name them")
        tokens = TokenNames(redacted=True)
    found = RunReport(
        run.info, diagnosis, replayed, (),
        timeline=_timeline(rows, diagnosis),
        splits=rows("splits", later=LATER_ROUND),
        ranks=rows("ranks"),
        events=rows("events", each=EVENTS_OF_A_KIND),
        contract=rows("contract"),
        keys=rows("keys", limit=MAX_ROWS),
        parameters=rows("parameters", limit=MAX_ROWS),
        hooks=rows("hooks", limit=MAX_HOOKS),
        dropped=rows("dropped"),
        samples=sample(run, tokens) if diagnosis.acceptance.rounds else (),
        names=tokens,
    )  # fmt: skip
    return replace(found, notes=(*run.warnings_so_far, *said))


def is_redacted(run: Run) -> bool:
    """Whether token ids are hashes: by the facts, or, before there are any, by the settings."""
    ((fact,),) = run.execute("SELECT fact('trace.redacted')")
    settings = run.info.raw.get("settings")
    return fact == "true" or (isinstance(settings, dict) and settings.get("redact") is True)


def value_of(text: str | None) -> Any:
    """The value of JSON text; the text itself where it is not JSON."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _rows(run: Run, file: SqlFile, params: dict[str, Any]) -> list[Row]:
    return run.rows(file.sql, {name: params[name] for name in file.params})


def _timeline(rows: Callable[..., list[Row]], diagnosis: Diagnosis) -> Timeline:
    """From rounds, or from the totals where the diagnosis counted those."""
    (bounds,) = rows("span")
    first, last = bounds["first"], bounds["last"]
    if diagnosis.acceptance.source == "totals" or first is None:
        steps = rows("timeline_totals", steps=STEPS)
        if not steps:
            return Timeline([], [], "totals")
        first, width = steps[0]["time"], steps[0]["width"]
        return Timeline(steps, rows("marks", first=first, width=width), "totals")
    wanted = min(STEPS, max(LEAST_STEPS, diagnosis.acceptance.rounds // ROUNDS_OF_A_STEP))
    width = round_up(max(MIN_STEP_NS, (last - first) // wanted))
    first -= first % width
    steps = [{"time": first + row["step"] * width, "width": width, **row} for row in
             rows("timeline", first=first, width=width)]  # fmt: skip
    return Timeline(steps, rows("marks", first=first, width=width))


def round_up(length: int) -> int:
    """The next length of 1, 2 or 5 times a power of ten."""
    power = 10 ** (len(str(length)) - 1)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= length)
