"""Instructions of a round's hooks, by callgrind: a gate that no other load of the machine can move.

`python -m benchmarks.instructions` counts, compares with `benchmarks/instructions.json` (of the last release) and
fails if a count has grown by more than `SLACK`; `--accept` writes the new counts there. What is counted is
`hot_path.Round`, the stand-in engine's own instructions included, at level `tokens` with one request and with eight.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.statistics import Figure, publish

KNOWN = Path(__file__).parent / "instructions.json"
CASES = [("tokens", batch) for batch in (1, 8)]  # at level contract no hook runs in a round
ROUNDS = 200
SLACK = 0.03


def count(level: str, batch: int) -> int:
    """Instructions of one round."""
    command = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null", sys.executable, "-m",
        "benchmarks.instructions", "--inside", level, str(batch),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise SystemExit(f"callgrind gave no count for {level}, {batch}:\n{done.stderr[-2000:]}")
    return int(found[1]) // ROUNDS


def inside(level: str, batch: int) -> None:
    """What callgrind runs: it counts from here on."""
    from benchmarks.hot_path import Round, Sink

    one = Round(Sink(level), batch, level)
    one.settle()
    switch = ["callgrind_control", "-i"]
    subprocess.run([*switch, "on", str(os.getpid())], check=True, capture_output=True)
    for _ in range(ROUNDS):
        one()
    os._exit(0)


def main() -> int:
    """Count, compare and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true", help="these are the counts of this release")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside[0], int(options.inside[1]))
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing was counted", file=sys.stderr)
        return 2
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    figures: list[Figure] = []
    counts: dict[str, int] = {}
    for level, batch in CASES:
        name = f"{level}, {batch} request{'s' if batch > 1 else ''}"
        counts[name] = value = count(level, batch)
        goal = known.get(name)
        limit = None if goal is None else goal * (1 + SLACK)
        holds = None if limit is None else value <= limit
        figures.append(Figure(name, value, "instructions a round", goal=limit, holds=holds))
    publish("instructions", figures)
    if options.accept:
        KNOWN.write_text(json.dumps(counts, indent=1) + "\n")
    return 1 if any(f.holds is False for f in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
