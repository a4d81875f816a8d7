"""A run as Prometheus metrics, in the text format 0.0.4: names, units and types by Prometheus' conventions.

Counts are sums over the run's processes of tensor-parallel rank 0, and never fall while it lasts. `METRICS` is the one
list of them; docs/exports.md is made from it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from eagletrace.diagnose.result import Diagnosis, Status, Verdict
from eagletrace.format import TABLES
from eagletrace.store.live import LiveRun

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "eagletrace_"
HOOK_STATES = ("installed", "missing", "shut_out", "never_fired", "graph_hidden", "disabled_after_errors")
Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]  # what the metric's name ends in, labels, value


@dataclass(frozen=True)
class Metric:
    """One metric: its name without the prefix, its type, and what it says."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric("run_info", "gauge", "What was served, always 1", ("run", "sglang", "draft", "target", "level", "host")),
    Metric("run_start_time_seconds", "gauge", "Start of the run since 1970 UTC"),
    Metric("run_live", "gauge", "1 while a process of the run records, else 0"),
    Metric("recording_paused", "gauge", "1 while the recording is paused, else 0"),
    Metric("last_row_timestamp_seconds", "gauge", "Time of the newest row that was read since 1970 UTC"),
    Metric("rounds_total", "counter", "Counted verify rounds of user requests"),
    Metric("drafted_tokens_total", "counter", "Drafted tokens, roots of the verify trees left out"),
    Metric("accepted_tokens_total", "counter", "Correct drafts"),
    Metric("depth_reached_rounds_total", "counter", "Rounds that reached a depth: all drafts above it were correct",
           ("depth",)),
    Metric("depth_accepted_rounds_total", "counter", "Rounds in which a draft at a depth was accepted", ("depth",)),
    Metric("correct_drafts", "histogram", "Correct drafts of a round", ("le",)),
    Metric("accept_length", "gauge", "Accept length of the whole run: 1 + accepted drafts / rounds"),
    Metric("requests_running", "gauge", "User requests that have begun and not ended"),
    Metric("requests_finished_total", "counter", "User requests that have ended", ("reason",)),
    Metric("dropped_rows_total", "counter", "Rows that were not recorded; table is empty where a reason names none",
           ("reason", "table")),
    Metric("hooks", "gauge", "Hook targets of all processes by their state", ("status",)),
    Metric("hook_calls_total", "counter", "Calls that a hook saw", ("target",)),
    Metric("hook_errors_total", "counter", "Errors of the hooks themselves, all swallowed", ("target",)),
    Metric("diagnosis_timestamp_seconds", "gauge", "Time of the diagnosis below since 1970 UTC"),
    Metric("engine_accept_length", "gauge", "Accept length as the engine counts it, over finished requests"),
    Metric("verdict", "gauge", "1 for the verdict of the diagnosis, 0 for the others", ("verdict",)),
    Metric("check", "gauge", "1 for the status of a check, 0 for the others", ("check", "status")),
    Metric("cause_confidence_ratio", "gauge", "Confidence of a cause that was found", ("cause", "severity")),
)  # fmt: skip


@dataclass
class _Samples:
    """Samples by the name of their metric."""

    found: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict[str, list[Sample]](list))

    def add(self, name: str, value: float | None, ends: str = "", **labels: str | None) -> None:
        """A sample; a value of None is not known, and is left out."""
        if value is not None:
            self.found[name].append((ends, {k: v or "" for k, v in labels.items()}, value))


def metrics_text(run: LiveRun, diagnosis: Diagnosis | None = None, diagnosed_at: float | None = None) -> str:
    """The metrics of a run as read so far, and of its newest diagnosis if there is one (made at `diagnosed_at`)."""
    samples = _Samples()
    _of_run(samples, run, diagnosis)
    _of_counts(samples, run)
    _of_recording(samples, run)
    if diagnosis is not None:
        samples.add("diagnosis_timestamp_seconds", diagnosed_at)
        _of_diagnosis(samples, diagnosis)
    return "".join(_render(samples.found))


