"""Registry of span and resource attributes: the names that the recorder writes and that leave by OTLP.

Names of the OpenTelemetry semantic conventions stand where one fits (`gen_ai.*`, `service.*`, `host.*`, `process.*`);
what they do not know is `eagle.*`. Standard library only: the server reads it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One attribute: `type` is OpenTelemetry's name of it, `on` the spans that have it (`resource`: all of them)."""

    name: str
    type: str
    on: str
    doc: str

    @property
    def convention(self) -> str:
        """Where the name comes from."""
        return "eagletrace" if self.name.startswith("eagle") else "OpenTelemetry"


_LAUNCH, _PREFILL, _REQUEST, _RESOURCE = "eagle.launch", "eagle.prefill", "eagle.request", "resource"

_ALL = (
    Attribute("eagle.round", "int", _LAUNCH, "launch counter of verify rounds in the process"),
    Attribute("eagle.batch_size", "int", f"{_LAUNCH}, {_PREFILL}", "requests in the batch"),
    Attribute("eagle.draft_nodes", "int", _LAUNCH, "nodes of the verify tree, root included"),
    Attribute("eagle.target_hidden_width", "int", _LAUNCH, "width of the target's hidden state"),
    Attribute("eagle.graph", "boolean", _LAUNCH, "whether the phase ran from a captured graph"),
    Attribute("eagle.tokens", "int", _PREFILL, "tokens in the batch of a prefill"),
    Attribute("eagle.request_seq", "int", _REQUEST, "number of the request in the run"),
    Attribute("eagle.request_kind", "string", _REQUEST, "user, warmup or health"),
    Attribute("eagle.verify_rounds", "int", _REQUEST, "the engine's own count of verify rounds"),
    Attribute("eagle.accepted_drafts", "int", _REQUEST, "the engine's own count of correct drafts"),
    Attribute("gen_ai.operation.name", "string", _REQUEST, "text_completion: the scheduler sees tokens, not messages"),
    Attribute("gen_ai.provider.name", "string", _REQUEST, "the engine, sglang"),
    Attribute("gen_ai.response.id", "string", _REQUEST, "the engine's request id, which it returns with the answer"),
    Attribute("gen_ai.request.temperature", "double", _REQUEST, "sampling temperature"),
    Attribute("gen_ai.usage.input_tokens", "int", _REQUEST, "length of the prompt"),
    Attribute("gen_ai.usage.output_tokens", "int", _REQUEST, "tokens generated"),
    Attribute("gen_ai.usage.cache_read.input_tokens", "int", _REQUEST, "prompt tokens found in the prefix cache"),
    Attribute("gen_ai.response.finish_reasons", "string[]", _REQUEST, "why the request ended, as the engine says it"),
    Attribute("service.name", "string", _RESOURCE, "sglang, or what OTEL_SERVICE_NAME says"),
    Attribute("service.version", "string", _RESOURCE, "version of the engine"),
    Attribute("service.instance.id", "string", _RESOURCE, "run id, host and process id, joined by '/'"),
    Attribute("host.name", "string", _RESOURCE, "host of the process"),
    Attribute("process.pid", "int", _RESOURCE, "process id"),
    Attribute("telemetry.sdk.language", "string", _RESOURCE, "python"),
    Attribute("telemetry.sdk.name", "string", _RESOURCE, "opentelemetry"),
    Attribute("telemetry.sdk.version", "string", _RESOURCE, "version of the OpenTelemetry SDK"),
    Attribute("eagletrace.version", "string", _RESOURCE, "version of eagletrace"),
    Attribute("eagletrace.run.id", "string", _RESOURCE, "the run's id"),
)

ATTRIBUTES: dict[str, Attribute] = {a.name: a for a in _ALL}
