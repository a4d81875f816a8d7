"""What the recorder's thread takes: `python -m benchmarks.background` (two minutes; the machine must be quiet).

Launches of eight requests, chains of three drafts, are handed to a real recorder as a server hands them over, so many a
second. Of a core: the CPU time of the recorder's thread. And how long a thread that gives up the GIL, as the engine's
does in each operation of torch's, waits until it has it again: with launches, and in turn without any.

Writes `benchmarks/out/background.json`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.statistics import Figure, paired, publish, spread
from benchmarks.traffic import Traffic
from eagletrace.record.recorder import Recorder
from eagletrace.settings import Settings

PROCESS = {"host": "bench", "pid": 1, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
RATES = {40: None, 1000: 5.0}  # launches a second, and the goal in percent of a core
BLOCKS, SECONDS = 6, 5.0
WORK = 300  # steps of Python between two operations that give the GIL up


def waits(recorder: Recorder, traffic: Traffic, rate: int, seconds: float, *, fed: bool) -> np.ndarray:
    """Milliseconds of each wait for the GIL, while a launch is handed over `rate` times a second, or none."""
    launches = [traffic.launch() for _ in range(int(rate * seconds) if fed else 0)]
    found: list[int] = []
    start = time.perf_counter()
    sent = 0
    while (elapsed := time.perf_counter() - start) < seconds:
        while sent < len(launches) and sent < elapsed * rate:
            recorder.launch(launches[sent])
            sent += 1
        begin = time.perf_counter_ns()
        time.sleep(0)
        found.append(time.perf_counter_ns() - begin)
        for _ in range(WORK):
            pass
    return np.array(found) / 1e6


def figures_of(rate: int, blocks: int, seconds: float, goal: float | None) -> list[Figure]:
    """Share of a core, and the longest waits."""
    label = f"{rate:,} launches/s"
    traffic, order = Traffic(), random.Random(0)
    shares: list[float] = []
    tails: dict[str, list[float]] = {"fed": [], "quiet": [], "control": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        recorder = Recorder(Path(name), Settings(), PROCESS, {})
        recorder.start()
        (thread,) = [t for t in threading.enumerate() if t.name == "eagletrace"]
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        waits(recorder, traffic, rate, seconds, fed=True)  # what is done once
        for number in range(blocks):
            arms = list(tails)
            order.shuffle(arms)
            for arm in arms:
                before = time.clock_gettime(clock)
                found = waits(recorder, traffic, rate, seconds, fed=arm == "fed")
                tails[arm].append(float(np.percentile(found, 99.9)))
                if arm == "fed":
                    shares.append(100 * (time.clock_gettime(clock) - before) / seconds)
                time.sleep(1.2)  # what is left is written
            print(f"  {label}: block {number + 1} of {blocks}", flush=True)
        recorder.stop(10)
    longer = [a - b for a, b in zip(tails["fed"], tails["quiet"], strict=True)]
    same = [a - b for a, b in zip(tails["control"], tails["quiet"], strict=True)]
    return [
        spread(f"the recorder's thread, {label}", "% of a core", shares, goal),
        paired(f"longest wait for the GIL (p99.9), {label}", "ms more", longer, same, 1.0),
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    found = [f for rate, goal in RATES.items() for f in figures_of(rate, options.blocks, options.seconds, goal)]
    publish("background", found)


if __name__ == "__main__":
    main()
