"""Sends the spans of a recorded run to an OpenTelemetry collector, as they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from eagletrace.format.otel import COLUMNS, OtlpError, readable_spans, unreachable
from eagletrace.format.otel_log import Reason
from eagletrace.store import Run

BATCH = 512  # spans of one request, the SDK's own default
SQL = f"SELECT {', '.join(COLUMNS)} FROM all_ranks.spans"


@dataclass
class Sent:
    """What became of the spans: `invalid` have no valid id or time, and no collector would take them."""

    spans: int = 0
    invalid: int = 0


def count_spans(run: Run) -> int:
    """Spans of the run, all ranks."""
    return int(run.execute("SELECT count(*) FROM all_ranks.spans")[0][0])


def send(run: Run, exporter: SpanExporter, where: str, progress: Callable[[int], None] | None = None) -> Sent:
    """Send every span of the run; OtlpError when the collector does not take them."""
    sent = Sent()
    with Reason() as reason:
        try:
            for columns in _batches(run):
                spans = readable_spans(columns, run.info.raw.get("eagletrace"))
                if spans and exporter.export(spans) is not SpanExportResult.SUCCESS:
                    why = reason.text or unreachable(where) or "no answer in time"
                    after = f", after {sent.spans:,} spans that it took" if sent.spans else ""
                    raise OtlpError(f"{where} does not take the spans{after}: {why}")
                rows = len(columns["name"])
                sent.spans += len(spans)
                sent.invalid += rows - len(spans)
                if progress is not None:
                    progress(rows)
        finally:
            exporter.shutdown()
    return sent


def _batches(run: Run) -> Iterator[dict[str, list[Any]]]:
    for batch in run.batches(SQL):
        for start in range(0, batch.num_rows, BATCH):
            part = batch.slice(start, BATCH)
            yield {name: part.column(name).to_pylist() for name in COLUMNS}
