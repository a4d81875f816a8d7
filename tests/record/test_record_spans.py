"""Spans: OpenTelemetry's own objects with valid ids, one trace per request, batch phases linked to them."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, StatusCode

from eagletrace.format import TABLES
from eagletrace.format.attributes import ATTRIBUTES
from eagletrace.record.columns import to_list
from eagletrace.record.requests import RequestState
from eagletrace.record.spans import ParquetSpanExporter, SpanBuilder
from tests.record.packets import chain, state

Row = dict[str, Any]


def finished(seq: int, **facts: Any) -> RequestState:
    return state(seq, end_ns=900, output_tokens=8, finish_reason="length", **facts)


def taken(builder: SpanBuilder) -> list[Row]:
    arrays, count = builder.take()
    columns = {name: to_list(values) for name, values in arrays.items()}
    assert {len(values) for values in columns.values()} == {count}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def some_spans() -> tuple[list[Row], list[RequestState]]:
    builder = SpanBuilder({"service.name": "sglang"})
    requests = [finished(1), finished(2)]
    builder.phase("prefill", 20, 40, requests, {"eagle.batch_size": 2, "eagle.tokens": None})
    builder.launch(chain([1], [1, 2], requests=requests))
    for request in requests:
        builder.request(request)
    return taken(builder), requests


def test_ids_are_valid_and_unique() -> None:
    rows, _ = some_spans()
    for row in rows:
        for name, digits in (("trace_id", 32), ("span_id", 16)):
            assert len(row[name]) == digits and int(row[name], 16) > 0
    assert len({r["span_id"] for r in rows}) == len(rows)
    assert set(rows[0]) == {c.name for c in TABLES["spans"].columns}


def test_one_trace_per_request_and_links_from_the_batch() -> None:
    rows, _ = some_spans()
    requests = [r for r in rows if r["name"] == "eagle.request"]
    assert len({r["trace_id"] for r in requests}) == 2 and all(r["parent_span_id"] is None for r in requests)
    own = [{"trace_id": r["trace_id"], "span_id": r["span_id"]} for r in requests]
    for name in ("eagle.prefill", "eagle.launch"):
        (batch,) = [r for r in rows if r["name"] == name]
        assert json.loads(batch["links"]) == own
        assert batch["trace_id"] not in {r["trace_id"] for r in requests}


def test_phases_are_children_of_their_launch_with_the_recorded_times() -> None:
    rows, _ = some_spans()
    (launch,) = [r for r in rows if r["name"] == "eagle.launch"]
    assert (launch["start_time_unix_nano"], launch["duration_time_unix_nano"]) == (100, 30)
    phases = [r for r in rows if r["parent_span_id"] == launch["span_id"]]
    assert [(p["name"], p["start_time_unix_nano"], p["duration_time_unix_nano"]) for p in phases] == [
        ("eagle.draft", 100, 10), ("eagle.verify", 110, 20),
    ]  # fmt: skip
    assert {p["trace_id"] for p in phases} == {launch["trace_id"]}
    (request, _) = [r for r in rows if r["name"] == "eagle.request"]
    assert (request["start_time_unix_nano"], request["duration_time_unix_nano"], request["kind"]) == (10, 890, "SERVER")


def test_launches_keep_their_own_spans_apart() -> None:
    """Of several batches, with other phases each; one without phases has no span."""
    builder = SpanBuilder({})
    batches = [[finished(1), finished(2)], [finished(3)]]
    phases = [
        [("draft", 5, 7)],
        [],
        [("draft", 20, 21), ("verify", 21, 29), ("extend_decode", 28, 28)],
        [("verify", 40, 44)],
    ]
    for number, found in enumerate(phases):
        packet = chain([1], [1, 2], requests=batches[number % 2])
        packet.round, packet.start_ns, packet.phases = number, 10 * number, found
        builder.launch(packet)
    builder.request(batches[1][0])
    rows = taken(builder)
    launches = [r for r in rows if r["name"] == "eagle.launch"]
    assert [json.loads(r["attributes"])["eagle.round"] for r in launches] == [0, 2, 3]
    assert [(r["start_time_unix_nano"], r["duration_time_unix_nano"]) for r in launches] == [(0, 7), (20, 9), (30, 14)]
    for launch, found in zip(launches, [phases[0], phases[2], phases[3]], strict=True):
        own = [r for r in rows if r["parent_span_id"] == launch["span_id"]]
        assert {r["trace_id"] for r in own} == {launch["trace_id"]} and launch["parent_span_id"] is None
        times = [(r["name"], r["start_time_unix_nano"], r["duration_time_unix_nano"]) for r in own]
        assert times == [(f"eagle.{name}", start, stop - start) for name, start, stop in found]
        assert [(r["attributes"], r["links"]) for r in own] == [("{}", "[]")] * len(found)
    linked = [len(json.loads(r["links"])) for r in launches]
    assert linked == [2, 2, 1] and rows[-1]["name"] == "eagle.request" and rows[-1]["kind"] == "SERVER"
    assert json.loads(launches[2]["links"])[0]["span_id"] == rows[-1]["span_id"]
    assert len({r["span_id"] for r in rows}) == len(rows) == 3 + 5 + 1


def test_attributes_are_registered_and_unknown_ones_left_out() -> None:
    rows, _ = some_spans()
    seen = [json.loads(r["attributes"]) for r in rows]
    assert {name for attributes in seen for name in attributes} <= set(ATTRIBUTES)
    (prefill,) = [r for r in rows if r["name"] == "eagle.prefill"]
    assert json.loads(prefill["attributes"]) == {"eagle.batch_size": 2}
    assert {json.loads(r["resource_attributes"])["service.name"] for r in rows} == {"sglang"}


def test_requests_out_of_the_sample_are_not_linked() -> None:
    builder = SpanBuilder({})
    builder.launch(chain([1], [1, 2], requests=[state(1, sampled=False)]))
    assert json.loads(taken(builder)[0]["links"]) == [] and taken(builder) == []


def test_the_engines_random_numbers_stay_as_they_are() -> None:
    import random

    random.seed(5)
    expected = random.random()
    random.seed(5)
    some_spans()
    assert random.random() == expected


def test_the_exporter_is_an_ordinary_one() -> None:
    rows: list[Row] = []
    exporter = ParquetSpanExporter(rows.extend)
    assert isinstance(exporter, SpanExporter)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("someone.else")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner") as span:
        span.set_status(Status(StatusCode.ERROR, "broke"))
    provider.shutdown()
    inner, outer = rows
    assert (inner["parent_span_id"], inner["trace_id"]) == (outer["span_id"], outer["trace_id"])
    assert (inner["status_code"], inner["status_message"], inner["scope_name"]) == ("ERROR", "broke", "someone.else")


def test_a_writer_that_raises_is_a_failed_export() -> None:
    def broken(rows: list[Row]) -> None:
        raise OSError("disk")

    assert ParquetSpanExporter(broken).export([]) is SpanExportResult.FAILURE
