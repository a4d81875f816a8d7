"""A collector on this machine: receives OTLP over HTTP and parses it with the official protobuf package."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
Span = Any


class Collector:
    """Keeps what it was sent. `status` and `delay_s` say how it answers; a context manager."""

    def __init__(self, status: int = 200, delay_s: float = 0.0) -> None:
        self.status, self.delay_s = status, delay_s
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(collector.delay_s)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = service.ExportTraceServiceRequest()
                request.ParseFromString(body)
                collector.headers.append({k.lower(): v for k, v in self.headers.items()})
                collector.paths.append(self.path)
                if collector.status == 200:
                    collector.requests.append(request)
                answer = service.ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[Span]:
        """Every span that came."""
        return [span for _, _, span in self.received()]

    def received(self) -> list[tuple[Any, Any, Span]]:
        """Resource, scope and span of every span that came."""
        return [
            (resource.resource, scope.scope, span)
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(of: Any) -> dict[str, Any]:
    """Attributes of a span, link or resource as Python values."""
    return {pair.key: _value(pair.value) for pair in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(v) for v in value.array_value.values]
    return getattr(value, kind)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether the condition came true in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
