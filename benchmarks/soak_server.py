"""The real lab server under full load for a long time: its memory does not grow, and the run stays within its bound.

    python -m benchmarks.soak_server --minutes 30

A traced server with a small `EAGLETRACE_MAX_BYTES` serves as many requests as it takes; then an untraced one does the
same for a third of the time, as the control: an engine has a growth of its own. Memory is the scheduler's anonymous
resident memory (`RssAnon`), and growth its slope after warm-up, per verify round of a request. The bound on bytes says
something only once rows had to be dropped, so it is small enough to be reached within minutes.

Prints JSON, a list of figures as `make bench` writes them, and writes it to `benchmarks/out/soak_server.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.pair import prompts
from eagletrace.lab.server import LabServer
from eagletrace.store import open_run

CLIENTS = 8
LENGTHS = (4, 16, 48, 96)  # output tokens of requests, in turn
SAMPLE_S = 2.0
WARM_UP = 1 / 3  # of the time
MAX_BYTES = 16 << 20
SLACK_BYTES = 4 << 20  # what one flush and one merge may add before the bound is enforced
MAX_FILES = 2000
LEAK_BYTES = 48.0  # a round (of one request) whose rows were kept would hold hundreds
CONTROL = 1 / 3  # of the traced server's time
PROBE = "def parse(self, text):\n    "
OUT = Path(__file__).parent / "out" / "soak_server.json"


@dataclass
class Load:
    """Clients that keep the batch full."""

    server: LabServer
    requests: int = 0
    rounds: int = 0
    errors: list[str] = field(default_factory=list[str])
    stop: bool = False

    def run(self, number: int) -> None:
        """One client."""
        texts = prompts(64, number)
        for count in itertools.count():
            if self.stop:
                return
            body = request(texts[count % len(texts)], LENGTHS[(count + number) % len(LENGTHS)])
            try:
                answer = self.server.post("/generate", body)
                if answer.status != 200:
                    raise ValueError(answer.body)
            except Exception as error:  # noqa: BLE001 - the report names it
                self.errors.append(repr(error))
                return
            self.requests += 1
            self.rounds += int(answer.body["meta_info"].get("spec_verify_ct") or 0)


def request(text: str, tokens: int) -> dict[str, Any]:
    """A greedy request."""
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}


@dataclass(frozen=True)
class Sample:
    """One look at the server: seconds since the start, rounds so far, the scheduler's memory, and the run's size."""

    seconds: float
    rounds: int
    memory: int
    threads: int
    descriptors: int
    run_bytes: int
    run_files: int


@dataclass(frozen=True)
class Arm:
    """What one server showed."""

    samples: list[Sample]
    requests: int
    rounds: int
    errors: list[str]
    same_answer: bool
    run: Path | None


def scheduler_of(server: LabServer) -> int:
    """Process id of the server's scheduler."""
    todo = [server.pid]
    while todo:
        pid = todo.pop()
        if b"sglang::scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            todo += [int(p) for p in task.read_text().split()]
    raise LookupError("the server has no scheduler")


