"""The trace for the Perfetto UI, read back with Perfetto's own protobuf definitions."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.report import perfetto
from eagletrace.report.perfetto import PerfettoTrace
from eagletrace.report.replace import OutputError, replacing
from tests.cli.commands import environ
from tests.store.runs import make_folder, request, small_run, writer

definitions = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
Row = dict[str, Any]


@dataclass
class Slice:
    name: str
    category: str
    begin: int
    end: int
    arguments: Row
    parent: Slice | None = None


@dataclass
class Trace:
    """What the UI makes of a file: slices by track, values by counter, tracks by process."""

    processes: dict[int, Any] = field(default_factory=dict[int, Any])
    tracks: dict[int, Any] = field(default_factory=dict[int, Any])
    slices: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict[int, list[Slice]](list))
    values: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict[int, Any](list))
    instants: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict[int, list[Slice]](list))

    def named(self, name: str) -> list[int]:
        return [uuid for uuid, track in self.tracks.items() if track.name == name or track.name.startswith(name + " ")]

    def all_slices(self, name: str) -> list[Slice]:
        return [s for uuid in self.named(name) for s in self.slices[uuid]]


def read(data: bytes) -> Trace:
    """Reads as the trace processor does: packets sorted by time, stable; interned data valid from where it stands."""
    file = definitions.Trace()
    file.ParseFromString(data)
    assert len(data) == file.ByteSize() or file.ByteSize() > 0
    trace, interned = Trace(), {name: {} for name in ("event_categories", "event_names", "debug_annotation_names")}
    events: list[tuple[int, Any, str, str, Row]] = []
    cleared = False
    for packet in file.packet:
        assert packet.trusted_packet_sequence_id == 1
        cleared = cleared or bool(packet.sequence_flags & 1)
        for kind, known in interned.items():
            for entry in getattr(packet.interned_data, kind):
                assert entry.iid not in known
                known[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in trace.tracks | trace.processes
            (trace.processes if descriptor.HasField("process") else trace.tracks)[descriptor.uuid] = descriptor
            assert descriptor.HasField("process") or descriptor.parent_uuid in trace.processes
        if packet.HasField("track_event"):
            assert cleared and packet.sequence_flags & 2
            event = packet.track_event
            assert event.track_uuid in trace.tracks
            name = interned["event_names"][event.name_iid] if event.name_iid else event.name
            category = interned["event_categories"][event.category_iids[0]] if event.category_iids else ""
            arguments = {interned["debug_annotation_names"][a.name_iid]: getattr(a, a.WhichOneof("value"))
                         for a in event.debug_annotations}  # fmt: skip
            events.append((packet.timestamp, event, name, category, arguments))
    stacks: dict[int, list[Slice]] = defaultdict(list)
    for time, event, name, category, arguments in sorted(events, key=lambda e: e[0]):
        stack = stacks[event.track_uuid]
        if event.type == event.TYPE_SLICE_BEGIN:
            stack.append(Slice(name, category, time, -1, arguments, stack[-1] if stack else None))
            trace.slices[event.track_uuid].append(stack[-1])
        elif event.type == event.TYPE_SLICE_END:
            stack.pop().end = time
        elif event.type == event.TYPE_COUNTER:
            trace.values[event.track_uuid].append((time, event.double_counter_value))
        else:
            trace.instants[event.track_uuid].append(Slice(name, category, time, time, arguments))
    assert all(not stack for stack in stacks.values()), "a slice that does not end"
    return trace


def exported(path: Path) -> Trace:
    with eagletrace.open_run(path) as run:
        return read(b"".join(PerfettoTrace(run).packets()))


def spans(path: Path, rows: list[Row], pid: int = 7) -> None:
    """Write spans: `(name, start, duration)` and attributes."""
    ids = iter(range(1, 10_000))
    made = [
        {"trace_id": f"{next(ids):032x}", "span_id": f"{next(ids):016x}", "kind": "INTERNAL", "links": "[]",
         "resource_attributes": "{}", "status_code": "UNSET", "scope_name": "eagletrace", "attributes": "{}", **row}
        for row in rows
    ]  # fmt: skip
    writer(path, pid=pid).write("spans", made)


def launch(number: int, start: int, duration: int) -> Row:
    return {"name": "eagle.launch", "start_time_unix_nano": start, "duration_time_unix_nano": duration,
            "attributes": json.dumps({"eagle.round": number, "eagle.batch_size": 1, "eagle.graph": True})}  # fmt: skip


@pytest.fixture(scope="module")
def demo() -> Trace:
    return exported(DEMO_RUN)


def test_a_recorded_run_has_all_of_it(demo: Trace) -> None:
    (process,) = demo.processes.values()
    assert process.process.pid == 18702 and process.name == "sglang on vm TP0"
    with eagletrace.open_run(DEMO_RUN) as run:
        ((rounds, requests, launches, others, events),) = run.execute(
            "SELECT (SELECT count(*) FROM all_rounds WHERE counted IS NOT FALSE), (SELECT count(*) FROM all_requests), "
            "(SELECT count(*) FROM spans WHERE name = 'eagle.launch'), (SELECT count(*) FROM spans WHERE name NOT IN "
            "('eagle.launch', 'eagle.request')), (SELECT count(*) FROM events)"
        )
    in_requests = demo.all_slices("requests")
    assert len([s for s in in_requests if s.category == "round"]) == rounds == 349
    assert len([s for s in in_requests if s.name.startswith("request ")]) == requests == 10
    assert len(demo.all_slices("launches")) == launches == 108
    assert len(demo.all_slices("phases")) == others
    (track,) = demo.named("events")
    assert len(demo.instants[track]) == events


def test_slices_have_the_recorded_times_and_facts(demo: Trace) -> None:
    with eagletrace.open_run(DEMO_RUN) as run:
        recorded = {
            row["round"]: row
            for row in run.rows(
                """SELECT (attributes->>'$."eagle.round"')::BIGINT AS round, start_time_unix_nano AS s,
                   start_time_unix_nano + duration_time_unix_nano AS e, (attributes->>'$."eagle.batch_size"')::INT AS n
                   FROM spans WHERE name = 'eagle.launch'"""
            )
        }
        accepted = dict(run.execute("SELECT round, sum(accepted)::INT FROM all_rounds WHERE counted GROUP BY 1"))
    found = {s.arguments["round"]: s for s in demo.all_slices("launches")}
    assert found.keys() == recorded.keys()
    for number, slice_ in found.items():
        row = recorded[number]
        assert (slice_.begin, slice_.end, slice_.arguments["batch_size"]) == (row["s"], row["e"], row["n"])
        assert slice_.arguments.get("accepted") == accepted.get(number)


def test_phases_lie_within_their_launches(demo: Trace) -> None:
    launches = demo.all_slices("launches")
    verifies = [s for s in demo.all_slices("phases") if s.name == "verify"]
    assert len(verifies) == len(launches)
    for phase in verifies:
        assert any(s.begin <= phase.begin and phase.end <= s.end for s in launches)


def test_rounds_lie_in_their_request(demo: Trace) -> None:
    rounds = [s for s in demo.all_slices("requests") if s.category == "round"]
    assert all(s.parent is not None and s.parent.name.startswith("request ") for s in rounds)
    assert all(s.parent.begin <= s.begin <= s.end <= s.parent.end for s in rounds if s.parent)
    assert {s.name for s in rounds} <= {f"{k} of 3 accepted" for k in range(4)}


def test_accept_length_is_a_counter(demo: Trace) -> None:
    (track,) = demo.named("accept length")[:1]
    assert demo.tracks[track].counter.unit_name == "tokens per round"
    with eagletrace.open_run(DEMO_RUN) as run:
        expected = run.execute(
            "SELECT min(time_unix_nano), 1 + sum(accepted) / count(*) FROM rounds GROUP BY round ORDER BY 1"
        )
    assert sorted(demo.values[track]) == [(int(t), pytest.approx(v)) for t, v in expected]
    (second,) = demo.named("accept length, last second")
    assert len(demo.values[second]) == len(expected) and all(1 <= v <= 4 for _, v in demo.values[second])


def test_the_counter_of_the_last_second(tmp_path: Path) -> None:
    trace = exported(small_run(tmp_path / "run"))  # rounds at seconds 1, 2, 3 with 2, 0 and 3 correct drafts
    (track,) = trace.named("accept length, last second")
    assert [round(v, 6) for _, v in trace.values[track]] == [3.0, 2.0, 2.5]
    (tokens,) = trace.named("tokens per second")
    assert [v for _, v in trace.values[tokens]] == [3.0, 4.0, 4.0]


def test_requests_at_the_same_time_get_tracks_of_their_own(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    times = {1: (100, 200), 2: (150, 300), 3: (200, 250), 4: (250, 400)}
    writer(path).write(
        "requests", [request(k, start_time_unix_nano=s, end_time_unix_nano=e) for k, (s, e) in times.items()]
    )
    trace = exported(path)
    lanes = [[(s.name, s.begin, s.end) for s in trace.slices[track]] for track in trace.named("requests")]
    assert lanes == [
        [("request 1", 100, 200), ("request 3", 200, 250), ("request 4", 250, 400)], [("request 2", 150, 300)],
    ]  # fmt: skip


def test_a_request_that_still_runs_ends_with_its_last_round(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    spans(path, [launch(5, 5 * 10**9, 7_000)])
    warmup = [s for s in exported(path).all_slices("requests") if s.name == "request 2 (warmup)"]
    assert [(s.begin, s.end) for s in warmup] == [(5 * 10**9, 5 * 10**9 + 7_000)]


def test_ranks_and_hosts_are_processes(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    for pid, rank in ((7, 0), (8, 1)):
        w = writer(path, pid=pid, tp_rank=rank)
        w.write("events", [{"time_unix_nano": 5, "kind": "serving", "detail": "{}"}])
    other = writer(path, pid=7, tp_rank=2)
    other.process["host"], other.stem = "far", "far-7"
    other.write("events", [{"time_unix_nano": 6, "kind": "serving", "detail": "{}"}])
    trace = exported(path)
    assert sorted(p.name for p in trace.processes.values()) == [
        "engine on far TP2", "engine on node TP0", "engine on node TP1",
    ]  # fmt: skip
    assert len({p.process.pid for p in trace.processes.values()}) == 3


def test_level_contract_has_its_totals(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    writer(path).write("totals", [{"time_unix_nano": 9, "rounds": 4, "drafted": 12, "accepted": 6}])
    trace = exported(path)
    (track,) = trace.named("accept length, from the totals")
    assert trace.values[track] == [(9, 2.5)]


def test_strings_of_a_trace_stay_strings(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    nasty = "\x1b[31m<script>\u202e" + "x" * 10_000
    spans(path, [{"name": nasty, "start_time_unix_nano": 1, "duration_time_unix_nano": 2,
                  "attributes": json.dumps({"a": {"b": 1}, "c": None, "d": nasty})},
                 {"name": None, "start_time_unix_nano": 4, "duration_time_unix_nano": None, "attributes": "not json"},
                 {"name": "x", "start_time_unix_nano": -5, "duration_time_unix_nano": 1, "attributes": "[1]"},
                 ])  # fmt: skip
    writer(path).write("requests", [request(1, request_id=nasty, start_time_unix_nano=1, end_time_unix_nano=0)])
    trace = exported(path)
    first = next(s for s in trace.all_slices("phases") if s.name == nasty)
    assert first.arguments["a"] == "{'b': 1}" and first.arguments["d"] == nasty[:4_000] and "c" not in first.arguments
    assert [s.arguments["request_id"] for s in trace.all_slices("requests")] == [nasty]


def test_rows_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"".join(_packets())
    monkeypatch.setattr(perfetto, "ROWS", 16)
    parts = list(_packets())
    assert max(map(len, parts)) < len(whole) / 10 or len(parts) > 5
    again, trace = read(b"".join(parts)), read(whole)
    assert dict(again.slices) == dict(trace.slices)


def _packets() -> Iterator[bytes]:
    with eagletrace.open_run(DEMO_RUN) as run:
        yield from PerfettoTrace(run).packets()


# -- the command ----------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def command(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "eagletrace.cli", "export", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environ(), cwd=cwd, timeout=120)


def test_the_command_writes_a_file_and_says_what(tmp_path: Path) -> None:
    done = command(DEMO_RUN, "--to", "perfetto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "demo-run.pftrace"
    assert len(read(path.read_bytes()).all_slices("launches")) == 108
    assert "108 launches" in done.stdout and "349 rounds" in done.stdout and "ui.perfetto.dev" in done.stdout
    assert done.stderr == "" and names(tmp_path) == [path.name]


def test_only_a_file_that_was_named_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "demo-run.pftrace"
    path.write_text("mine")
    refused = command(DEMO_RUN, "--to", "perfetto", cwd=tmp_path)
    assert refused.returncode == 2 and "exists" in refused.stderr and path.read_text() == "mine"
    assert command(DEMO_RUN, "--to", "perfetto", "-o", path, cwd=tmp_path).returncode == 0
    assert path.read_bytes() != b"mine" and names(tmp_path) == [path.name]


def test_a_name_with_gz_is_compressed(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace.gz"
    assert command(DEMO_RUN, "--to", "perfetto", "-o", path, cwd=tmp_path).returncode == 0
    assert len(read(gzip.decompress(path.read_bytes())).all_slices("launches")) == 108


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "perfeto"], "unknown format 'perfeto'; did you mean perfetto?"),
        (["--to", "perfetto", "-o", "no/such/folder/x"], "cannot write no/such/folder/x: No such file or directory"),
        (["--to", "perfetto", "-o", "."], "it is a folder"),
        (["--to", "perfetto", "--endpoint", "http://x"], "--endpoint belongs to --to otlp"),
        (["--to", "otlp", "-o", "x"], "-o belongs to --to perfetto"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = command(DEMO_RUN, *arguments, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert names(tmp_path) == []


def test_no_run_is_an_error(tmp_path: Path) -> None:
    done = command(tmp_path, "--to", "perfetto", cwd=tmp_path)
    assert done.returncode == 2 and "is empty" in done.stderr and names(tmp_path) == []


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("old")
    with pytest.raises(OutputError, match="No space"), replacing(path) as file:
        file.write(b"new")
        raise OSError(28, "No space left on device")
    assert path.read_text() == "old" and names(tmp_path) == ["t"]
