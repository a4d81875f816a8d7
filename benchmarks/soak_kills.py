"""Kills writers at random moments, many of them while they merge, and looks whether any row was lost or doubled.

    python -m benchmarks.soak_kills --kills 200

Several processes record into one run folder at once; each is killed with SIGKILL after a random time, and another one
takes its place. After every few kills each row that was older than `EAGLETRACE_FLUSH_S` plus a second is there once and
nothing is unreadable. At the end `repair` leaves no temporary, and still each row is there once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.traffic import Traffic
from eagletrace.format import TABLES
from eagletrace.record import merge as merging
from eagletrace.record import run_folder
from eagletrace.record import writer as writing
from eagletrace.record.files import file_at, names_by_writer, split_covered
from eagletrace.record.recorder import Recorder
from eagletrace.record.repair import repair
from eagletrace.settings import Settings

FLUSH_S = 0.1
GRACE_S = 1.0  # more where the machine has less time for each process than they ask for
LAUNCH_S = 0.005  # between two launches of a writer
LIFE_S = (0.3, 2.0)  # and as long as rows may wait
WRITERS = 4
LOOK_EVERY = 10  # kills, between two looks at everything that all of them wrote
BATCH, NODES = 2, 4
NOTE = struct.Struct("qd")  # number of the launch, when it was handed over
ROWS = {"rounds": BATCH, "drafts": BATCH * (NODES - 1), "verifies": BATCH * NODES, "events": 1}


def record(folder: Path, seed: int, notes: int) -> None:
    """What one writer does until it is killed: a launch and an event every few milliseconds."""
    rng = random.Random(seed)
    settings = Settings(dir=folder.parent, run_id=folder.name, flush_s=FLUSH_S)
    process = {"host": socket.gethostname(), "pid": os.getpid(), "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
    if rng.random() < 0.5:
        _kill_while_merging(rng)
    recorder = Recorder(run_folder.create(settings, {}, process), settings, process, {"service.name": "soak"})
    recorder.start()
    traffic = Traffic(BATCH, NODES - 1, seed)
    while True:
        recorder.launch(traffic.launch())
        recorder.row("events", time_unix_nano=time.time_ns(), kind="control", detail={"number": traffic.round})
        os.write(notes, NOTE.pack(traffic.round, time.monotonic()))
        time.sleep(LAUNCH_S)


def _kill_while_merging(rng: random.Random) -> None:
    """Kill this process a random moment after a random merge has begun: while it reads, writes, renames or unlinks."""
    merge_into, left = merging.merge_into, [rng.randrange(4)]

    def watched(*args: Any) -> Iterator[None]:
        left[0] -= 1
        if left[0] < 0:
            moment = rng.random() * 0.015
            threading.Thread(target=lambda: (time.sleep(moment), os.kill(os.getpid(), signal.SIGKILL))).start()
        yield from merge_into(*args)

    writing.merge_into = watched


@dataclass
class Writer:
    """One process that records, and what it said of the launches that it handed over."""

    pid: int
    notes: int
    dies_at: float
    handed_over: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    buffer: bytes = b""

    def read(self) -> None:
        """Read what it has said so far."""
        while select.select([self.notes], [], [], 0)[0]:
            data = os.read(self.notes, 1 << 16)
            if not data:
                return
            self.buffer += data
            whole = len(self.buffer) // NOTE.size * NOTE.size
            self.handed_over += NOTE.iter_unpack(self.buffer[:whole])
            self.buffer = self.buffer[whole:]

    def old(self, grace_s: float) -> int:
        """The newest launch that must be on disk: it lived at least until it handed the last one over."""
        alive = self.handed_over[-1][1] if self.handed_over else 0.0
        return max((n for n, when in self.handed_over if when < alive - FLUSH_S - grace_s), default=0)


def spawn(folder: Path, seed: int, life_s: float) -> Writer:
    """Fork a writer."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            record(folder, seed, write_end)
        except BaseException as error:  # noqa: BLE001 - a fork must never return into its parent's code
            print(f"a writer failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(write_end)
    return Writer(pid, read_end, time.monotonic() + life_s)


def counts(folder: Path, table: str) -> tuple[Counter[tuple[int, int]], list[str]]:
    """Rows by process and launch, read as any reader would: closed files that none of the same writer covers."""
    found: Counter[tuple[int, int]] = Counter()
    for _ in range(200):  # live writers merge meanwhile
        found.clear()
        try:
            listing = names_by_writer(folder / table)
            if listing != names_by_writer(folder / table):  # a listing is not atomic
                continue
            for names in listing.values():
                paths = [folder / table / name for name in names if not name.endswith(".tmp")]
                files = [file for path in paths if (file := file_at(path))]
                if len(files) < len(paths):
                    raise FileNotFoundError(folder / table)
                for file in split_covered(files)[0]:
                    found.update(_numbers(file.path, table))
        except FileNotFoundError:
            continue
        except (OSError, pa.ArrowException) as error:
            return found, [f"{table}: unreadable: {error}"]
        return found, []
    raise RuntimeError("the folder never stood still")


def _numbers(path: Path, table: str) -> Iterator[tuple[int, int]]:
    columns = ["pid", "round"] if table != "events" else ["pid", "kind", "detail"]
    rows = pq.read_table(path, columns=columns, use_threads=False).to_pylist()
    for row in rows:
        if table != "events":
            yield row["pid"], row["round"]
        elif row["kind"] == "control":
            yield row["pid"], json.loads(row["detail"])["number"]


def wrong(folder: Path, due: dict[int, int]) -> list[str]:
    """What is not as it must be; `due` has, by process, the newest launch whose rows must all be there."""
    problems: list[str] = []
    for table, each in ROWS.items():
        found, unreadable = counts(folder, table)
        problems += unreadable
        problems += [f"{table}: launch {n} of {pid}: {rows} rows" for (pid, n), rows in found.items() if rows != each]
        for pid, newest in due.items():
            lost = [n for n in range(1, newest + 1) if (pid, n) not in found]
            if lost:
                problems.append(f"{table}: launches {lost[0]} to {lost[-1]} of {pid}, {len(lost)} in all, are lost")
    return problems


def soak(folder: Path, kills: int, seed: int, grace_s: float = GRACE_S) -> dict[str, Any]:
    """Kill `kills` writers; returns what was seen."""
    rng = random.Random(seed)
    started = 0
    writers: list[Writer] = []
    due: dict[int, int] = {}
    problems: list[str] = []
    temporaries = most_files = looked_at = 0
    while len(due) < kills:
        while len(writers) < WRITERS and started < kills:
            started += 1
            writers.append(spawn(folder, rng.randrange(1 << 30), grace_s + rng.uniform(*LIFE_S)))
        for writer in writers:
            writer.read()
        now = time.monotonic()
        dead = [w for w in writers if _is_over(w, now)]
        for writer in dead:
            writers.remove(writer)
            writer.read()
            os.close(writer.notes)
            due[writer.pid] = writer.old(grace_s)
        if dead and len(due) - looked_at >= LOOK_EVERY:
            looked_at = len(due)
            problems += [p for p in wrong(folder, due) if p not in problems]
        temporaries += len(dead) and sum(1 for _ in folder.glob("*/*.tmp"))
        most_files = max(most_files, sum(1 for _ in folder.rglob("*")) if dead else 0)
        time.sleep(0.02)
    before = {table: counts(folder, table)[0] for table in ROWS}
    report = repair(folder)
    problems += [f"after repair: {p}" for p in wrong(folder, due)]
    problems += [f"repair changed {t}" for t in ROWS if counts(folder, t)[0] != before[t]]
    problems += [f"repair left {path}" for path in folder.rglob("*.tmp")]
    files = {table: len(list((folder / table).glob("*.parquet"))) for table in TABLES if (folder / table).is_dir()}
    return {
        "kills": len(due), "launches_due": sum(due.values()), "temporaries_seen": temporaries,
        "most_files": most_files, "files_after_repair": sum(files.values()), "repair": report, "problems": problems,
    }  # fmt: skip


def _is_over(writer: Writer, now: float) -> bool:
    """Whether a writer is dead: by its own hand, or now by ours."""
    if os.waitpid(writer.pid, os.WNOHANG)[0]:
        return True
    if now < writer.dies_at:
        return False
    os.kill(writer.pid, signal.SIGKILL)
    os.waitpid(writer.pid, 0)
    return True


def main() -> int:
    """Print one JSON object; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--grace-s", type=float, default=GRACE_S, help="seconds beyond EAGLETRACE_FLUSH_S")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as folder:
        result = {"seed": seed, **soak(Path(folder) / "run", options.kills, seed, options.grace_s)}
    print(json.dumps(result, indent=2, default=str))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
