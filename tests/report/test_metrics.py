"""Prometheus metrics, parsed by Prometheus' own client: names, types, values, and a port while a run is written."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.diagnose import diagnose
from eagletrace.diagnose.result import Acceptance, Cause, Check, Diagnosis, RunInfo
from eagletrace.record.writer import TraceWriter
from eagletrace.report.metrics import METRICS, metrics_text
from eagletrace.store.live import LiveRun
from tests.cli.commands import environ
from tests.store.runs import make_folder, request, small_run, writer

parser = pytest.importorskip("prometheus_client.parser")
DEAD = 2**22 + 1  # no process has this id


def parsed(text: str) -> dict[str, Any]:
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parsed(text).values() for s in f.samples}


def of(path: Path, diagnosis: Diagnosis | None = None) -> str:
    live = LiveRun(path, with_phases=False)
    live.poll()
    return metrics_text(live, diagnosis, 12.5 if diagnosis else None)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "eagletrace.cli", "metrics", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environ(), timeout=120)


def test_the_command_prints_what_the_client_parses() -> None:
    done = command(DEMO_RUN)
    assert done.returncode == 0 and done.stderr == ""
    with eagletrace.open_run(DEMO_RUN) as run:
        expected = diagnose(run)
    found = values(done.stdout)
    a = expected.acceptance
    assert found["eagletrace_rounds_total", ()] == a.rounds
    assert found["eagletrace_drafted_tokens_total", ()] == a.drafted
    assert found["eagletrace_accepted_tokens_total", ()] == a.accepted
    assert found["eagletrace_accept_length", ()] == pytest.approx(a.accept_length)
    assert found["eagletrace_engine_accept_length", ()] == pytest.approx(a.engine_reported_accept_length)
    for d in a.by_depth:
        labels = (("depth", str(d.depth)),)
        assert found["eagletrace_depth_reached_rounds_total", labels] == d.reached
        assert found["eagletrace_depth_accepted_rounds_total", labels] == d.accepted
    for check in expected.checks:
        for status in ("ok", "alarm", "unknown", "not_applicable"):
            labels = (("check", check.id), ("status", status))
            assert found["eagletrace_check", labels] == (status == check.status)
    assert found["eagletrace_verdict", (("verdict", "fault"),)] == 1
    assert found["eagletrace_verdict", (("verdict", "healthy"),)] == 0
    cause = expected.causes[0]
    labels = (("cause", cause.id), ("severity", cause.severity))
    assert found["eagletrace_cause_confidence_ratio", labels] == pytest.approx(cause.confidence)


def test_every_family_is_declared_as_it_is_listed() -> None:
    with eagletrace.open_run(DEMO_RUN) as run:
        families = parsed(of(DEMO_RUN, diagnose(run)))
    listed = {f"eagletrace_{m.name}".removesuffix("_total"): m for m in METRICS}
    assert families.keys() <= listed.keys() and len(families) >= len(listed) - 1  # nothing was dropped
    for name, family in families.items():
        metric = listed[name]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        for sample in family.samples:
            bucket = {"le"} if sample.name.endswith("_bucket") else set[str]()
            expected = bucket if metric.type == "histogram" else set(metric.labels)
            assert set(sample.labels) == expected, sample


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", metric.name)
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert not re.search(r"milli|nano|percent|minutes|_ms\b|kilobytes", metric.name)
        assert metric.help and not metric.help.endswith(".")
        assert "le" not in metric.labels or metric.type == "histogram"


def test_the_histogram_is_one(tmp_path: Path) -> None:
    text = of(small_run(tmp_path / "run"))
    found = values(text)
    buckets = {dict(labels)["le"]: v for (n, labels), v in found.items() if n == "eagletrace_correct_drafts_bucket"}
    assert {float(le): count for le, count in buckets.items()} == {0: 1, 1: 1, 2: 2, 3: 3, math.inf: 3}
    assert found["eagletrace_correct_drafts_sum", ()] == 5 and found["eagletrace_correct_drafts_count", ()] == 3


def test_drops_by_reason_and_table(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    reasons = {"queue full: rounds": 4, "bound: drafts": 2, "something else": 1, "odd: thing": 3}
    for time_ in (5, 6):
        writer(path, pid=8).write("totals", [{"time_unix_nano": time_, "dropped_rows_by_reason": json.dumps(reasons)}])
    found = {labels: v for (name, labels), v in values(of(path)).items() if name == "eagletrace_dropped_rows_total"}
    assert found == {
        (("reason", "queue full"), ("table", "rounds")): 8, (("reason", "bound"), ("table", "drafts")): 4,
        (("reason", "something else"), ("table", "")): 2, (("reason", "odd: thing"), ("table", "")): 6,
    }  # fmt: skip


def test_strings_of_a_trace_are_escaped(tmp_path: Path) -> None:
    nasty = 'a"b\\c\\n\nd{e="f"} 1\n# TYPE x counter'
    path = make_folder(tmp_path / "run", draft=nasty, run_id=nasty)
    w = writer(path)
    w.write("hooks", [{"target": nasty, "status": nasty, "calls": 3, "errors": 1, "time_unix_nano": 1}])
    w.write("requests", [request(end_time_unix_nano=2, finish_reason=nasty)])
    diagnosis = Diagnosis(RunInfo(nasty, None, nasty), "fault", Acceptance(),
                          (Cause(nasty, math.nan, "critical", nasty, (), ""),),
                          (Check(nasty, "ok", nasty),))  # fmt: skip
    text = of(path, diagnosis)
    found = values(text)
    assert found["eagletrace_hook_calls_total", (("target", nasty),)] == 3
    assert found["eagletrace_hooks", (("status", nasty),)] == 1
    assert found["eagletrace_requests_finished_total", (("reason", nasty),)] == 1
    assert math.isnan(found["eagletrace_cause_confidence_ratio", (("cause", nasty), ("severity", "critical"))])
    (info,) = [dict(labels) for (name, labels) in found if name == "eagletrace_run_info"]
    assert info["draft"] == nasty and info["run"] == nasty
    assert parsed(text).keys() <= {f"eagletrace_{m.name}".removesuffix("_total") for m in METRICS}


def test_a_run_without_rounds_has_no_accept_length(tmp_path: Path) -> None:
    found = values(of(make_folder(tmp_path / "run")))
    assert ("eagletrace_accept_length", ()) not in found and found["eagletrace_rounds_total", ()] == 0


def test_only_the_first_rank_counts(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    writer(path, pid=9, tp_rank=1).write("totals", [{"time_unix_nano": 1, "rounds": 3, "accepted": 5}])
    writer(path, pid=10, tp_rank=0).write("totals", [{"time_unix_nano": 1, "rounds": 10, "accepted": 1}])
    found = values(of(path))
    assert (found["eagletrace_rounds_total", ()], found["eagletrace_accepted_tokens_total", ()]) == (13, 6)


# -- a port ---------------------------------------------------------------------------------------


class Served:
    """`eagletrace metrics RUN --port 0` in a process of its own."""

    def __init__(self, path: Path) -> None:
        line = [sys.executable, "-m", "eagletrace.cli", "metrics", str(path), "--port", "0"]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environ())
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        match = re.fullmatch(r"serving (http://127\.0\.0\.1:(\d+)/metrics) \(Ctrl-C ends it\)\n", first)
        assert match, first + self.process.stderr.read()
        self.url, self.port = match[1], int(match[2])

    def scrape(self) -> dict[Any, float]:
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return values(answer.read().decode())

    def status(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        assert self.process.stderr is not None
        self.process.stderr.close()


def add_totals(path: Path, number: int, rounds: int) -> None:
    row = {"time_unix_nano": 10**9 * number, "rounds": rounds, "drafted": 3 * rounds, "accepted": 2 * rounds,
           "reached_by_depth": [rounds], "accepted_by_depth": [rounds]}  # fmt: skip
    w = writer(path)
    w.claim("totals")
    w.write("totals", [row])


def test_a_port_serves_what_is_new_and_a_newer_run(tmp_path: Path) -> None:
    path = small_run(tmp_path / "first", start=1)
    with Served(tmp_path) as served:
        assert served.scrape()["eagletrace_rounds_total", ()] == 3
        add_totals(path, 2, 10)
        assert served.scrape()["eagletrace_rounds_total", ()] == 13
        until = time.monotonic() + 30
        while ("eagletrace_verdict", (("verdict", "inconclusive"),)) not in (found := served.scrape()):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert found["eagletrace_verdict", (("verdict", "inconclusive"),)] == 1
        add_totals(make_folder(tmp_path / "second", start=2), 1, 7)
        found = served.scrape()
        assert found["eagletrace_rounds_total", ()] == 7
        assert [dict(labels)["run"] for name, labels in found if name == "eagletrace_run_info"] == ["second"]
        assert served.status("/")[0] == 200 and served.status("/etc/passwd")[0] == 404
        assert served.status("/metrics", "HEAD") == (200, b"") and served.status("/metrics", "POST")[0] == 501


def test_files_are_read_once_through_merging(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    live = LiveRun(path)
    total = 0
    for number in range(40):
        w.write("totals", [{"time_unix_nano": number + 1, "rounds": number, "accepted": 1}])
        total += number
        if number % 3 == 0:
            live.poll()
        if number in (11, 25, 39):
            w.merge()
    live.poll()
    assert live.counts.rounds == total and live.counts.accepted == 40
    live.poll()
    assert live.counts.rounds == total


def test_files_taken_over_from_a_dead_process_count_once(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    dead, alive = (
        TraceWriter(path, {"host": os.uname().nodename, "pid": pid, "tp_rank": 0}) for pid in (DEAD, os.getpid())
    )
    dead.write("totals", [{"time_unix_nano": 1, "rounds": 5}])
    live = LiveRun(path)
    live.poll()
    dead.write("totals", [{"time_unix_nano": 2, "rounds": 7}])  # not seen before it is taken over
    alive.write("totals", [{"time_unix_nano": 3, "rounds": 1}])
    for _ in alive.adopt():
        pass
    alive.merge()
    names = sorted(file.name for file in (path / "totals").glob("*.parquet"))
    live.poll()
    assert live.counts.rounds == 13, names
    assert all(str(DEAD) not in name for name in names), names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "70000"], "is not a port"),
        (["--port", "0", "--host", "not a host"], "cannot serve on not a host"),
        (["--port", "0", "--host", "203.0.113.1"], "cannot serve on 203.0.113.1, port 0"),
    ],
)
def test_an_address_that_cannot_be_had_is_said(arguments: list[str], says: str) -> None:
    done = command(DEMO_RUN, *arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_port_that_is_taken_and_no_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = command(DEMO_RUN, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2 and "Address already in use" in done.stderr
    done = command(tmp_path)
    assert done.returncode == 2 and "is empty" in done.stderr
