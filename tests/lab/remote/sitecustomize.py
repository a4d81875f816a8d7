"""On SIGUSR2 a server process calls the function of `in_server` that `$REMOTE_DIR/call.json` names. For tests only.

What it returned (or how it failed) is written to `$REMOTE_DIR/answer-<number>.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def answer(_number: int, _frame: object) -> None:
    """Call the function and write its result; a file appears whole."""
    import in_server  # pyright: ignore[reportMissingImports]

    folder = Path(os.environ["REMOTE_DIR"])
    call = json.loads((folder / "call.json").read_text())
    try:
        result: dict[str, Any] = {"value": getattr(in_server, call["function"])(*call["arguments"])}
    except Exception as error:  # noqa: BLE001 - the test is told
        result = {"error": f"{type(error).__name__}: {error}"}
    path = folder / f"answer-{call['number']}.json"
    path.with_suffix(".part").write_text(json.dumps(result, default=str))
    path.with_suffix(".part").rename(path)


if os.environ.get("REMOTE_DIR") and not any("resource_tracker" in part for part in sys.orig_argv):
    import in_server  # pyright: ignore[reportMissingImports]

    signal.signal(signal.SIGUSR2, answer)
    in_server.at_start()
