"""OpenTelemetry spans built off the hot path from recorded times, and an exporter that writes them to Parquet.

One trace per request; the spans of a batch phase form a trace of their own, linked to the requests' spans.
Attribute names are those of `eagletrace.format.attributes`.
The spans of launches, thousands a second, are written as columns at once; all others pass through the exporter.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.sdk.version import __version__ as SDK_VERSION
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import eagletrace
from eagletrace.record.columns import coded, fixed_text, from_values, joined
from eagletrace.record.requests import RequestState
from eagletrace.record.rounds import RoundPacket

Array = npt.NDArray[Any]
Row = Mapping[str, Any]
SCOPE = InstrumentationScope("eagletrace", eagletrace.__version__)
IDS = ("trace_id", "span_id", "parent_span_id")
TIMES = ("start_time_unix_nano", "duration_time_unix_nano")
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
        self._launches: list[RoundPacket] = []
        self._rows: list[Mapping[str, Any]] = []
        self._exporter = ParquetSpanExporter(self._rows.extend)

    def take(self) -> tuple[dict[str, Any], int]:
        """Columns of the `spans` table since the last call, and their length: those of launches come first."""
        launches, self._launches = self._launches, []
        rows = self._rows[:]
        self._rows.clear()
        flat: list[Any] = [part for packet in launches for phase in packet.phases for part in phase]
        spans = _LaunchSpans.of(launches, flat[1::3], flat[2::3], self._random.randbytes)
        ids = (fixed_text(spans.trace), fixed_text(spans.span), fixed_text(spans.parent, spans.whole))
        times = (spans.start, spans.end - spans.start)
        columns: dict[str, Any] = {
            name: texts.column([row[name] for row in rows])
            for name, texts in self._texts(launches, flat[0::3], spans.whole).items()
        }
        for name, text in zip(IDS, ids, strict=True):
            columns[name] = joined(text, from_values([row[name] for row in rows], text.type))
        for name, time in zip(TIMES, times, strict=True):
            columns[name] = np.append(time, np.array([row[name] for row in rows], time.dtype))
        return columns, len(spans.start) + len(rows)

    def _texts(
        self, launches: Sequence[RoundPacket], phases: Sequence[str], whole: npt.NDArray[np.bool_]
    ) -> dict[str, _Texts]:
        """The other columns, of the spans of launches."""
        count = len(whole)
        name, attributes, links = _Texts("eagle.launch", count), _Texts("{}", count), _Texts("[]", count)
        name.codes[~whole] = [name.code(f"eagle.{phase}") for phase in phases]
        attributes.codes[whole] = [attributes.code(_attributes(packet)) for packet in launches]
        of_batch: dict[int, int] = {}
        for packet in launches:  # the same batch, one list, comes again and again
            batch = id(packet.requests)
            if batch not in of_batch:
                of_batch[batch] = links.code(self._links_of(packet.requests))
        links.codes[whole] = [of_batch[id(packet.requests)] for packet in launches]
        constant = {name: _Texts(value, count) for name, value in self._of_all_launches.items()}
        return {"name": name, "attributes": attributes, "links": links, **constant}

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
        if packet.phases:
            self._launches.append(packet)

    def _links_of(self, requests: Sequence[RequestState]) -> str:
        """Links to the requests of a batch, as JSON."""
        sampled = [r for r in requests if r.sampled]
        for state in sampled:
            self._identify(state)
        return _json_links([(r.trace_id, r.span_id) for r in sampled])

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


class _Texts:
    """A column of text of which little is distinct: `codes` say which text a row has, at first all the `usual` one."""

    def __init__(self, usual: str | None, rows: int) -> None:
        self.codes = np.zeros(rows, np.int32)
        self._texts: dict[str | None, int] = {usual: 0}

    def code(self, text: str | None) -> int:
        """The code of a text."""
        return self._texts.setdefault(text, len(self._texts))

    def column(self, more: Sequence[str | None]) -> Any:
        """The Arrow array, with `more` rows behind."""
        codes = np.append(self.codes, np.array([self.code(text) for text in more], np.int32))
        return coded(codes, list(self._texts))


@dataclass(frozen=True)
class _LaunchSpans:
    """The spans of launches, each launch's own before those of its phases: which are `whole` launches [n], times [n],
    and ids as hexadecimal digits, [n, 32] and [n, 16]; the parent of a whole one means nothing."""

    whole: npt.NDArray[np.bool_]
    start: Array
    end: Array
    trace: npt.NDArray[np.uint8]
    span: npt.NDArray[np.uint8]
    parent: npt.NDArray[np.uint8]

    @staticmethod
    def of(
        launches: Sequence[RoundPacket], starts: Sequence[int], stops: Sequence[int], randbytes: Callable[[int], bytes]
    ) -> _LaunchSpans:
        """`starts` and `stops` are those of all phases, one launch after the other."""
        count = len(launches)
        sizes = np.array([len(packet.phases) + 1 for packet in launches], dtype=np.int64)
        own = np.cumsum(sizes) - sizes
        total = int(sizes.sum())
        whole = np.zeros(total, dtype=np.bool_)
        whole[own] = True
        start, end = np.empty(total, np.int64), np.empty(total, np.int64)
        start[whole], start[~whole] = [packet.start_ns for packet in launches], starts
        end[~whole] = stops
        if count:
            end[whole] = np.maximum.reduceat(end[~whole], own - np.arange(count))
        digits = np.frombuffer(randbytes(16 * count + 8 * total).hex().encode(), np.uint8)
        trace, span = digits[: 32 * count].reshape(count, 32), digits[32 * count :].reshape(total, 16)
        return _LaunchSpans(whole, start, end, trace.repeat(sizes, axis=0), span, span[own].repeat(sizes, axis=0))


def _attributes(packet: RoundPacket) -> str:
    """Attributes of a launch's own span, as JSON."""
    width = packet.target_hidden_width
    return (
        f'{{"eagle.round": {packet.round}, "eagle.batch_size": {len(packet.requests)}, '
        f'"eagle.draft_nodes": {packet.nodes}, '
        f'"eagle.target_hidden_width": {"null" if width is None else width}, '
        f'"eagle.graph": {_JSON[packet.graph]}}}'
    )


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
