"""OpenTelemetry spans built off the hot path from recorded times, and an exporter that writes them to Parquet.

One trace per request; the spans of a batch phase form a trace of their own, linked to the requests' spans.
Attribute names are those of `eagletrace.format.attributes`.
The spans of launches, thousands a second, are written as columns at once; all others pass through the exporter.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.sdk.version import __version__ as SDK_VERSION
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import eagletrace
from eagletrace.format.schema import SPANS
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

SCOPE = InstrumentationScope("eagletrace", eagletrace.__version__)
OF_A_LAUNCH = (
    "trace_id", "span_id", "parent_span_id", "name", "start_time_unix_nano", "duration_time_unix_nano", "attributes",
    "links",
)  # fmt: skip
_JSON: dict[Any, str] = {None: "null", True: "true", False: "false"}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanBuilder:
    """Builds `ReadableSpan`s and hands out their rows. Its ids come from a generator of its own, so that the
    engine's random numbers stay as they are."""

    def __init__(self, resource: Mapping[str, Any]) -> None:
        self._provider = resource.get("service.name")
        sdk = {"telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": SDK_VERSION}
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word.
        self.resource = Resource({**sdk, **resource}).merge(OTELResourceDetector().detect())
        self._random = random.Random()
        self._of_all_launches = {
            "kind": "INTERNAL", "status_code": "UNSET", "status_message": None, "scope_name": SCOPE.name,
            "resource_attributes": json.dumps(dict(self.resource.attributes), default=str),
        }  # fmt: skip
        self._links: dict[tuple[int, ...], str] = {}
        self._launches: dict[str, list[Any]] = {name: [] for name in OF_A_LAUNCH}
        self._rows: list[Mapping[str, Any]] = []
        self._exporter = ParquetSpanExporter(self._rows.extend)

    def take(self) -> tuple[dict[str, list[Any]], int]:
        """Columns of the `spans` table since the last call, and their length."""
        launches, self._launches = self._launches, {name: [] for name in OF_A_LAUNCH}
        count, rows = len(launches["name"]), self._rows[:]
        self._rows.clear()
        self._links.clear()
        launches |= {name: [value] * count for name, value in self._of_all_launches.items()}
        names = (column.name for column in SPANS.columns)
        return {name: launches[name] + [row[name] for row in rows] for name in names}, count + len(rows)

    def _context(self, trace_id: int = 0, span_id: int = 0) -> SpanContext:
        return SpanContext(
            trace_id or self._random.getrandbits(128) or 1,
            span_id or self._random.getrandbits(64) or 1,
            False,
            _SAMPLED,
        )

    def _request_context(self, state: RequestState) -> SpanContext:
        """The context of a request's span: the same for all its links."""
        self._identify(state)
        return self._context(state.trace_id, state.span_id)

    def _identify(self, state: RequestState) -> None:
        if not state.trace_id:
            state.trace_id = self._random.getrandbits(128) or 1
            state.span_id = self._random.getrandbits(64) or 1

    def _emit(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any], context: SpanContext,
        parent: SpanContext | None = None, links: Sequence[Link] = (), kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:  # fmt: skip
        self._exporter.export(
            [
                ReadableSpan(
                    name,
                    context,
                    parent,
                    self.resource,
                    {k: v for k, v in attributes.items() if v is not None},
                    (),
                    links,
                    kind,
                    None,
                    Status(StatusCode.UNSET),
                    start_ns,
                    end_ns,
                    SCOPE,
                )
            ]
        )

    def launch(self, packet: RoundPacket) -> None:
        """The spans of one verify launch: `eagle.launch` and its phases."""
        phases = packet.phases
        if not phases:
            return
        n = len(phases) + 1
        ids = f"{self._random.getrandbits(128 + 64 * n):0{32 + 16 * n}x}"
        trace, whole, width = ids[:32], ids[32:48], packet.target_hidden_width
        attributes = (
            f'{{"eagle.round": {packet.round}, "eagle.batch_size": {len(packet.requests)}, '
            f'"eagle.draft_nodes": {packet.nodes}, '
            f'"eagle.target_hidden_width": {"null" if width is None else width}, '
            f'"eagle.graph": {_JSON[packet.graph]}}}'
        )
        end = max(stop for _, _, stop in phases)
        rows = [
            (trace, whole, None, "eagle.launch", packet.start_ns, end - packet.start_ns, attributes,
             self._links_of(packet.requests)),
            *((trace, ids[32 + 16 * i : 48 + 16 * i], whole, f"eagle.{name}", start, stop - start, "{}", "[]")
              for i, (name, start, stop) in enumerate(phases, 1)),
        ]  # fmt: skip
        for values, column in zip(self._launches.values(), zip(*rows, strict=True), strict=True):
            values.extend(column)

    def _links_of(self, requests: Sequence[RequestState]) -> str:
        """Links to the requests of a batch, as JSON; the same batch comes again and again."""
        key = tuple(r.seq for r in requests)
        found = self._links.get(key)
        if found is None:
            sampled = [r for r in requests if r.sampled]
            for state in sampled:
                self._identify(state)
            found = self._links[key] = _json_links([(r.trace_id, r.span_id) for r in sampled])
        return found

    def phase(
        self, name: str, start_ns: int, end_ns: int, requests: Sequence[RequestState], attributes: Mapping[str, Any]
    ) -> None:
        """The span of a batch phase outside a launch."""
        links = [Link(self._request_context(r)) for r in requests if r.sampled]
        self._emit(f"eagle.{name}", start_ns, end_ns, attributes, self._context(), links=links)

    def request(self, state: RequestState) -> None:
        """The span of a finished request, the root of its trace."""
        reason = state.finish_reason
        attributes = {
            "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": self._provider,
            "gen_ai.response.id": state.rid, "eagle.request_seq": state.seq, "eagle.request_kind": state.kind,
            "gen_ai.request.temperature": state.temperature, "gen_ai.usage.input_tokens": state.prompt_tokens,
            "gen_ai.usage.output_tokens": state.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": state.cached_tokens,
            "gen_ai.response.finish_reasons": None if reason is None else [reason],
            "eagle.verify_rounds": state.engine_rounds, "eagle.accepted_drafts": state.engine_accepted,
        }  # fmt: skip
        end = state.end_ns or state.start_ns
        self._emit("eagle.request", state.start_ns, end, attributes, self._request_context(state), kind=SpanKind.SERVER)


