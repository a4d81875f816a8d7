"""What the hooks of a process know of its captured graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from eagletrace.instrumentations.sglang.graph_taps import Taps

# Where `get_is_capture_mode` lives: 0.5.16 and later, and before (to 0.5.13).
CAPTURE_MODE = (
    "sglang.srt.model_executor.runner_utils.capture_mode", "sglang.srt.model_executor.cuda_graph_runner",
)  # fmt: skip


def never() -> bool:
    """Where there is no GPU, no graph is captured."""
    return False


@dataclass(slots=True)
class GraphState:
    """Replays seen, and whose memory the last extend's logits are in."""

    capturing: Callable[[], bool] = never
    extend_logits: torch.Tensor | None = None  # of the last extend, if a graph owns them
    draft_replays: int = 0
    tapped_replays: int = 0
    extend_replays: int = 0
    prefill_replays: int = 0
    widths: set[tuple[int | None, int | None]] = field(default_factory=set[tuple[int | None, int | None]])
    taps: Taps | None = None

    def ran(self, result: Any, logits: torch.Tensor) -> bool:
        """Whether an extend's forward ran from a captured graph, where no module's hooks are called.

        `result` is a ModelRunnerOutput (`can_run_graph`), or a pair with that flag to 0.5.6.
        """
        flag = getattr(result, "can_run_graph", None)
        if flag is None and isinstance(result, tuple):
            flag = cast("tuple[Any, ...]", result)[-1]
        if flag is not True:
            return False
        self.prefill_replays += 1
        self.extend_logits = logits
        return True

    def owned(self, logits: torch.Tensor | None) -> torch.Tensor | None:
        """An extend's logits in memory that no replay will write: a copy if they are the graph's own output.

        Workers that select rows of them (to 0.5.16) have made one already.
        """
        if self.extend_logits is None:
            return logits
        graphs_own, self.extend_logits = self.extend_logits, None
        return logits.clone() if logits is not None and logits is graphs_own else logits


def capture_probe() -> Callable[[], bool]:
    """Tells whether a graph is being captured or warmed up; without a GPU there are none, and it costs nothing."""
    if not torch.cuda.is_available():
        return never
    modules = (sys.modules.get(name) for name in CAPTURE_MODE)
    found = (getattr(module, "get_is_capture_mode", None) for module in modules)
    mode = next((f for f in found if f is not None), never)
    return lambda: torch.cuda.is_current_stream_capturing() or bool(mode())
