"""The run of one recorded validation step: its folder, its facts and weights, and the rows of its steps."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eagletrace.format.facts import CONTRACT_KEYS
from eagletrace.instrumentations.tensor_stats import module_types
from eagletrace.instrumentations.training import facts, weights
from eagletrace.instrumentations.training.parts import tensors, token_map
from eagletrace.instrumentations.training.steps import Seen, sampled, statistics, step_of
from eagletrace.record import run_folder
from eagletrace.record.liveness import process_file, release
from eagletrace.record.training_rows import TrainingRows, hidden_rows
from eagletrace.record.writer import TraceWriter
from eagletrace.settings import from_environ

_numbers = count(1)
Guard = Callable[..., Any]


def rank() -> int | None:
    """Rank of this process among those that train together; None without torch.distributed."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return None


class Output:
    """Writes one run; OSError where its folder cannot be made. `positions` bounds the anchors that have rows."""

    def __init__(self, draft: nn.Module, folder: str | os.PathLike[str] | None, positions: int) -> None:
        self.draft, self.rank = draft, rank()
        given = from_environ()
        settings = replace(
            given, dir=Path(folder) if folder is not None else given.dir, level="tokens",
            run_id=f"{run_folder.run_id(given)}-training-{next(_numbers)}",
        )  # fmt: skip
        process = {"host": socket.gethostname(), "pid": os.getpid(), "tp_rank": 0, "dp_rank": self.rank, "pp_rank": 0}
        about = {"kind": "training", "torch": torch.__version__, "library": facts.library(draft)}
        self.path = run_folder.create(settings, about, process)
        self.writer = TraceWriter(self.path, process, settings.max_bytes)
        self.rows = TrainingRows(self.writer, positions, redacted=settings.redact)
        self.ids = token_map(draft)
        self._redacted = settings.redact
        self._slot = facts.target_hidden_size(draft)
        self._tensors = tensors(draft)
        self._versions = weights.versions(self._tensors)
        self._facts: list[dict[str, Any]] = []
        self._full: bool | None = None
        self._outside = self._tokens = 0

    def begin(self, target: Path | None, guarded: Guard) -> None:
        """Write facts and weights, before the first step. Other ranks leave that to the first."""
        if self.rank not in (None, 0):
            return
        facts.write(self.draft, self._fact, redacted=self._redacted)
        self._fact("training.rounded", weights.rounded(self._tensors))
        if target is not None:
            guarded(self._compare, target)
        self._write_facts()
        self._write_params(self._tensors, 0)

    def _compare(self, target: Path) -> None:
        found = weights.against_target(self.draft, target, self.ids)
        self._fact("training.target_path", str(target))
        for what, compared in found.items():
            self._fact(f"training.{what}_equals_target", compared)

    def add(self, seen: Seen) -> None:
        """Rows and counts of one forward."""
        self._full = seen.given.full_vocabulary
        kept = self.rows.add(step_of(seen, self.ids))
        inside = torch.isin(seen.given.tokens[seen.given.counted], self.ids)
        self._tokens += inside.numel()
        self._outside += int((~inside).sum())
        self._states(seen, [kept[i] for i in sampled(len(kept))])

    def _states(self, seen: Seen, kept: Sequence[tuple[int, int, int, int]]) -> None:
        """Statistics of what the target left, and of the fusion layer's input and output."""
        if not kept:
            return
        batch, rows = [k[2] for k in kept], [k[3] for k in kept]
        for stage, states in [("target_aux", seen.given.states), *zip(("fc_in", "fc_out"), seen.fused, strict=False)]:
            width = int(states.shape[-1])
            slots = width // self._slot if self._slot and stage != "fc_out" and width % self._slot == 0 else 1
            found = statistics(states, batch, rows, slots)
            self.writer.write("hidden", hidden_rows(kept, stage, found, width // slots))

    def end(self) -> None:
        """Write what waits, and which weights were trained on meanwhile."""
        self._follow_weights()
        if self._full is not None:
            self._fact("training.target_choice", "vocabulary" if self._full else "draft vocabulary")
            self._fact("training.outside_draft_vocab", {"tokens": self._tokens, "outside": self._outside})
        self._write_facts()
        self.rows.publish()

    def close(self) -> None:
        """Give up the lock that says that the run is written to."""
        release(process_file(self.path, self.writer.stem))

    def _follow_weights(self) -> None:
        """Weights that changed since the start are written again: not all steps ran on those."""
        names = weights.changed(self._versions, self._tensors)
        if not names or self.rank not in (None, 0):
            return
        self._write_params([(name, tensor) for name, tensor in self._tensors if name in names], 1)
        self._fact("training.rounded", weights.rounded(self._tensors))
        self.event("weights_changed", side="draft", epoch=1, how="training", success=True, names=names)

    def event(self, kind: str, /, **detail: Any) -> None:
        """Write one event."""
        row = {"time_unix_nano": time.time_ns(), "kind": kind, "detail": json.dumps(detail)}
        self.writer.write("events", [row])

    def _fact(self, key: str, actual: Any) -> None:
        if key not in CONTRACT_KEYS:
            raise KeyError(key)
        row = {"key": key, "actual": json.dumps(actual), "source": "training", "time_unix_nano": time.time_ns()}
        self._facts.append(row)

    def _write_facts(self) -> None:
        waiting, self._facts = self._facts, []
        self.writer.write("contract", waiting)

    def _write_params(self, named: Sequence[tuple[str, torch.Tensor]], epoch: int) -> None:
        types = module_types(self.draft)
        tied = {"lm_head.weight": "draft:embed_tokens.weight"} if weights.is_tied(self.draft) else {}
        rows = [weights.param_row(name, tensor, types.get(name), tied.get(name)) for name, tensor in named]
        self.writer.write("params", [row | {"epoch": epoch} for row in rows])
