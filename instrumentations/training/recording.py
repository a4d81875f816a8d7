"""`record_training`: the context manager, its hooks and their guards."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from eagletrace.errors import EagletraceError
from eagletrace.instrumentations.patching import MAX_ERRORS
from eagletrace.instrumentations.training.output import Output
from eagletrace.instrumentations.training.parts import Parts, config_of, find_parts, vocab_size
from eagletrace.instrumentations.training.steps import Seen, read_depth, read_given, returned

logger = logging.getLogger("eagletrace")
POSITIONS = 20_000  # anchors whose rows are kept by default; some megabytes
NO_STEP = (
    "accuracy is not recorded: no module of the model is called with hidden_states and target (or "
    "verifier_last_hidden_states); give the model that the trainer calls, not the draft inside it"
)
NO_DRAFTS = (
    "accuracy is not recorded: the step runs compiled and returns no drafts; validate with the model not compiled"
)
NOTHING_SEEN = "no validation step was seen: call the model in eval mode, within the `with` block"


def record_training(
    model: nn.Module,
    *,
    dir: str | os.PathLike[str] | None = None,
    target: str | os.PathLike[str] | None = None,
    positions: int = POSITIONS,
) -> TrainingRecording:
    """Record what an EAGLE-3 draft does in a validation step: `with record_training(model, target=...): validate()`.

    `model` is what the trainer calls, wrapped or not. `dir` is where the run's folder is made (default: that of
    EAGLETRACE_DIR), `target` the target's folder, whose embedding and head the draft's are compared with, and
    `positions` how many positions have rows; the totals count all. Forwards in train mode are not looked at.

    Nothing that goes wrong here reaches the trainer: `problem` of the recording says what it was, and so does the log.
    """
    return TrainingRecording(model, dir, target, positions)


class TrainingRecording:
    """One recording. `path` is the run's folder, None where none could be made; `problem` what was not recorded."""

    def __init__(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str] | None,
        target: str | os.PathLike[str] | None,
        positions: int,
    ) -> None:
        self.problem: str | None = None
        self._model, self._given = model, (folder, target, positions)
        self._handles: list[Any] = []
        self._errors = 0
        self._on = False
        self._output: Output | None = None
        self._seen: Seen | None = None

    @property
    def path(self) -> Path | None:
        """The run's folder."""
        return None if self._output is None else self._output.path

    @property
    def accuracy(self) -> list[float | None]:
        """Share of right drafts at each depth of those whose earlier drafts were right; None where there are none."""
        if self._output is None:
            return []
        rows = self._output.rows
        return [a / r if r else None for a, r in zip(rows.accepted, rows.reached, strict=True)]

    def __enter__(self) -> TrainingRecording:
        self._guarded(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on, self._seen = False, None
        for handle in self._handles:
            self._guarded(handle.remove)
        self._handles.clear()
        if self._output is not None:
            self._guarded(self._output.end)
            self._guarded(self._say, self._output)
            self._guarded(self._output.close)

    # -- guards -----------------------------------------------------------------------------------

    def _guarded(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of ours: its errors are counted and told, and go no further. No gradients are recorded."""
        try:
            with torch.no_grad():
                function(*args)
        except Exception as error:
            self._errors += 1
            self._tell(str(error) if isinstance(error, EagletraceError) else f"{type(error).__name__}: {error}")
            logger.debug("eagletrace: error while recording training", exc_info=True)
            if self._errors >= MAX_ERRORS:
                self._on = False

    def _tell(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem
            logger.warning("eagletrace: %s; training is not affected", problem)

    # -- begin and end ----------------------------------------------------------------------------

    def _begin(self) -> None:
        folder, target, positions = self._given
        parts = find_parts(self._model)
        output = self._output = Output(parts.draft, folder, positions)
        self._guarded(output.begin, None if target is None else Path(target), self._guarded)
        if parts.step is None or parts.entry is None:
            self._tell(NO_STEP)
            return
        self._hook(parts, parts.entry, output)
        self._on = True

    def _say(self, output: Output) -> None:
        if not output.rows.anchors and self.problem is None:
            self._tell(NOTHING_SEEN)
        if self.problem is not None:
            output.event("hook_error", target="record_training", error=self.problem)

    # -- a step -----------------------------------------------------------------------------------

    def _hook(self, parts: Parts, entry: nn.Module, output: Output) -> None:
        """Module hooks, which are taken away again. Where torch.compile traces them, they are nothing."""
        head, fc = (getattr(parts.draft, name) for name in ("lm_head", "fc"))
        vocab = vocab_size(parts.draft, config_of(parts.draft)) or int(output.ids.max()) + 1

        def enter(args: Any, kwargs: Any) -> None:
            if parts.step is not None and not parts.step.training:
                self._seen = Seen(read_given(parts.draft, parts.named(args, kwargs), output.ids, vocab))

        def before(_: Any, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling() and self._on:
                self._seen = None
                self._guarded(enter, args, kwargs)

        def scored(_: Any, _args: Any, logits: Any) -> None:
            if not torch.compiler.is_compiling() and self._on and self._seen is not None:
                self._guarded(self._scored, self._seen, logits)

        def fused(_: Any, args: Any, out: Any) -> None:
            if not torch.compiler.is_compiling() and self._on and self._seen is not None:
                self._seen.fused = args[0], out

        def after(_: Any, _args: Any, result: Any) -> None:
            if not torch.compiler.is_compiling() and self._on and self._seen is not None:
                seen, self._seen = self._seen, None
                self._guarded(self._left, seen, result, output)

        self._handles += [
            entry.register_forward_pre_hook(before, with_kwargs=True), head.register_forward_hook(scored),
            fc.register_forward_hook(fused), entry.register_forward_hook(after),
        ]  # fmt: skip

    @staticmethod
    def _scored(seen: Seen, logits: torch.Tensor) -> None:
        if logits.shape[:2] == seen.given.tokens.shape:
            seen.depths.append(read_depth(logits, seen.given, len(seen.depths)))

    def _left(self, seen: Seen, result: Any, output: Output) -> None:
        seen.depths = seen.depths or returned(result, seen.given.tokens.shape)
        if seen.depths:
            output.add(seen)
        else:
            self._tell(NO_DRAFTS)
