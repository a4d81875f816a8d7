"""How long `diagnose`, `report` and `diff` take over runs that the recorder wrote, how much memory, and their size.

    python -m benchmarks.diagnose_speed [--nodes 10_000_000] [--runs 5] [--run FOLDER] [--other FOLDER]

Writes `benchmarks/out/diagnose.json`. Runs are pinned to two cores. The ratio is that of a query over the same rows in
many small files and in one file of each table, in pairs; its control compares the one file with itself. The page that
`report` writes is opened in headless Chromium, where there is one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.make_run import make
from benchmarks.statistics import Figure, median_interval, paired, publish, single

CORES = 2
SECONDS, MIB, RATIO = 3.0, 1024.0, 2.0
DIFF_SECONDS, DIFF_MIB = 10.0, 2048.0
TOKEN_BYTES = 16.0
PAGE_MB, OPENS_SECONDS = 3.0, 2.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VERDICTS = ("rounds", "drafts", "verifies")
ROUND_TABLES = (*VERDICTS, "spans", "hidden")
QUERY = "SELECT depth, count(*) AS nodes, count(*) FILTER (WHERE accepted) AS accepted FROM verifies GROUP BY depth"
Sample = tuple[float, float]  # seconds, MiB


def measure(*arguments: str) -> Sample:
    """Wall time and peak memory of one command, in a process of its own."""
    code = (
        "import os, resource, subprocess, sys, time\n"
        f"os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{CORES}])\n"
        "start = time.perf_counter()\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "seconds = time.perf_counter() - start\n"
        "print(done.returncode, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)\n"
    )
    command = [sys.executable, "-m", "eagletrace.cli", *arguments]
    out = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True).stdout
    status, seconds, mib = out.split()
    if status == "2":
        raise RuntimeError(f"{' '.join(command)} failed")
    return float(seconds), float(mib)


def absolute(name: str, unit: str, values: Sequence[float], goal: float) -> Figure:
    """The median of an absolute figure, with its interval."""
    value, low, high = median_interval(values)
    return Figure(name, value, unit, ci_low=low, ci_high=high, goal=goal, holds=value <= goal)


def cost(what: str, command: Sequence[str], runs: int, seconds: float, mib: float) -> list[Figure]:
    """Time and memory of a command, measured `runs` times."""
    measure(*command)  # once, for the page cache
    samples = [measure(*command) for _ in range(runs)]
    return [
        absolute(f"{what}, time", "s", [s for s, _ in samples], seconds),
        absolute(f"{what}, peak memory", "MiB", [m for _, m in samples], mib),
    ]


def page(run: Path, folder: Path, what: str, runs: int) -> list[Figure]:
    """What the report of a run costs to write, its size, and how long Chromium takes until it has loaded."""
    file = folder / "report.html"
    seconds, mib = measure("report", str(run), "-o", str(file))
    found = [
        single(f"{what}, time to write", "s", seconds),
        single(f"{what}, peak memory", "MiB", mib),
        single(f"{what}, size of the page", "MB", file.stat().st_size / 1e6, PAGE_MB),
    ]
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return found
    from playwright.sync_api import sync_playwright

    loaded = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        opened = list[float]()
        for _ in range(runs):
            tab = started.new_page()
            tab.goto(file.as_uri())
            opened.append(float(tab.evaluate(loaded)) / 1000)
            tab.close()
        started.close()
    return [*found, absolute(f"{what}, time to open", "s", opened, OPENS_SECONDS)]


def disk(run: Path) -> list[Figure]:
    """What a drafted token takes in the files of a run."""
    sizes = {t: sum(file.stat().st_size for file in (run / t).glob("*.parquet")) for t in ROUND_TABLES}
    drafted = sum(pq.read_metadata(file).num_rows for file in (run / "drafts").glob("*.parquet"))
    verdicts = sum(sizes[table] for table in VERDICTS)
    rest = sum(sizes.values()) - verdicts
    unit = "bytes a drafted token"
    return [
        single("on disk: rounds, drafts and verifies of batches of 8", unit, verdicts / drafted, TOKEN_BYTES),
        single("on disk: their spans, and statistics of hidden states", unit, rest / drafted, TOKEN_BYTES),
    ]


def split(run: Path, copy: Path, files: int) -> int:
    """Copy a run with the rows of its per-round tables in about `files` small files; returns how many there are."""
    shutil.copytree(run, copy)
    for table in ROUND_TABLES:
        (source,) = (copy / table).glob("*.parquet")
        rows = pq.read_table(source)
        stem = source.stem.rsplit("-", 2)[0]
        source.unlink()
        size = max(1, -(-rows.num_rows * len(ROUND_TABLES) // files))
        for number, start in enumerate(range(0, rows.num_rows, size)):
            name = f"{stem}-{number:08d}-{number:08d}.parquet"
            pq.write_table(rows.slice(start, size), copy / table / name, compression="zstd")
    return sum(1 for _ in copy.glob("*/*.parquet"))


def compare_files(one: Path, folder: Path, files: int, pairs: int) -> Figure:
    """The cost of a query over many small files against one file, the same rows; arms in random order."""
    many = folder / "many"
    count = split(one, many, files)
    rng, ratios, control = random.Random(0), list[float](), list[float]()
    for _ in range(pairs):
        arms = {"many": many, "one": one, "again": one}
        seconds = {a: measure("query", str(arms[a]), "--sql", QUERY)[0] for a in rng.sample(list(arms), 3)}
        ratios.append(seconds["many"] / seconds["one"])
        control.append(seconds["again"] / seconds["one"])
    name = f"a query over a run of {count} small files against one file of each table"
    return paired(name, "ratio", ratios, control, RATIO, neutral=1.0)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--run", type=Path, help="a run written before")
    parser.add_argument("--other", type=Path, help="the second one for diff, too")
    parser.add_argument("--files", type=int, default=2_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="eagletrace-bench-"))
    try:
        run = options.run or make(folder, options.nodes)
        other = options.other or make(folder / "other", options.nodes, seed=1)
        of = f"{options.nodes:_} verified nodes"
        figures = [
            *cost(f"diagnose of {of}", ("diagnose", str(run), "--json"), options.runs, SECONDS, MIB),
            *cost(
                f"diff of two runs of {of}",
                ("diff", str(run), str(other), "--json"),
                options.runs,
                DIFF_SECONDS,
                DIFF_MIB,
            ),
            *page(run, folder, f"report of {of}", options.runs),
            *disk(run),
            compare_files(run, folder, options.files, options.runs),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    publish("diagnose", figures)


if __name__ == "__main__":
    main()
