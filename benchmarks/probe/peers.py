"""What else could be done, inside the benchmarked server: switched on and off on the scheduler's thread.

- `otel`: spans of OpenTelemetry's own SDK, made inline, with the facts of each request's round that eagletrace records
  (drafts, targets, accepted path; what the draft's logits say is left out, to its advantage), exported in batches to a
  file;
- `viztracer`, `torch.profiler`: started and stopped as their manuals say.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

spent = [0]  # ns in hooks, while `timed` runs
by_hook: dict[str, list[int]] = {}  # the same, of each call
_running: list[Callable[[], None]] = []
_name = ""


def switch(name: str) -> None:
    """Stop the peer that runs and start another; the empty name is none."""
    global _name
    if name == _name:
        return
    while _running:
        _running.pop()()
    _name = name
    if name:
        {"otel": otel, "viztracer": viztracer, "torch.profiler": profiler, "timed": timed}[name]()


def _scratch(name: str) -> str:
    return str(Path(os.environ["PROBE_OUT"]).with_name(name))


def timed() -> None:
    """Not a peer: eagletrace's own hooks under a clock, a call of which takes some tenths of a microsecond."""
    from time import perf_counter_ns as clock

    from eagletrace.instrumentations import patching

    original: Any = patching._call  # pyright: ignore[reportPrivateUsage]

    def call(hook: Any, wrapped: Any, instance: Any, args: Any, kwargs: Any, whole: Any) -> Any:
        begin = clock()
        token = hook.before(instance, args, kwargs)
        before = clock() - begin
        result = wrapped(*whole, **kwargs)
        begin = clock()
        hook.after(token, result, instance, args, kwargs)
        taken = before + clock() - begin
        spent[0] += taken
        by_hook.setdefault(hook.target.name, []).append(taken)
        return result

    patching._call = call  # pyright: ignore[reportPrivateUsage]

    def stop() -> None:
        patching._call = original  # pyright: ignore[reportPrivateUsage]

    _running.append(stop)


def viztracer() -> None:
    """VizTracer with its defaults, on this thread's code; what it holds is thrown away."""
    from viztracer import VizTracer  # pyright: ignore[reportMissingImports] - only where peers are measured

    tracer = VizTracer(verbose=0, tracer_entries=1_000_000)
    tracer.start()

    def stop() -> None:
        tracer.stop()
        tracer.clear()

    _running.append(stop)


def profiler() -> None:
    """torch.profiler on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    session = profile(activities=[ProfilerActivity.CPU])
    session.__enter__()
    _running.append(lambda: session.__exit__(None, None, None))


def otel() -> None:
    """Spans for draft, verify and each request's round."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    from sglang.srt.speculative import eagle_utils, eagle_worker_v2

    provider = TracerProvider()
    out = Path(_scratch("otel.json")).open("w")  # noqa: SIM115 - closed when the peer stops
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=out)))
    tracer = provider.get_tracer("inline")
    places: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        places.append((owner, name, getattr(owner, name)))
        setattr(owner, name, make(getattr(owner, name)))

    def phase(name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> Any:
                with tracer.start_as_current_span(name):
                    return original(*args, **kwargs)

            return timed

        return make

    def verdict(original: Any) -> Any:
        def verify(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            drafted, targets = kwargs["candidates"].tolist(), kwargs["target_predict"].tolist()
            for row, path in enumerate(result[1].tolist()):
                with tracer.start_as_current_span("round") as span:
                    span.set_attribute("row", row)
                    span.set_attribute("draft_tokens", drafted[row])
                    span.set_attribute("target_tokens", targets[row])
                    span.set_attribute("accepted", [n for n in path if n >= 0])
            return result

        return verify

    wrap(eagle_worker_v2.EAGLEWorkerV2, "forward_batch_generation", phase("launch"))
    wrap(eagle_worker_v2.EagleDraftWorker, "draft", phase("draft"))
    wrap(eagle_worker_v2.EAGLEWorkerV2, "verify", phase("verify"))
    wrap(eagle_worker_v2.EagleDraftWorker, "_draft_extend_for_decode", phase("draft_extend"))
    wrap(eagle_utils, "verify_tree_greedy_func", verdict)
    assert trace is not None

    def stop() -> None:
        for owner, name, original in reversed(places):
            setattr(owner, name, original)
        provider.shutdown()
        out.close()

    _running.append(stop)