def _of_run(samples: _Samples, run: LiveRun, diagnosis: Diagnosis | None) -> None:
    info, raw = run.info, run.info.raw
    draft, target = raw.get("draft"), raw.get("target")
    if diagnosis is not None:
        draft, target = diagnosis.run.draft or draft, diagnosis.run.target or target
    samples.add(
        "run_info", 1, run=info.id, sglang=info.sglang, draft=str(draft or ""), target=str(target or ""),
        level=run.level, host=info.host,
    )  # fmt: skip
    samples.add("run_start_time_seconds", info.start_time_unix_nano / 1e9)
    samples.add("run_live", float(run.state == "live"))
    samples.add("recording_paused", float(run.paused))
    samples.add("last_row_timestamp_seconds", run.latest / 1e9 if run.latest else None)


def _of_counts(samples: _Samples, run: LiveRun) -> None:
    counts = run.counts
    samples.add("rounds_total", counts.rounds)
    samples.add("drafted_tokens_total", counts.drafted)
    samples.add("accepted_tokens_total", counts.accepted)
    for name, values in (("depth_reached_rounds_total", counts.reached),
                         ("depth_accepted_rounds_total", counts.accepted_at)):  # fmt: skip
        for depth, value in enumerate(values, 1):
            samples.add(name, value, depth=str(depth))
    below = 0
    for correct, rounds in enumerate(counts.histogram):
        below += rounds
        samples.add("correct_drafts", below, "_bucket", le=str(correct))
    samples.add("correct_drafts", below, "_bucket", le="+Inf")
    samples.add("correct_drafts", counts.accepted, "_sum")
    samples.add("correct_drafts", below, "_count")
    samples.add("accept_length", counts.accept_length)


def _of_recording(samples: _Samples, run: LiveRun) -> None:
    samples.add("requests_running", len(run.running) if run.state == "live" else 0)
    for reason, count in sorted(run.finished.items()):
        samples.add("requests_finished_total", count, reason=reason)
    for reason, count in sorted(run.dropped.items()):
        words, _, table = reason.rpartition(": ")
        known = table in TABLES
        samples.add("dropped_rows_total", count, reason=words if known else reason, table=table if known else "")
    states = Counter(str(hook["status"]) for hook in run.hooks.values())
    for state in (*HOOK_STATES, *sorted(states.keys() - set(HOOK_STATES))):
        samples.add("hooks", states[state], status=state)
    calls, errors = Counter[str](), Counter[str]()
    for hook in run.hooks.values():
        calls[str(hook["target"])] += hook["calls"] or 0
        errors[str(hook["target"])] += hook["errors"] or 0
    for target in sorted(calls):
        samples.add("hook_calls_total", calls[target], target=target)
        samples.add("hook_errors_total", errors[target], target=target)


def _of_diagnosis(samples: _Samples, diagnosis: Diagnosis) -> None:
    samples.add("engine_accept_length", diagnosis.acceptance.engine_reported_accept_length)
    for verdict in get_args(Verdict):
        samples.add("verdict", float(verdict == diagnosis.verdict), verdict=verdict)
    for check in diagnosis.checks:
        for status in get_args(Status):
            samples.add("check", float(status == check.status), check=check.id, status=status)
    for cause in diagnosis.causes:
        samples.add("cause_confidence_ratio", cause.confidence, cause=cause.id, severity=cause.severity)


# -- the text format ------------------------------------------------------------------------------


def _render(found: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    for metric in METRICS:
        if metric.name in found:
            name = PREFIX + metric.name
            yield f"# HELP {name} {_escape(metric.help)}\n# TYPE {name} {metric.type}\n"
            for ends, labels, value in found[metric.name]:
                shown = ",".join(f'{k}="{_escape(v, quote=True)}"' for k, v in labels.items())
                yield f"{name}{ends}{{{shown}}} {_number(value)}\n" if shown else f"{name}{ends} {_number(value)}\n"


def _escape(text: str, *, quote: bool = False) -> str:
    """Backslash and line feed, and in a label's value the quotation mark; what is no valid Unicode is replaced."""
    text = text.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value):
        return str(int(value))
    return repr(float(value)).replace("inf", "+Inf").replace("-+Inf", "-Inf").replace("nan", "NaN")
