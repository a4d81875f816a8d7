"""Writes docs/benchmarks.md from what the benchmarks have left in `benchmarks/out`: `python -m benchmarks.page`.

Benchmarks that were not run since keep their sections.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.statistics import OUT, number, span

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BENCHMARKS = ("recording", "background", "peers", "instructions", "diagnose", "check", "replay", "diff_alarms")
HEAD = """# What recording costs

Written by `make bench`. A figure with arms is the median of paired differences, with a bootstrap 95 % interval: windows
of one live lab server (SGLang on the CPU), in random order within each block. `control` is the same for an arm that
differs in nothing. Where it does not cover zero, or is wider than the goal, nothing was measured: `-`. Below each table
are the pairs behind it.

*added to a round* is CPU time of the scheduler's thread, from the differences of whole rounds of 15 to 40 ms; *in the
hooks of a round* is the time by a clock around each wrapper less the engine's function, and less the clock's own part.
Between two rounds the model's work empties the processor's caches: the same hooks take half of that in a tight loop. A
plain recorder, which turns ten small tensors into lists right after the verdict and keeps them, is a measure of the
machine. Goals in microseconds were set where a round takes 11 ms with one request and 21 ms with eight; as a share of
the round they hold on machines of any speed. *Longest delay* compares the longest of whole rounds, which other loads
of the machine reach too; what can delay a round is its hooks, whose longest is there as well, and waiting for the GIL
while the recorder's thread has it (*background*).
"""


def table(figures: list[dict[str, Any]]) -> list[str]:
    """The table of one benchmark."""
    lines = ["| figure | value | 95 % interval | control | goal | holds |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for f in figures:
        control = span(f["control_ci_low"], f["control_ci_high"])
        cells = [f["name"], f"{number(f['value'])} {f['unit']}", span(f["ci_low"], f["ci_high"]), control,
                 number(f["goal"]), {True: "yes", False: "no", None: "-"}[f["holds"]]]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def machine() -> str:
    """This machine, in a few words."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())  # fmt: skip
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}"


def section(name: str, out: Path) -> str:
    """What one benchmark has left: where and when, its figures, and every pair behind them."""
    path, pairs = out / f"{name}.json", out / "pairs" / f"{name}.json"
    day = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).date()
    lines = [f"## {name}", "", f"Measured on {day}, {machine()}.", "", *table(json.loads(path.read_text())), ""]
    found: dict[str, list[float]] = json.loads(pairs.read_text()) if pairs.exists() else {}
    lines += [f"- {figure}: {', '.join(number(p) for p in behind)}" for figure, behind in found.items()]
    return "\n".join(lines).rstrip() + "\n"


def page(before: str, out: Path) -> str:
    """The page: benchmarks that were run here are new, the others stay as they were."""
    kept = {part.split("\n", 1)[0]: "## " + part.rstrip() + "\n" for part in before.split("\n## ")[1:]}
    new = {name: section(name, out) for name in BENCHMARKS if (out / f"{name}.json").exists()}
    sections = [new[name] if name in new else kept[name] for name in BENCHMARKS if name in new or name in kept]
    return "\n".join([HEAD, *sections])


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text() if PAGE.exists() else "", OUT))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
