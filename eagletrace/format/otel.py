"""Rows of the `spans` table as OpenTelemetry's own objects, and the SDK's exporter that sends them.

Both the server, which sends spans while it serves, and `eagletrace export` use this.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from eagletrace.errors import EagletraceError

COLUMNS = (
    "trace_id", "span_id", "parent_span_id", "name", "kind", "start_time_unix_nano", "duration_time_unix_nano",
    "status_code", "status_message", "attributes", "resource_attributes", "scope_name", "links",
)  # fmt: skip
"""The columns of `spans` that `readable_spans` takes."""

PROTOCOLS = ("http/protobuf", "grpc")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpError(EagletraceError):
    """Spans cannot be sent: no exporter, or no endpoint that could be one."""


def asked_for(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard variables ask for spans by OTLP: OTEL_TRACES_EXPORTER names it, or an endpoint is set."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if named:
        return "otlp" in (name.strip() for name in named.split(","))
    return any(environ.get(name) for name in ENDPOINTS)


def make_exporter(endpoint: str | None = None, environ: Mapping[str, str] = os.environ) -> SpanExporter:
    """The SDK's OTLP exporter. What is not given (endpoint, headers, timeout, certificates) it reads from OTEL_*.

    `endpoint` without a path is that of a collector: `/v1/traces` is added. Raises OtlpError with what to do.
    """
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = (protocol or PROTOCOLS[0]).strip()
    if protocol not in PROTOCOLS:
        raise OtlpError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not one of {', '.join(PROTOCOLS)}")
    for where in (endpoint, *(environ.get(name) for name in ENDPOINTS)):
        if where:
            _check_url(where, protocol)
            break
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # pyright: ignore[reportMissingImports]
                OTLPSpanExporter as GrpcExporter,
            )

            return GrpcExporter(endpoint=endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-grpc" if protocol == "grpc" else "eagletrace[otlp]"
        raise OtlpError(f"OTLP needs a package that is not installed ({error}): pip install '{package}'") from None
    return OTLPSpanExporter(endpoint=None if endpoint is None else with_path(endpoint))


def where_to(environ: Mapping[str, str] = os.environ) -> str:
    """The collector of the variables, or the specification's default."""
    return next(filter(None, (environ.get(name) for name in ENDPOINTS)), "http://localhost:4318")


def with_path(endpoint: str) -> str:
    """The URL that spans are posted to."""
    return endpoint.rstrip("/") + "/v1/traces" if urlsplit(endpoint).path in ("", "/") else endpoint


def _check_url(url: str, protocol: str) -> None:
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        good, parts = False, urlsplit("")
    if protocol == "grpc" and "://" not in url:
        return
    if not good or parts.scheme not in ("http", "https"):
        raise OtlpError(f"{url!r} is no address of a collector: give one such as http://localhost:4318")


def unreachable(url: str, timeout_s: float = 1.0) -> str:
    """Why no connection can be made to the host of a URL; empty if one can."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 4317)
        with socket.create_connection((parts.hostname or "", port), timeout_s):
            return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def readable_spans(columns: Mapping[str, Sequence[Any]], version: str | None = None) -> list[ReadableSpan]:
    """Spans with the ids, times, links, resource and scope of their rows; values that are no span's are left out."""
    return [
        span
        for row in zip(*(columns[name] for name in COLUMNS), strict=True)
        if (span := _span(dict(zip(COLUMNS, row, strict=True)), version)) is not None
    ]


def _span(row: Mapping[str, Any], version: str | None) -> ReadableSpan | None:
    try:
        trace, start = int(row["trace_id"], 16), int(row["start_time_unix_nano"])
        context = SpanContext(trace, int(row["span_id"], 16), False, _SAMPLED)
        if not context.is_valid:
            return None
        parent = row["parent_span_id"]
        kind, status = row["kind"] or "INTERNAL", row["status_code"] or "UNSET"
        return ReadableSpan(
            name=row["name"] or "",
            context=context,
            parent=SpanContext(trace, int(parent, 16), False, _SAMPLED) if parent else None,
            resource=_resource(row["resource_attributes"] or "{}"),
            attributes=_attributes(row["attributes"] or "{}"),
            links=[
                Link(SpanContext(int(link["trace_id"], 16), int(link["span_id"], 16), False, _SAMPLED))
                for link in _json(row["links"] or "[]")
            ],
            kind=SpanKind[kind],
            status=Status(StatusCode[status], row["status_message"] if status == "ERROR" else None),
            start_time=start,
            end_time=start + max(0, int(row["duration_time_unix_nano"] or 0)),
            instrumentation_scope=_scope(row["scope_name"] or "", version),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _json(text: str) -> Any:
    return [] if text == "[]" else json.loads(text)


def _attributes(text: str) -> dict[str, Any]:
    return {} if text == "{}" else {k: v for k, v in json.loads(text).items() if v is not None}


@lru_cache(maxsize=256)
def _resource(text: str) -> Resource:
    return Resource(_attributes(text))


@lru_cache(maxsize=16)
def _scope(name: str, version: str | None) -> InstrumentationScope:
    return InstrumentationScope(name, version)
