"""How often a diff of two runs of one configuration calls them different: the lab's healthy pair, served repeatedly.

    python -m benchmarks.diff_alarms --pairs 40 --dir DIR

Each run is a server of its own. Of neighbouring runs half were sent the same prompts, in another order and in batches
of another size, so that timing and batching differ; the other half other prompts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.statistics import publish, single
from eagletrace.diff import diff
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.matrix import in_threads
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.pair import prompts
from eagletrace.lab.run import lab_run

ALARMS = 2
"""Of 40 pairs at the 5 % level."""
PROMPTS, TOKENS = 16, 64


def serve(number: int, folder: Path) -> Path:
    """Run `number`: 2 and 3, 4 and 5, ... share their prompts with each other; 1 and 2, 3 and 4, ... do not."""
    texts = prompts(PROMPTS, seed=number // 2)
    shuffled = random.Random(number)
    shuffled.shuffle(texts)
    load = LoadOptions(prompts=texts, concurrency=shuffled.choice((1, 2, 3, 4)), max_new_tokens=TOKENS)
    result = lab_run(ServeOptions(dir=folder / str(number)), load)
    if result.run is None or result.engine_died:
        raise SystemExit(f"run {number} failed: {result.reason}")
    print(f"run {number}: accept length {result.accept_length:.2f} over {result.rounds} rounds", file=sys.stderr)
    return result.run


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, compare, publish; exit status 1 with more alarms than the level allows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2, help="servers at once (default: 2)")
    parser.add_argument("--dir", type=Path, help="where the runs are kept (default: nowhere)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.dir or Path(scratch)
        runs = in_threads(lambda number: serve(number, folder), range(options.pairs + 1), options.jobs)
        alarms = {True: 0, False: 0}
        for number, (a, b) in enumerate(pairwise(runs)):
            found = diff(a, b)
            if found.verdict != "same":
                alarms[number % 2 == 0] += 1
                print(f"runs {number} and {number + 1} differ: {found.why}", file=sys.stderr)
    total = sum(alarms.values())
    publish("diff_alarms", [
        single(f"pairs of {options.pairs} called different", "pairs", total, ALARMS * options.pairs / 40),
        single("of these, sent the same prompts", "pairs", alarms[True]),
        single("of these, sent other prompts", "pairs", alarms[False]),
    ])  # fmt: skip
    return int(total > ALARMS * options.pairs / 40)


if __name__ == "__main__":
    sys.exit(main())
