"""Plays a server: records through the real recorder until a signal. `python -m tests.report.live_writer DIR RUN_ID`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from eagletrace.record import run_folder
from eagletrace.record.recorder import Recorder
from eagletrace.settings import Settings
from tests.record.packets import chain, state


def main(folder: str, run_id: str, rate: float = 40.0, accept: float = 0.8, hold: str = "") -> None:
    """Launches at this rate; each draft is right with probability `accept`. With `hold`, nothing after the start."""
    process: dict[str, Any] = {
        "host": socket.gethostname(), "pid": os.getpid(), "tp_rank": 0, "dp_rank": None, "pp_rank": 0,
    }  # fmt: skip
    settings = Settings(dir=Path(folder), run_id=run_id, flush_s=0.2)
    facts = {"sglang": "0.5.23", "engine": "sglang"}
    recorder = Recorder(run_folder.create(settings, facts, process), settings, process, {"service.name": "sglang"})
    recorder.start()
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stop.append(received))
    hook = {"engine_version": "0.5.23", "errors": 0, "required": True, "time_unix_nano": time.time_ns()}
    recorder.row("hooks", target="sglang:Scheduler.process_batch_result", status="installed", calls=5, **hook)
    recorder.row("hooks", target="sglang:verify", status="disabled_after_errors", calls=9, **(hook | {"errors": 5}))
    recorder.event("serving")
    rng = np.random.default_rng(0)
    request = state(1, start_ns=time.time_ns())
    recorder.request(request)
    launch = 0
    while not stop:
        time.sleep(1 / rate)
        if hold:
            continue
        launch += 1
        drafts = [7, 8, 9]
        target = [token if rng.random() < accept else 1 for token in drafts] + [5]
        now = time.time_ns() - 10_000_000  # it is over when it is recorded
        phases = [("draft", now, now + 2_000_000), ("verify", now + 2_000_000, now + 10_000_000)]
        recorder.launch(chain(drafts, target, number=launch, requests=[request], phases=phases, start_ns=now))
    recorder.stop()


if __name__ == "__main__":
    rates = [float(text) for text in sys.argv[3:5]]
    main(sys.argv[1], sys.argv[2], *rates, hold="".join(sys.argv[5:6]))