def look(start: float, load: Load, pid: int, run: Path | None) -> Sample:
    """Take a sample."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sizes: list[int] = []
    for file in run.rglob("*") if run is not None else ():
        with contextlib.suppress(OSError):  # merged away meanwhile
            if file.is_file():
                sizes.append(file.stat().st_size)
    return Sample(
        round(time.monotonic() - start, 1), load.rounds, int(status["RssAnon"].split()[0]) << 10,
        int(status["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir())), sum(sizes), len(sizes),
    )  # fmt: skip


def serve(folder: Path, seconds: float, max_bytes: int | None, level: str) -> Arm:
    """One arm: traced if `max_bytes` is given."""
    plan = serving(ServeOptions(dir=folder, tracing="on" if max_bytes else "off", level=level if max_bytes else None))
    bound = {"EAGLETRACE_MAX_BYTES": str(max_bytes)} if max_bytes else {}
    with LabServer(plan.engine, plan.flags, {**plan.env, **bound}) as server:
        before = server.post("/generate", request(PROBE, 48)).body["output_ids"]
        run = next((f.parent for f in folder.glob("*/run.json")), None)
        pid, load, start = scheduler_of(server), Load(server), time.monotonic()
        threads = [threading.Thread(target=load.run, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        samples: list[Sample] = []
        while time.monotonic() - start < seconds and not load.errors:
            samples.append(look(start, load, pid, run))
            print(f"\r{folder.name}: {samples[-1]}", end="", file=sys.stderr)
            time.sleep(SAMPLE_S)
        load.stop = True
        for thread in threads:
            thread.join()
        print(file=sys.stderr)
        server.post("/flush_cache", {})
        after = server.post("/generate", request(PROBE, 48)).body["output_ids"]
        time.sleep(2.0)
        server.kill()
    return Arm(samples, load.requests, load.rounds, load.errors, before == after, run)


def growth(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Bytes of memory per round after warm-up: the median of slopes between halves, and a 95 % interval.

    Pairs of samples half of the time apart (Theil-Sen), bootstrapped in blocks because neighbours are alike.
    """
    kept = samples[int(len(samples) * WARM_UP) :]
    half = len(kept) // 2
    slopes = np.array(
        [(b.memory - a.memory) / max(1, b.rounds - a.rounds) for a, b in zip(kept[:half], kept[half:], strict=False)]
    )
    rng, block = np.random.default_rng(0), max(1, len(slopes) // 6)
    starts = rng.integers(0, max(1, len(slopes) - block + 1), (2000, -(-len(slopes) // block)))
    picked = (starts[:, :, None] + np.arange(block)).reshape(2000, -1) % len(slopes)
    low, high = np.percentile(np.median(slopes[picked], axis=1), [2.5, 97.5])
    return float(np.median(slopes)), float(low), float(high)


def figure(name: str, value: float, unit: str, goal: str, holds: bool, **intervals: float | None) -> dict[str, Any]:
    """A figure as `make bench` writes it."""
    keys = ("ci_low", "ci_high", "control_ci_low", "control_ci_high")
    return {
        "name": name, "value": value, "unit": unit, **{k: intervals.get(k) for k in keys}, "goal": goal, "holds": holds,
    }  # fmt: skip


def figures(traced: Arm, control: Arm | None, max_bytes: int) -> list[dict[str, Any]]:
    """What the soak says."""
    value, low, high = growth(traced.samples)
    own = growth(control.samples) if control is not None else (0.0, 0.0, 0.0)
    warm = traced.samples[int(len(traced.samples) * WARM_UP) :]
    size, files = max(s.run_bytes for s in warm), max(s.run_files for s in warm)
    assert traced.run is not None
    with open_run(traced.run) as run:
        readable = run.warnings == []
        detail = run.rows("SELECT count(*) AS n FROM rounds")[0]["n"]
        counted = run.rows("SELECT sum(rounds) AS n FROM totals")[0]["n"]
    return [
        figure("scheduler memory growth", value, "bytes/round", f"at most {LEAK_BYTES:.0f} more than untraced",
               value - own[0] <= LEAK_BYTES, ci_low=low, ci_high=high, control_ci_low=own[1], control_ci_high=own[2]),
        figure("scheduler memory, median after warm-up", statistics.median(s.memory for s in warm) / 2**20, "MiB",
               "reported", True),
        figure("scheduler memory, last less first after warm-up",
               (statistics.median(s.memory for s in warm[-9:]) - statistics.median(s.memory for s in warm[:9])) / 2**20,
               "MiB", "reported", True),
        figure("run folder, largest", size / 2**20, "MiB", f"at most {(max_bytes + SLACK_BYTES) / 2**20:.0f}",
               size <= max_bytes + SLACK_BYTES),
        figure("files, most", files, "files", f"under {MAX_FILES}", files < MAX_FILES),
        figure("open files, last less first", warm[-1].descriptors - warm[0].descriptors, "files", "at most 2",
               warm[-1].descriptors - warm[0].descriptors <= 2),
        figure("requests that failed", len(traced.errors), "requests", "0", not traced.errors),
        figure("verify rounds", traced.rounds, "rounds", "reported", True),
        figure("rounds in totals / by the engine", counted / max(1, traced.rounds), "ratio", "1 (totals are exact)",
               abs(counted - traced.rounds) <= 64),
        figure("rounds in detail that were kept", detail / max(1, traced.rounds), "ratio",
               "below 1: the bound was reached", detail < counted),
        figure("answer after the load is that before it", float(traced.same_answer), "bool", "1", traced.same_answer),
        figure("everything reads", float(readable), "bool", "1", readable),
    ]  # fmt: skip


def main() -> int:
    """Run the soak; 1 if a figure misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES)
    parser.add_argument("--level", default="tokens")
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--samples", type=Path, help="write the samples of both arms here as JSON lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder, seconds = Path(name), options.minutes * 60
        traced = serve(folder / "traced", seconds, options.max_bytes, options.level)
        control = None if options.no_control else serve(folder / "control", seconds * CONTROL, None, options.level)
        found = figures(traced, control, options.max_bytes)
    if options.samples:
        rows = [vars(s) | {"arm": n} for n, a in (("traced", traced), ("control", control)) if a for s in a.samples]
        options.samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=2)
    OUT.write_text(text + "\n")
    print(text)
    return 0 if all(f["holds"] for f in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
