"""`make demo`: Kimi-K2.5 served with the fault of the story, traced and diagnosed; then the same models repaired."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.text import Text

from eagletrace.cli.main import main as eagletrace
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import lab_run
from eagletrace.report.console import make_console

ROUNDS = 240
RUNS = Path("eagletrace-runs")
STORY = "kimi-capture-swallowed"  # the aux states never reach the draft, fc is skipped, nothing is logged
REPAIRED = "kimi-healthy"


def show(step: str, text: str) -> None:
    """Say what happens next."""
    console = make_console()
    console.print(Text.assemble("\n", (f"[{step}]", "bold"), f" {text}"), soft_wrap=True)
    sys.stdout.flush()


def serve_and_diagnose(step: str, case: str) -> int:
    """Serve, send requests, diagnose; returns the exit status of `diagnose`."""
    show(
        f"{step}a",
        "starting SGLang 0.5.23 with its KimiK25ForConditionalGeneration (tiny, trained) and an EAGLE-3 draft on the "
        "CPU, EAGLETRACE=1, then sending requests (half a minute)",
    )
    result = lab_run(ServeOptions(fault=case, dir=RUNS), LoadOptions(rounds=ROUNDS))
    length = f"{result.accept_length:.2f}" if result.accept_length is not None else "none"
    print(f"SGLang reports: accept length {length} in {result.rounds} verify rounds. That is all it says.", flush=True)
    show(f"{step}b", f"eagletrace diagnose {result.run}")
    print(flush=True)
    return eagletrace(["diagnose", str(result.run)])


def main() -> int:
    """Run the demo; 0 if the fault was named and the healthy server was found healthy."""
    show(
        "1",
        "a draft whose training metrics are fine; the wrapper around the target's language model swallows the request "
        "for aux hidden states",
    )
    faulty = serve_and_diagnose("1", STORY)
    show("2", "the same draft and target; the wrapper hands the request on to its language model")
    healthy = serve_and_diagnose("2", REPAIRED)
    print()
    if (faulty, healthy) != (1, 0):
        print(f"the demo went wrong: diagnose gave {faulty} and {healthy}, 1 and 0 were due", file=sys.stderr)
        return 1
    show(
        "done", f"runs are in {RUNS}/; try: .venv/bin/eagletrace queries, .venv/bin/eagletrace explain aux.not_captured"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
