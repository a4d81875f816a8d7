"""OpenTelemetry spans built off the hot path from recorded times, and an exporter that writes them to Parquet.

One trace per request; the spans of a batch phase form a trace of their own, linked to the requests' spans.
Attribute names are those of `ATTRIBUTES`; resource names follow the OpenTelemetry conventions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import eagletrace
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

ATTRIBUTES: dict[str, str] = {
    "eagle.round": "launch counter of verify rounds in the process",
    "eagle.batch_size": "requests in the batch",
    "eagle.draft_nodes": "nodes of the verify tree, root included",
    "eagle.request_seq": "number of the request in the run",
    "eagle.request_kind": "user, warmup or health",
    "eagle.prompt_tokens": "length of the prompt",
    "eagle.output_tokens": "tokens generated",
    "eagle.cached_tokens": "prompt tokens found in the prefix cache",
    "eagle.finish_reason": "why the request ended",
    "eagle.tokens": "tokens in the batch of a prefill",
    "eagle.target_hidden_width": "width of the target's hidden state",
    "eagle.graph": "whether the phase ran from a captured graph",
    "gen_ai.request.id": "the engine's request id",
}
SCOPE = InstrumentationScope("eagletrace", eagletrace.__version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanBuilder:
    """Builds `ReadableSpan`s and hands out their rows. Its ids come from a generator of its own, so that the
    engine's random numbers stay as they are."""

    def __init__(self, resource: Mapping[str, Any]) -> None:
        self.resource = Resource(dict(resource))
        self._random = random.Random()
        self._rows: list[dict[str, Any]] = []
        self._exporter = ParquetSpanExporter(self._rows.extend)

    def take(self) -> list[dict[str, Any]]:
        """Rows since the last call."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def _context(self, trace_id: int = 0, span_id: int = 0) -> SpanContext:
        return SpanContext(
            trace_id or self._random.getrandbits(128) or 1,
            span_id or self._random.getrandbits(64) or 1,
            False,
            _SAMPLED,
        )

    def _request_context(self, state: RequestState) -> SpanContext:
        context = self._context(state.trace_id, state.span_id)
        state.trace_id, state.span_id = context.trace_id, context.span_id
        return context

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
        if not packet.phases:
            return
        links = [Link(self._request_context(r)) for r in packet.requests if r.sampled]
        attributes = {
            "eagle.round": packet.round, "eagle.batch_size": len(packet.requests), "eagle.draft_nodes": packet.nodes,
            "eagle.target_hidden_width": packet.target_hidden_width, "eagle.graph": packet.graph,
        }  # fmt: skip
        whole = self._context()
        end = max(end for _, _, end in packet.phases)
        self._emit("eagle.launch", packet.start_ns, end, attributes, whole, links=links)
        for name, start, stop in packet.phases:
            self._emit(f"eagle.{name}", start, stop, {}, self._context(whole.trace_id), parent=whole)

    def phase(
        self, name: str, start_ns: int, end_ns: int, requests: Sequence[RequestState], attributes: Mapping[str, Any]
    ) -> None:
        """The span of a batch phase outside a launch."""
        links = [Link(self._request_context(r)) for r in requests if r.sampled]
        self._emit(f"eagle.{name}", start_ns, end_ns, attributes, self._context(), links=links)

    def request(self, state: RequestState) -> None:
        """The span of a finished request, the root of its trace."""
        attributes = {
            "gen_ai.request.id": state.rid, "eagle.request_seq": state.seq, "eagle.request_kind": state.kind,
            "eagle.prompt_tokens": state.prompt_tokens, "eagle.output_tokens": state.output_tokens,
            "eagle.cached_tokens": state.cached_tokens, "eagle.finish_reason": state.finish_reason,
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
        "links": json.dumps(
            [{"trace_id": f"{k.context.trace_id:032x}", "span_id": f"{k.context.span_id:016x}"} for k in span.links]
        ),
    }
