"""What recording costs beside the alternatives: same server, same requests. `python -m benchmarks.peers`.

In one server, in turn: untraced, the same again, eagletrace at level `tokens`, inline OpenTelemetry spans, viztracer
and torch.profiler. In servers of their own, because they are flags: SGLang's `--enable-trace` and
`--debug-tensor-dump-output-folder`, each against an untraced server before and after it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.live import Live, live
from benchmarks.recording import cost, middle, speed
from benchmarks.statistics import Figure, paired, publish, single
from eagletrace.errors import EagletraceError

INSIDE = ("otel", "viztracer", "torch.profiler")
NAMES = {"otel": "OpenTelemetry spans inline", "tokens": "eagletrace, level tokens"}
BLOCKS, SECONDS = 16, 2.5


def inside(server: Live, batch: int, blocks: int, seconds: float) -> list[Figure]:
    """Peers that can be switched in a running server."""

    def arm(level: str | None, peer: str) -> None:
        server.ask(level=level, pause=level is None)
        server.peer(peer)

    arms: dict[str, Callable[[], None]] = {
        "untraced": partial(arm, None, ""), "control": partial(arm, None, ""), "tokens": partial(arm, "tokens", ""),
        **{peer: partial(arm, None, peer) for peer in INSIDE},
    }  # fmt: skip
    server.load(batch)
    try:
        measured = server.blocks(arms, batch, blocks, seconds, discard_s=0.5)
    finally:
        server.peer("")
        server.idle()
    figures: list[Figure] = []
    for name in ("tokens", *INSIDE):
        label = f"{NAMES.get(name, name)}, {batch} requests"
        figures.append(paired(f"{label}: added to a round", "us", cost(measured, name), cost(measured, "control")))
        figures.append(paired(f"{label}: throughput", "of untraced", speed(measured, name), speed(measured, "control"),
                              neutral=1.0))  # fmt: skip
    return figures


def by_flag(label: str, flags: dict[str, Any], batch: int, pairs: int, seconds: float) -> list[Figure]:
    """`_by_flag`, or why it cannot be measured: a server that does not start with the flag."""
    try:
        return _by_flag(label, flags, batch, pairs, seconds)
    except EagletraceError as error:
        reason = next((ln for ln in reversed(str(error).splitlines()) if "Error" in ln), str(error).splitlines()[0])
        print(f"{label}: {reason.strip()[:300]}")
        return [single(f"{label}, {batch} requests: the server does not start with it here", "", None)]


def _by_flag(label: str, flags: dict[str, Any], batch: int, pairs: int, seconds: float) -> list[Figure]:
    """A peer that is a flag of the server: CPU and wall time of a round by those of untraced servers around it."""

    def measure(given: dict[str, Any]) -> tuple[float, float]:
        with live(flags=given, EAGLETRACE_LEVEL="contract") as server:
            server.ask(pause=True)
            server.load(batch)
            (block,) = server.blocks({"only": lambda: None}, batch, 1, seconds)
            server.idle()
        return middle(block["only"].cpu_ns), middle(block["only"].wall_ns)

    added: list[float] = []
    ratio: list[float] = []
    control: list[float] = []
    before = measure({})
    for _ in range(pairs):
        with_flag, after = measure(flags), measure({})
        added.append((with_flag[0] - (before[0] + after[0]) / 2) / 1e3)
        control.append((after[0] - before[0]) / 1e3)
        ratio.append((before[1] + after[1]) / 2 / with_flag[1])
        before = after
    return [
        paired(f"{label}, {batch} requests: added to a round", "us", added, control),
        single(f"{label}, {batch} requests: throughput", "of untraced", sorted(ratio)[len(ratio) // 2]),
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    with live() as server:
        figures = inside(server, options.batch, options.blocks, options.seconds)
    publish("peers", figures)
    if options.pairs:
        trace = {"enable-trace": True, "otlp-traces-endpoint": "127.0.0.1:9"}  # nobody listens there
        figures += by_flag("SGLang --enable-trace", trace, options.batch, options.pairs, options.seconds)
        with tempfile.TemporaryDirectory(prefix="dump-") as dump:
            figures += by_flag("SGLang --debug-tensor-dump-output-folder", {"debug-tensor-dump-output-folder": dump},
                               options.batch, options.pairs, options.seconds)  # fmt: skip
    publish("peers", figures)


if __name__ == "__main__":
    main()
