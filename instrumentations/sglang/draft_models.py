"""The models that draft: one, or one for each step, as SGLang's multi-layer EAGLE worker has them.

Such a worker makes a runner for each step (`ModelRunner.draft_model_idx`, 0.5.9, 0.5.20 and 0.5.23); all of them are of
one class and read one checkpoint, each its own layer of multi-token prediction. Names of their parameters begin here as
the engine calls their runners (`weight_update_runners`, multi_layer_eagle_worker_v2.py, 0.5.23).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from eagletrace.instrumentations.landing import KeyRecord
from eagletrace.instrumentations.sglang.session import Session

Draft = tuple[str, nn.Module]
"""What a model's names begin with, and the model."""

_RENAMED = re.compile(r"model\.mtp\.layers\.0\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def step_of(runner: Any) -> int | None:
    """The step whose draft a runner has; None of a target, and of a draft for all steps."""
    step = getattr(runner, "draft_model_idx", None)
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def prefix(step: int | None) -> str:
    """What the names of a draft's parameters begin with."""
    return "" if step is None else f"draft_step_{step}."


def add(session: Session, runner: Any) -> bool:
    """Take a draft's runner to those of the session; False of a draft that stands beside a first one."""
    if step_of(runner):
        session.later_runners.append(runner)
        return False
    session.draft_runner, session.later_runners = runner, []
    return True


def drafts(session: Session) -> list[Draft]:
    """The models that draft, the first step's first; none without speculation."""
    if session.draft_runner is None:
        return []
    runners = (session.draft_runner, *session.later_runners)
    return [(prefix(step_of(runner)), runner.model) for runner in runners]


def of_another_step(step: int | None, first: int | None, count: int | None) -> Callable[[str], bool]:
    """Whether a tensor belongs to another step's draft, by its name: layers from `first` on are one a step.

    `count` is the number of such layers in the checkpoint, of which a server may use fewer.
    """
    if step is None or first is None:
        return lambda _: False

    def another(key: str) -> bool:
        number = _LAYER.search(key)
        return number is not None and 0 <= int(number[1]) - first < (count or 1) and int(number[1]) - first != step

    return another


def named_as_in_file(keys: Sequence[KeyRecord], step: int | None) -> None:
    """Undo the loader's renaming: it hands each step its own layer of `model.mtp.layers` as the first (loader.py
    `_filter_mtp_weights`, 0.5.9 and 0.5.23)."""
    if step:
        for record in keys:
            record.key = _RENAMED.sub(f"model.mtp.layers.{step}.", record.key, count=1)


def merged(known: Sequence[KeyRecord], more: Sequence[KeyRecord]) -> list[KeyRecord]:
    """The tensors of one checkpoint that several drafts read: each once, with all its landings."""
    found = {record.key: record for record in known}
    for record in more:
        before = found.get(record.key)
        seen = record if before is None or before.passed_over else before  # one of them may have no statistics
        found[record.key] = record if before is None else replace(
            seen, landed=[*before.landed, *record.landed], touched=before.touched or record.touched,
            passed_over=before.passed_over and record.passed_over,
        )  # fmt: skip
    return list(found.values())


def is_last(session: Session, step: int | None) -> bool:
    """Whether no draft of a later step will be loaded."""
    steps = getattr(session.server_args, "speculative_num_steps", None)
    return step is None or not isinstance(steps, int) or step >= steps - 1
