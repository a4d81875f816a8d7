"""Taps: what a captured graph computed inside, copied to buffers that outlive its replay.

At replay no Python runs between the draft's steps, and what they computed lies in memory that the next graph uses
again. With `EAGLETRACE_GRAPH_TAPS=1` the copies below are made while the engine captures, become part of the graph
and are made anew by each replay. The buffers are allocated by the runs that warm up a shape, before its capture, and
so outside the graphs' memory pool; a shape whose buffers were not there by then has no taps. One buffer serves all
shapes: each writes its first rows. Nothing here knows the engine.

Shapes: bs requests of the captured shape (padding included), K branches, Vd draft vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

TAP_BYTES = 256 << 20  # of all buffers together: 128 requests and 4 steps of a 128,000-token vocabulary in float32


@dataclass
class Pass:
    """What one pass through the steps of a shape writes, by name; a pass that could not write all has `whole` False."""

    steps: int
    step: int = 0
    views: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    whole: bool = True


@dataclass
class Tapped:
    """What the last replay of a shape left, rows of real requests only; valid until the next replay."""

    logits: list[torch.Tensor]  # [bs * K, Vd] for each step
    positions: list[torch.Tensor]  # [bs * K] for each step
    hidden: torch.Tensor | None  # [bs * K, H], the draft's output of the first step


class Taps:
    """The buffers of one process, and which captured shape writes which rows of them."""

    def __init__(self, limit: int = TAP_BYTES) -> None:
        self.limit = limit
        self.held = 0  # bytes; a buffer is never given up, a graph may write into it
        self._buffers: dict[tuple[str, torch.dtype, tuple[int, ...]], list[torch.Tensor]] = {}
        self._passes: dict[Hashable, Pass] = {}
        self._current: Pass | None = None

    def begin(self, shape: Hashable, steps: int) -> None:
        """A pass of `steps` steps through a shape begins: a warm-up or the capture itself, which counts last."""
        self._current = self._passes[shape] = Pass(steps)

    def end(self) -> None:
        """No pass is under way: nothing is tapped."""
        self._current = None

    def before_step(self, positions: torch.Tensor | None) -> None:
        """Tap the positions of the next step, which the engine advances in place: [bs * K]."""
        current = self._current
        if current is not None and positions is not None:
            self._tap(current, f"positions{current.step}", positions)

    def after_step(self, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        """Tap the step's logits, [bs * K, Vd], and the first step's hidden state, [bs * K, H]."""
        current = self._current
        if current is None:
            return
        if hidden is not None and current.step == 0:
            self._tap(current, "hidden", hidden)
        self._tap(current, f"logits{current.step}", logits)
        current.step += 1

    def give_up(self) -> None:
        """The pass under way leaves nothing to read."""
        if self._current is not None:
            self._current.whole = False
            self._current.views.clear()

    def read(self, shape: Hashable, rows: int) -> Tapped | None:
        """The first `rows` rows of what the last replay of a shape left; None if the shape has no taps."""
        done = self._passes.get(shape)
        if done is None or not done.whole or done.step != done.steps or done is self._current:
            return None
        views = done.views
        if not views or rows > views["logits0"].shape[0]:
            return None
        hidden = views.get("hidden")
        return Tapped(
            [views[f"logits{i}"][:rows] for i in range(done.steps)],
            [views[f"positions{i}"][:rows] for i in range(done.steps) if f"positions{i}" in views],
            None if hidden is None else hidden[:rows],
        )

    def _tap(self, current: Pass, name: str, value: torch.Tensor) -> None:
        if not current.whole:
            return
        buffer = self._buffer(current, name, value)
        if buffer is None:
            self.give_up()
            return
        view = buffer[: value.shape[0]]
        view.copy_(value.detach())
        current.views[name] = view

    def _buffer(self, current: Pass, name: str, value: torch.Tensor) -> torch.Tensor | None:
        """A buffer with enough rows; None if it would be too large, or a graph is being captured already."""
        made = self._buffers.setdefault((name, value.dtype, tuple(value.shape[1:])), [])
        found = next((b for b in made if b.shape[0] >= value.shape[0]), None)
        if found is not None:
            return found
        wanted = value.nbytes * (current.steps - current.step if name.startswith("logits") else 1)
        if self.held + wanted > self.limit or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        made.append(torch.zeros(value.shape, dtype=value.dtype, device=value.device))
        self.held += value.nbytes
        return made[-1]
