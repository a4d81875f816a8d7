"""Runs the command as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environ(**extra: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("EAGLETRACE") and k not in ("NO_COLOR", "COLUMNS")}
    return {**clean, "PYTHONPATH": str(ROOT), **extra}


def eagletrace(*arguments: str | Path, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `eagletrace …`; output as text, exit status in `returncode`."""
    command = [sys.executable, "-m", "eagletrace.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=environ(**extra))
