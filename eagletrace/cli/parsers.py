"""What commands share: the type of a parser's commands."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]

RUN_HELP = "run folder, or trace folder (then its newest run); or a run of a data set, by path or URL"
