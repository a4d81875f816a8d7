"""Entry point `opentelemetry_instrumentor`, found by OpenTelemetry's auto-instrumentation; needs EAGLETRACE set."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eagletrace import activate
from eagletrace.settings import is_on


class EagletraceInstrumentor:
    """Duck-typed `BaseInstrumentor`, so that the base install does not need the instrumentation package."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """What it instruments."""
        return ("sglang >= 0.5.3",)

    def instrument(self, **kwargs: Any) -> None:
        """As `eagletrace.instrument()`, if EAGLETRACE is set: installing the package alone changes nothing."""
        if is_on():
            activate.instrument()

    def uninstrument(self, **kwargs: Any) -> None:
        """As `eagletrace.uninstrument()`."""
        activate.uninstrument()
