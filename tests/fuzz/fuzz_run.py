"""Reads damaged runs for as long as it is let: `make fuzz`, or `python tests/fuzz/fuzz_run.py -max_total_time=60`.

Needs atheris, which is no dependency. The bytes that it gives say which file of a small run is changed, and how: cut,
overwritten from a place on, or replaced. Anything but a result or an error of ours is a finding; atheris writes the
bytes that led to it to `crash-*`, and `python tests/fuzz/fuzz_run.py crash-…` repeats it.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

try:
    atheris: Any = importlib.import_module("atheris")
except ImportError:
    print("atheris is not installed: nothing was fuzzed")
    sys.exit(0)

with atheris.instrument_imports(include=["eagletrace.store", "eagletrace.diagnose"]):
    from eagletrace.diagnose import diagnose
    from eagletrace.errors import EagletraceError
    from eagletrace.store import files as store_files
    from eagletrace.store import open_run
    from eagletrace.store.summary import summarize_runs

from tests.store.test_hostile_folder import full_run

DIAGNOSE_EVERY = 8  # a diagnosis takes ten times as long as reading all rows
PLACE = Path(tempfile.mkdtemp(prefix="eagletrace-fuzz-"))
WHOLE = full_run(PLACE / "whole")
FILES = sorted(p.relative_to(WHOLE) for p in WHOLE.rglob("*") if p.is_file())


def one_input(data: bytes) -> None:
    """Change one file as `data` says and read the run."""
    given = atheris.FuzzedDataProvider(data)
    name = FILES[given.ConsumeIntInRange(0, len(FILES) - 1)]
    how = given.ConsumeIntInRange(0, 2)
    store_files.LARGE_FILE_BYTES = 1 if given.ConsumeBool() else 1 << 30
    thorough = given.ConsumeIntInRange(1, DIAGNOSE_EVERY) == 1
    content = (WHOLE / name).read_bytes()
    at = given.ConsumeIntInRange(0, len(content))
    new = given.ConsumeBytes(4_096)
    changed = (content[:at], content[:at] + new + content[at + len(new) :], new)[how]
    run = PLACE / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(WHOLE, run)
    (run / name).write_bytes(changed)
    try:
        summarize_runs(run)
        with open_run(run) as opened:
            opened.query("SELECT * FROM output_tokens").rows()
            opened.query("SELECT * FROM all_ranks.events").rows()
            if thorough:
                diagnose(opened).to_json()
    except EagletraceError:
        pass


def main() -> None:
    """Fuzz until libFuzzer's own limits end it."""
    try:
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)


if __name__ == "__main__":
    main()
