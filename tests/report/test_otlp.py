"""Spans that leave by OTLP: of a recorded run, and of a recorder while it records."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, host_attributes, process_attributes

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.format.attributes import ATTRIBUTES
from eagletrace.format.otel import OtlpError, asked_for, make_exporter, readable_spans
from eagletrace.record.columns import to_list
from eagletrace.record.live_otlp import LiveOtlp
from eagletrace.record.recorder import Recorder
from eagletrace.record.spans import SpanBuilder, span_row
from eagletrace.settings import Settings
from tests.cli.commands import environ
from tests.record.packets import PROCESS, chain, state
from tests.report.collector import Collector, attributes, wait_for
from tests.store.runs import make_folder, writer

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
Row = dict[str, Any]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER",
                 "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


def dead_address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def export(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "eagletrace.cli", "export", *map(str, arguments), "--to", "otlp"]
    return subprocess.run(line, capture_output=True, text=True, env=environ(**variables), timeout=120)


# -- a recorded run -------------------------------------------------------------------------------


def test_every_span_arrives_as_it_was_recorded(collector: Collector) -> None:
    done = export(DEMO_RUN, "--endpoint", collector.url, OTEL_EXPORTER_OTLP_HEADERS="api-key=secret")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert f"sent 450 spans to {collector.url}/v1/traces" in done.stdout
    assert set(collector.paths) == {"/v1/traces"} and collector.headers[0]["api-key"] == "secret"
    with eagletrace.open_run(DEMO_RUN) as run:
        recorded = {row["span_id"]: row for row in run.rows("FROM all_ranks.spans")}
    received = {span.span_id.hex(): (resource, scope, span) for resource, scope, span in collector.received()}
    assert received.keys() == recorded.keys() and len(collector.spans()) == len(recorded) == 450
    for span_id, (resource, scope, span) in received.items():
        row = recorded[span_id]
        assert (span.trace_id.hex(), span.name) == (row["trace_id"], row["name"])
        assert span.parent_span_id.hex() == (row["parent_span_id"] or "")
        assert span.start_time_unix_nano == row["start_time_unix_nano"]
        assert span.end_time_unix_nano - span.start_time_unix_nano == row["duration_time_unix_nano"]
        kept = {k: v for k, v in json.loads(row["attributes"]).items() if v is not None}
        assert attributes(span) == kept
        links = [{"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()} for link in span.links]
        assert links == json.loads(row["links"])
        assert attributes(resource) == json.loads(row["resource_attributes"])
        assert (scope.name, scope.version) == ("eagletrace", "0.1.0")
    kinds = {span.name: span.kind for span in collector.spans()}
    assert kinds["eagle.request"] == 2 and kinds["eagle.launch"] == 1  # SERVER, INTERNAL


def test_the_endpoint_may_come_from_the_variables(collector: Collector) -> None:
    done = export(DEMO_RUN, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_EXPORTER_OTLP_COMPRESSION="gzip")
    assert done.returncode == 0, done.stderr
    assert len(collector.spans()) == 450 and collector.headers[0]["content-encoding"] == "gzip"


def test_a_path_that_is_given_is_kept(collector: Collector) -> None:
    assert export(DEMO_RUN, "--endpoint", f"{collector.url}/custom/path").returncode == 0
    assert set(collector.paths) == {"/custom/path"}


def test_a_collector_that_refuses_or_is_not_there_is_an_error() -> None:
    with Collector(status=401) as refusing:
        done = export(DEMO_RUN, "--endpoint", refusing.url)
    assert done.returncode == 2 and "does not take the spans: Failed to export spans batch code: 401" in done.stderr
    dead = dead_address()
    done = export(DEMO_RUN, "--endpoint", dead, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert done.returncode == 2 and done.stderr == (
        f"eagletrace: {dead}/v1/traces does not take the spans: Connection refused\n"
    )


@pytest.mark.parametrize(
    ("variables", "endpoint", "says"),
    [
        ({}, None, "say where the collector is: --endpoint http://localhost:4318, or OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({}, "localhost:4318", "'localhost:4318' is no address of a collector"),
        ({}, "http://host:port", "'http://host:port' is no address of a collector"),
        ({}, "ftp://host", "is no address of a collector"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "http://x", "is not one of http/protobuf, grpc"),
    ],
)
def test_what_cannot_be_sent_is_said(variables: dict[str, str], endpoint: str | None, says: str) -> None:
    done = export(DEMO_RUN, *(["--endpoint", endpoint] if endpoint else []), **variables)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("protocol", "package"), [("", "eagletrace[otlp]"), ("grpc", "otlp-proto-grpc")])
def test_an_exporter_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, protocol: str, package: str
) -> None:
    for name in ("http", "grpc"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{name}.trace_exporter", None)
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol} if protocol else {}
    with pytest.raises(OtlpError, match=r"not installed.*pip install") as caught:
        make_exporter("http://localhost:1", variables)
    assert package in str(caught.value)


def test_rows_that_are_no_spans_are_left_out_and_counted(tmp_path: Path, collector: Collector) -> None:
    path = make_folder(tmp_path / "run")
    good = {"trace_id": "a" * 32, "span_id": "b" * 16, "name": "x", "start_time_unix_nano": 5,
            "duration_time_unix_nano": 3, "attributes": '{"k": [1, 2]}'}  # fmt: skip
    bad = [{"trace_id": "zz"}, {"span_id": "0" * 16}, {"start_time_unix_nano": None}, {"attributes": "[1"},
           {"kind": "NO_KIND"}, {"links": '[{"trace_id": 1}]'}, {"parent_span_id": "?"}]  # fmt: skip
    writer(path).write("spans", [good, *({**good, **wrong} for wrong in bad)])
    done = export(path, "--endpoint", collector.url)
    assert done.returncode == 0 and "sent 1 spans" in done.stdout
    assert "7 rows of `spans` are no valid spans and were left out" in done.stderr
    (span,) = collector.spans()
    assert attributes(span) == {"k": [1, 2]} and span.end_time_unix_nano == 8


# -- names ----------------------------------------------------------------------------------------


def test_conventional_names_are_those_of_the_conventions() -> None:
    known = {value for module in (gen_ai_attributes, host_attributes, process_attributes) for value in
             vars(module).values() if isinstance(value, str)}  # fmt: skip
    from opentelemetry.semconv._incubating.attributes import service_attributes, telemetry_attributes

    assert stable is not None
    known |= {v for m in (service_attributes, telemetry_attributes) for v in vars(m).values() if isinstance(v, str)}
    ours = [a.name for a in ATTRIBUTES.values() if a.convention == "OpenTelemetry"]
    assert len(ours) > 10 and [name for name in ours if name not in known] == []


def built(monkeypatch: pytest.MonkeyPatch, **resource: Any) -> list[Row]:
    builder = SpanBuilder({"service.name": "sglang", **resource})
    request = state(1, end_ns=900, output_tokens=8, finish_reason="length", temperature=0.5, cached_tokens=2)
    builder.launch(chain([1], [1, 2], requests=[request]))
    builder.phase("prefill", 20, 40, [request], {"eagle.batch_size": 2, "eagle.tokens": 9})
    builder.request(request)
    arrays, _ = builder.take()
    columns = {name: to_list(values) for name, values in arrays.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_every_attribute_that_is_written_is_registered_for_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in built(monkeypatch):
        for name, value in json.loads(row["attributes"]).items():
            assert row["name"] in ATTRIBUTES[name].on.split(", "), f"{name} on {row['name']}"
            python = {"int": int, "string": str, "boolean": bool, "double": float, "string[]": list}
            assert value is None or type(value) is python[ATTRIBUTES[name].type]
        assert set(json.loads(row["resource_attributes"])) <= {
            a.name for a in ATTRIBUTES.values() if a.on == "resource"
        }


def test_a_request_has_the_names_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(built(monkeypatch)[-1]["attributes"])
    assert found["gen_ai.response.id"] == "req-1" and found["gen_ai.response.finish_reasons"] == ["length"]
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (3, 8)
    assert (found["gen_ai.usage.cache_read.input_tokens"], found["gen_ai.request.temperature"]) == (2, 0.5)
    assert found["gen_ai.provider.name"] == "sglang"


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "answers")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=other,deployment.environment.name=prod")
    resource = json.loads(built(monkeypatch, **{"host.name": "here"})[0]["resource_attributes"])
    assert (resource["service.name"], resource["host.name"]) == ("answers", "other")
    assert resource["deployment.environment.name"] == "prod"
    assert json.loads(built(monkeypatch)[-1]["attributes"])["gen_ai.provider.name"] == "sglang"


def test_rows_and_spans_are_the_same_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = built(monkeypatch)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    again = [span_row(span) for span in readable_spans(columns)]
    for row, other in zip(rows, again, strict=True):
        for name in ("attributes", "resource_attributes", "links"):
            left = {k: v for k, v in dict(json.loads(row[name])).items() if v is not None} if name != "links" else 0
            assert left == (json.loads(other[name]) if name != "links" else 0)
        assert json.loads(row["links"]) == json.loads(other["links"])
        assert {k: v for k, v in row.items() if "attributes" not in k and k != "links"} == {
            k: v for k, v in other.items() if "attributes" not in k and k != "links"
        }


# -- while it records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_standard_variables_decide(variables: dict[str, str], expected: bool) -> None:
    assert asked_for(variables) is expected


def recorder(folder: Path, **settings: Any) -> Recorder:
    (folder / "x").mkdir(parents=True)
    made = Recorder(folder / "x", Settings(flush_s=0.1, **settings), PROCESS, {"service.name": "sglang"})
    made.start()
    return made


def serve(made: Recorder, launches: int, first: int = 1) -> None:
    request = state(first, rid=f"req-{first}")
    for number in range(first, first + launches):
        made.launch(chain([1, 2], [1, 2, 3], number=number, requests=[request]))
    request.end_ns, request.finish_reason = 900, "length"
    made.request(request)


def recorded(folder: Path) -> list[Row]:
    import pyarrow.parquet as pq

    files = sorted((folder / "x" / "spans").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_spans_go_out_while_they_are_recorded(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    made = recorder(tmp_path)
    serve(made, 100)
    assert wait_for(lambda: len(collector.spans()) == 301)  # launch, draft, verify; one request
    made.stop()
    rows = {row["span_id"]: row for row in recorded(tmp_path)}
    assert {span.span_id.hex() for span in collector.spans()} == rows.keys() and len(rows) == 301
    request = next(span for span in collector.spans() if span.name == "eagle.request")
    launch = next(span for span in collector.spans() if span.name == "eagle.launch")
    assert [link.span_id for link in launch.links] == [request.span_id]
    assert attributes(request)["gen_ai.response.id"] == "req-1"
    assert collector.headers[0]["x-tenant"] == "blue"
    assert attributes(collector.received()[0][0])["telemetry.sdk.name"] == "opentelemetry"


def test_what_was_recorded_last_is_sent_at_the_end(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    made = recorder(tmp_path)
    wait_for(lambda: made._otlp is not None and made._otlp._exporter is not None)  # pyright: ignore[reportPrivateUsage]
    serve(made, 20)
    made.stop()
    assert wait_for(lambda: len(collector.spans()) == 61, 2.0)


def events(folder: Path) -> list[Row]:
    import pyarrow.parquet as pq

    files = sorted((folder / "x" / "events").glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [json.loads(row["detail"]) for row in rows if row["kind"] == "otlp"]


def test_a_dead_collector_costs_one_warning_and_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", dead_address())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with caplog.at_level(logging.WARNING):
        made = recorder(tmp_path)
        serve(made, 50)
        assert wait_for(lambda: any(e["state"] == "failing" for e in events(tmp_path)))
        serve(made, 50, first=51)
        time.sleep(0.5)
        began = time.monotonic()
        made.stop()
        assert time.monotonic() - began < 1.5
    assert len(recorded(tmp_path)) == 302
    texts = [r.getMessage() for r in caplog.records]
    assert len([t for t in texts if "collector takes no spans: Connection refused" in t]) == 1
    assert [t for t in texts if "Transient" in t or "Failed to export" in t] == []
    (event,) = events(tmp_path)
    assert event["reason"] == "Connection refused" and event["sent"] == 0 and event["dropped"] > 0


def test_a_slow_collector_delays_neither_the_engine_nor_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "300")
    with Collector(delay_s=1.0) as slow:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", slow.url)
        made = recorder(tmp_path)
        longest = 0.0
        for batch in range(20):
            began = time.perf_counter()
            serve(made, 50, first=1 + 50 * batch)
            longest = max(longest, time.perf_counter() - began)
            time.sleep(0.1)
        assert wait_for(lambda: len(recorded(tmp_path)) == 20 * 151, 10)
        live = made._otlp  # pyright: ignore[reportPrivateUsage]
        assert live is not None and len(slow.spans()) < 20 * 151 / 2
        waiting = sum(count for _, count in live._queue)  # pyright: ignore[reportPrivateUsage]
        assert waiting <= 300
        made.stop()
    assert longest < 0.25


def test_the_queue_is_bounded_and_keeps_the_newest() -> None:
    live = LiveOtlp(print, {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_EXPORTER_OTLP_ENDPOINT": "x"})
    live._thread.is_alive = lambda: True  # pyright: ignore[reportPrivateUsage]
    for number in range(10):
        live.offer({"name": [f"{number}"] * 30}, 30)
    assert [columns["name"][0] for columns, _ in live._queue] == ["7", "8", "9"]  # pyright: ignore[reportPrivateUsage]
    live.offer({"name": [str(k) for k in range(250)]}, 250)
    ((columns, count),) = live._queue  # pyright: ignore[reportPrivateUsage]
    assert count == 100 and columns["name"][0] == "150" and columns["name"][-1] == "249"
    assert live._pushed_out == 450  # pyright: ignore[reportPrivateUsage]


def test_an_exporter_that_is_absent_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    with caplog.at_level(logging.WARNING):
        made = recorder(tmp_path)
        serve(made, 5)
        made.stop()
    assert len(recorded(tmp_path)) == 16
    assert [t for t in (r.getMessage() for r in caplog.records) if "pip install 'eagletrace[otlp]'" in t] != []


def test_nothing_is_sent_and_no_thread_runs_without_the_variables(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    assert made._otlp is None  # pyright: ignore[reportPrivateUsage]
    made.stop()