class ParquetSpanExporter(SpanExporter):
    """An ordinary span exporter: turns finished spans into rows of the `spans` table and hands them to `write`."""

    def __init__(self, write: Callable[[list[dict[str, Any]]], Any]) -> None:
        self._write = write

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write spans; FAILURE if the writer raised."""
        try:
            self._write([span_row(span) for span in spans])
        except Exception:  # noqa: BLE001 - the exporter's contract is a result, not an exception
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS


def span_row(span: ReadableSpan) -> dict[str, Any]:
    """The row of the `spans` table for a finished span."""
    context, start = span.context, span.start_time or 0
    assert context is not None
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_span_id": f"{span.parent.span_id:016x}" if span.parent else None,
        "name": span.name,
        "kind": span.kind.name,
        "start_time_unix_nano": start,
        "duration_time_unix_nano": (span.end_time or start) - start,
        "status_code": span.status.status_code.name,
        "status_message": span.status.description,
        "attributes": json.dumps(dict(span.attributes or {}), default=str),
        "resource_attributes": json.dumps(dict(span.resource.attributes), default=str),
        "scope_name": span.instrumentation_scope.name if span.instrumentation_scope else None,
        "links": _json_links([(link.context.trace_id, link.context.span_id) for link in span.links]),
    }


def _json_links(ids: Sequence[tuple[int, int]]) -> str:
    return "[" + ", ".join(f'{{"trace_id": "{t:032x}", "span_id": "{s:016x}"}}' for t, s in ids) + "]"
