"""What else could be done, inside the benchmarked server: switched on and off on the scheduler's thread.

- `otel`: spans of OpenTelemetry's own SDK, made inline, with the facts of each request's round that eagletrace records
  (drafts, targets, accepted path; what the draft's logits say is left out, to its advantage), exported in batches to a
  file;
- `plain`: not a tool: the least that a recorder of ten small tensors can do, as a measure of this machine;
- `viztracer`, `torch.profiler`: started and stopped as their manuals say.
"""

from __future__ import annotations

import os
from collections import deque
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
        {"otel": otel, "plain": plain, "viztracer": viztracer, "torch.profiler": profiler, "timed": timed}[name]()


def _scratch(name: str) -> str:
    return str(Path(os.environ["PROBE_OUT"]).with_name(name))


def timed() -> None:
    """Not a peer: eagletrace's own hooks under a clock, their wrappers included.

    Each wrapper is called by one clock and calls the engine's function by another: what lies between is ours. The
    clocks' own part of that is measured once a round, where nothing lies between, and its median is taken off.
    """
    from sglang.srt.managers import scheduler

    from eagletrace import activate

    attachment: Any = activate._state["attachment"]  # pyright: ignore[reportPrivateUsage]
    with attachment._lock:
        patches = [attachment.hooks.patches[name] for name in attachment.hooks._standing]
    undos = [_clocked(p, p.hook.target.name) for p in patches if hasattr(p.wrapper, "__closure__")]
    undos.append(_clocked_nothing(scheduler.Scheduler, "get_next_batch_to_run"))
    fusion = attachment.session.fusion
    if fusion is not None and "forward" in vars(attachment.session.fc):
        undos.append(_clocked_module(attachment.session.fc))

    def stop() -> None:
        for undo in undos:
            undo()

    _running.append(stop)


def plain() -> None:
    """Ten small tensors of each round as lists, under a clock: the eight of a verdict, two of them twice."""
    from time import perf_counter_ns as clock

    from sglang.srt.speculative import eagle_utils

    kept: deque[list[Any]] = deque(maxlen=1000)
    original: Any = eagle_utils.verify_tree_greedy_func
    twice = ("candidates", "target_predict")

    def verdict(**tensors: Any) -> Any:
        result = original(**tensors)
        begin = clock()
        found = [value.tolist() for name, value in tensors.items() if name != "topk"]
        found += [tensors[name].tolist() for name in twice]
        kept.append(found)
        spent[0] += clock() - begin
        return result

    eagle_utils.verify_tree_greedy_func = verdict

    def stop() -> None:
        eagle_utils.verify_tree_greedy_func = original

    _running.append(stop)


_empty = [0]  # ns of the clocks' own, by which a clocked call is longer
_within = [0]  # ns in the engine's functions called by wrappers, of the call in progress


def clocks(wrapper: Any, name: str) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """A clock around a wrapper, and what makes one of the function that it calls."""
    from time import perf_counter_ns as clock

    def inner(original: Any) -> Any:
        def engine(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                _within[0] += clock() - begin

        return engine

    def outer(*args: Any, **kwargs: Any) -> Any:
        before, _within[0] = _within[0], 0
        begin = clock()
        try:
            return wrapper(*args, **kwargs)
        finally:
            own = clock() - begin - _within[0]
            _within[0] = before
            by_hook.setdefault(name, []).append(own)
            if name:
                spent[0] += own - _empty[0]
            else:
                _empty[0] += 10 if own > _empty[0] else -10  # towards the median

    return outer, inner


def _clocked(patch: Any, name: str) -> Callable[[], None]:
    outer, inner = clocks(patch.wrapper, name)
    cell, wrapper = _original(patch.wrapper), patch.wrapper
    original, cell.cell_contents = cell.cell_contents, inner(cell.cell_contents)
    _stand(patch, outer)

    def undo() -> None:
        cell.cell_contents = original
        _stand(patch, wrapper)

    return undo


def _clocked_nothing(owner: Any, attribute: str) -> Callable[[], None]:
    original = getattr(owner, attribute)
    outer, _ = clocks(clocks(original, "")[1](original), "")
    setattr(owner, attribute, outer)

    def undo() -> None:
        setattr(owner, attribute, original)

    return undo


def _original(wrapper: Any) -> Any:
    """Where a wrapper keeps the engine's function."""
    return dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__, strict=True))["original"]


def _stand(patch: Any, function: Any) -> None:
    """Put a function where a patch's wrapper stands."""
    for place in patch.places:
        if vars(place.owner).get(place.attribute) is patch.wrapper:
            setattr(place.owner, place.attribute, function)
    patch.wrapper = function


def _clocked_module(module: Any) -> Callable[[], None]:
    wrapper = module.forward
    outer, inner = clocks(wrapper, "fc")
    cell = _original(wrapper)
    original, cell.cell_contents = cell.cell_contents, inner(cell.cell_contents)
    module.forward = outer

    def undo() -> None:
        cell.cell_contents = original
        module.forward = wrapper

    return undo


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
