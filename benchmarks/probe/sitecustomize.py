"""Inside a benchmarked server: when each decode round began, and what its threads have used. Switched on by PROBE_OUT.

It wraps `Scheduler.run_batch`, which eagletrace does not touch, so that it costs every arm the same. On SIGUSR2 it
writes what it has seen to PROBE_OUT and forgets it. A file PROBE_OUT.arm names the peer that runs now (`peers.py`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

OUT = os.environ.get("PROBE_OUT")
# Of each round: monotonic ns, CPU ns of the scheduler's thread, requests (0: not a decode), their tokens so far, and ns
# spent in hooks so far (while the arm `timed` runs).
rounds: array[int] = array("q")
FIELDS = 5
threads: list[dict[str, Any]] = []


def look() -> None:
    """Note the CPU time of each of our threads and the process's memory, twenty times a second."""
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        time.sleep(0.05)
        used = {}
        for thread in threading.enumerate():
            if thread.name.startswith("eagletrace") and thread.ident:
                try:
                    used[thread.name] = time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
                except OSError:
                    continue
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
        threads.append({"t": time.monotonic_ns(), "cpu": used, "rss": resident})


def dump(_number: int, _frame: object) -> None:
    """Write what was seen."""
    import json

    assert OUT is not None
    seen, noted = rounds[:], threads[:]
    del rounds[: len(seen)]
    del threads[: len(noted)]
    timed = sys.modules.get("peers")
    taken = {} if timed is None else timed.by_hook
    hooks = {name: sorted(times)[len(times) // 2] for name, times in taken.items()}
    taken.clear()
    found = {"rounds": seen.tolist(), "threads": noted, "hooks": hooks, "pid": os.getpid()}
    Path(OUT + ".part").write_text(json.dumps(found))
    Path(OUT + ".part").rename(OUT)


def watch(module: Any) -> None:
    """Wrap `run_batch`."""
    original = module.Scheduler.run_batch
    clock, used, add = time.monotonic_ns, time.thread_time_ns, rounds.extend
    peers: Any = None
    arm_file = Path(str(OUT) + ".arm")
    state = {"checked": 0}

    def run_batch(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal peers
        now = clock()
        reqs = batch.reqs if batch.forward_mode.is_decode() else ()
        tokens = sum(len(r.output_ids) + len(r.origin_input_ids) for r in reqs)
        add((now, used(), len(reqs), tokens, peers.spent[0] if peers is not None else 0))
        if now - state["checked"] > 100_000_000:
            state["checked"] = now
            if arm_file.exists():
                if peers is None:
                    import peers as loaded

                    peers = loaded
                peers.switch(arm_file.read_text().strip())
        return original(self, batch, *args, **kwargs)

    module.Scheduler.run_batch = run_batch

    init = module.Scheduler.__init__

    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        signal.signal(signal.SIGUSR2, dump)
        threading.Thread(target=look, name="probe", daemon=True).start()
        Path(str(OUT) + ".pid").write_text(str(os.getpid()))

    module.Scheduler.__init__ = built


if OUT and "resource_tracker" not in " ".join(sys.orig_argv):
    import wrapt

    wrapt.register_post_import_hook(watch, "sglang.srt.managers.scheduler")
