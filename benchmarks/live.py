"""A lab server under steady load whose arms take turns: what each costs, measured inside the server.

An arm holds for a window; windows come in blocks that have each arm once, in random order. What is compared are
windows of one block. The probe (`probe/sitecustomize.py`) notes when each round began and the CPU time of the
scheduler's thread, in every arm alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagletrace.cli.ctl import change, wait_for
from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.pair import prompts
from eagletrace.lab.server import EngineDiedError, LabServer

PROBE = Path(__file__).parent / "probe"
PACKAGES = Path(__file__).parents[1] / ".bench-packages"
"""What the peers need, apart from the server's environment and last on its path."""
SETTLE_S = 0.3
NEW_TOKENS = 256
FIELDS = 5  # of a round, as the probe notes them


@dataclass
class Window:
    """What one arm did in one block: per decode round of the full batch."""

    arm: str
    wall_ns: np.ndarray = field(default_factory=lambda: np.empty(0))
    cpu_ns: np.ndarray = field(default_factory=lambda: np.empty(0))
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0))
    hooks_ns: np.ndarray = field(default_factory=lambda: np.empty(0))
    background_share: float = 0.0
    resident: int = 0


class Live:
    """A running server with the probe."""

    def __init__(self, server: LabServer, folder: Path, out: Path) -> None:
        self.server, self.folder, self.out = server, folder, out
        self.pid = int(out.with_name(out.name + ".pid").read_text())
        self._stop = threading.Event()
        self._clients: list[threading.Thread] = []

    @property
    def run(self) -> Path:
        """The run folder."""
        (found,) = {path.parent for path in self.folder.glob("runs/*/run.json")}
        return found

    @property
    def writer(self) -> str:
        """`<host>-<pid>` of the scheduler."""
        (path,) = self.run.glob(f"process-*-{self.pid}.json")
        return path.stem.removeprefix("process-")

    def ask(self, *, level: str | None = None, pause: bool = False) -> None:
        """Change the recording, and wait until it has changed."""
        asked = change(self.run, level=level, sample=None, pause=pause, resume=not pause)
        if not wait_for(self.run, [self.writer], asked):
            raise RuntimeError("the server did not follow the control file")

    def peer(self, name: str) -> None:
        """Ask the probe to run a peer ("" for none)."""
        self.out.with_name(self.out.name + ".arm").write_text(name)
        time.sleep(0.5)

    def load(self, concurrency: int, seed: int = 0) -> None:
        """Keep `concurrency` requests running until `idle`."""
        texts = prompts(64, seed)
        self._stop.clear()

        def client(number: int) -> None:
            sent = number
            while not self._stop.is_set():
                body = {
                    "text": texts[sent % len(texts)],
                    "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
                }
                sent += concurrency
                with contextlib.suppress(EngineDiedError):
                    self.server.post("/generate", body)

        self._clients = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(concurrency)]
        for thread in self._clients:
            thread.start()
        time.sleep(3.0)

    def idle(self) -> None:
        """Stop the load and wait for the running requests."""
        self._stop.set()
        for thread in self._clients:
            thread.join(60)

    def seen(self) -> dict[str, Any]:
        """What the probe has noted since the last call."""
        self.out.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR2)
        deadline = time.monotonic() + 30
        while not self.out.exists():
            if time.monotonic() > deadline:
                raise RuntimeError("the probe did not answer")
            time.sleep(0.02)
        return json.loads(self.out.read_text())

    def blocks(
        self, arms: dict[str, Callable[[], None]], batch: int, count: int, seconds: float, seed: int = 0,
        discard_s: float = SETTLE_S,
    ) -> list[dict[str, Window]]:  # fmt: skip
        """`count` blocks of windows of `seconds`, after `discard_s` for the arm to settle; the load must run."""
        order = random.Random(seed)
        spans: list[list[tuple[str, int, int]]] = []
        self.seen()
        for number in range(count):
            block: list[tuple[str, int, int]] = []
            names = list(arms)
            order.shuffle(names)
            for name in names:
                arms[name]()
                time.sleep(discard_s)
                start = time.monotonic_ns()
                time.sleep(seconds)
                block.append((name, start, time.monotonic_ns()))
            spans.append(block)
            print(f"  block {number + 1} of {count}", flush=True)
        seen = self.seen()
        rounds = np.array(seen["rounds"], dtype=np.int64).reshape(-1, FIELDS)
        return [{name: _window(name, rounds, seen["threads"], batch, a, b) for name, a, b in block} for block in spans]


def _window(
    arm: str, rounds: np.ndarray, threads: Sequence[dict[str, Any]], batch: int, start: int, end: int
) -> Window:
    inside = rounds[(rounds[:, 0] >= start) & (rounds[:, 0] < end)]
    full = (inside[:-1, 2] == batch) & (inside[1:, 2] == batch)
    steps = np.diff(inside, axis=0)[full].astype(float)
    noted = [t for t in threads if start <= t["t"] < end]
    share = 0.0
    if len(noted) > 1:
        elapsed = noted[-1]["t"] - noted[0]["t"]
        share = sum(noted[-1]["cpu"].get(n, 0) - cpu for n, cpu in noted[0]["cpu"].items()) / elapsed
    resident = noted[-1]["rss"] if noted else 0
    return Window(arm, steps[:, 0], steps[:, 1], inside[:-1][full][:, 3].astype(float), steps[:, 4], share, resident)


@contextlib.contextmanager
def live(*, flags: dict[str, Any] | None = None, **env: str) -> Generator[Live]:
    """A traced server with the probe."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        plan = serving(ServeOptions(dir=folder / "runs", extra_flags=flags or {}, extra_env=env))
        out = folder / "probe.json"
        paths = os.pathsep.join([str(PROBE), plan.env["PYTHONPATH"], str(PACKAGES)])
        with LabServer(plan.engine, plan.flags, {**plan.env, "PYTHONPATH": paths, "PROBE_OUT": str(out)}) as server:
            yield Live(server, folder, out)
