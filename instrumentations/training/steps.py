"""Reads one forward of a validation step: what was drafted at each depth, and the target's choices.

Everything is computed without gradients and without random numbers from values that the step has at hand. Where the
forward is compiled the head is not seen, and drafts are what the forward returns; ranks and probabilities stay unknown.
Shapes: B rows of texts, S positions, Vd and V tokens of the draft's and the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from eagletrace.instrumentations.tensor_stats import moments
from eagletrace.record.training_rows import Step

ROWS = 1024  # of logits at a time, so that their float32 copy stays small
SAMPLED = 64  # anchors of a step whose hidden states are looked at


@dataclass
class Given:
    """What a forward was given, [B, S] each, on the host: `targets` are ids of the target's vocabulary, `wanted` those
    of the draft's, -1 where it has no such token."""

    tokens: torch.Tensor
    positions: torch.Tensor
    texts: torch.Tensor
    counted: torch.Tensor
    targets: torch.Tensor
    wanted: torch.Tensor
    states: torch.Tensor  # [B, S, width], where they lie
    full_vocabulary: bool


@dataclass
class Depth:
    """What the head said at one depth, [B, S] each."""

    ids: torch.Tensor
    better: torch.Tensor | None = None
    logprobs: torch.Tensor | None = None
    entropies: torch.Tensor | None = None


@dataclass
class Seen:
    """One forward while it runs."""

    given: Given
    depths: list[Depth] = field(default_factory=list[Depth])
    fused: tuple[torch.Tensor, ...] = ()  # input and output of fc


def read_given(draft: nn.Module, arguments: Mapping[str, Any], ids: torch.Tensor, vocab: int) -> Given:
    """What a step's forward is given; `ids` [Vd] is the draft's vocabulary map. KeyError where something is missing."""
    states, tokens = arguments["hidden_states"], arguments["input_ids"].detach().cpu().to(torch.int64)
    draft_of = torch.full((max(vocab, int(ids.max()) + 1),), -1, dtype=torch.int64)
    draft_of[ids] = torch.arange(ids.numel())
    targets, full = choices(draft, arguments, ids, vocab)
    shape = tokens.shape
    counted = _grid(arguments.get("loss_mask"), shape, 1).to(torch.bool)
    texts = _grid(arguments.get("document_ids"), shape, 0).to(torch.int64)
    positions = arguments.get("position_ids")
    if positions is None:
        positions = torch.arange(1, shape[1] + 1)
    elif positions.dim() == 3:  # rotary axes of a multimodal model
        positions = positions[0]
    return Given(
        tokens, _grid(positions, shape, 0).to(torch.int64), texts, counted & (texts >= 0), targets,
        draft_of[targets.clamp(max=draft_of.numel() - 1)], states.detach(), full,
    )  # fmt: skip


def _grid(values: torch.Tensor | None, shape: torch.Size, default: int) -> torch.Tensor:
    """Values as [B, S] on the host."""
    if values is None:
        return torch.full(shape, default)
    return values.detach().cpu().reshape(-1, shape[1]).expand(shape)


def choices(draft: nn.Module, arguments: Mapping[str, Any], ids: torch.Tensor, vocab: int) -> tuple[torch.Tensor, bool]:
    """The target's choice at each position [B, S], an id of its own vocabulary, and whether it was free to choose any.

    speculators compares with the best token of the draft's vocabulary (`verifier_lm_head` has only those rows),
    SpecForge with the best of all.
    """
    states, compact, logits = (
        arguments.get(name) for name in ("verifier_last_hidden_states", "target_hidden_for_compact", "target")
    )
    if states is not None:
        norm: Any = getattr(draft, "verifier_norm", None)
        head: Any = draft.verifier_lm_head
        best = _best(states, head if norm is None else lambda rows: head(norm(rows)))
        rows = int(head.weight.shape[0])
        return (ids[best] if rows == ids.numel() else best), rows >= vocab
    if compact is not None:
        weight: torch.Tensor = arguments["target_head_weight"]
        return _best(compact, lambda rows: nn.functional.linear(rows, weight)), True
    if logits is None:
        raise KeyError("the step was given neither the target's states nor its logits")
    return _best(logits), True


def _best(values: torch.Tensor, score: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach) -> torch.Tensor:
    """The best token of each row: values [B, S, width] scored to [rows, vocabulary]; [B, S] on the host."""
    flat = values.detach().flatten(0, 1)
    parts = [score(flat[start : start + ROWS]).argmax(-1) for start in range(0, flat.shape[0], ROWS)]
    return torch.cat(parts).cpu().to(torch.int64).view(values.shape[:2])


def read_depth(logits: torch.Tensor, given: Given, depth: int) -> Depth:
    """Reduce the head's logits [B, S, Vd] at `depth`, from 0; ranks are of the target's choice `depth` rows ahead."""
    wanted = torch.full_like(given.wanted, -1)
    wanted[:, : wanted.shape[1] - depth] = given.wanted[:, depth:]
    flat, want = logits.detach().flatten(0, 1), wanted.flatten().to(logits.device)
    parts: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, flat.shape[0], ROWS):
        rows, mine = flat[start : start + ROWS], want[start : start + ROWS]
        ids = rows.argmax(-1)
        values = rows.float()
        whole = values.logsumexp(-1)
        inside = mine.clamp(min=0, max=values.shape[1] - 1)[:, None]
        better = (values > values.gather(-1, inside)).sum(-1).masked_fill(mine < 0, -1)
        logprob = values.gather(-1, ids[:, None]).squeeze(-1) - whole
        entropy = whole - (values.softmax(-1) * values).sum(-1)
        parts.append((ids, better, logprob, entropy))
    shape = logits.shape[:2]
    ids, better, logprobs, entropies = (torch.cat(column).cpu().view(shape) for column in zip(*parts, strict=True))
    return Depth(ids.to(torch.int64), better.to(torch.int64), logprobs, entropies)


def returned(result: Any, shape: torch.Size) -> list[Depth]:
    """Drafted ids that a forward returned as a list of [B, S] tensors, one a depth; none where it did not."""
    lists = [part for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, list)]
    for values in lists:
        found: Sequence[Any] = values
        if found and all(isinstance(v, torch.Tensor) and v.shape == shape and not v.is_floating_point() for v in found):
            return [Depth(v.detach().cpu().to(torch.int64)) for v in found]
    return []


def step_of(seen: Seen, ids: torch.Tensor) -> Step:
    """The step's arrays on the host; `ids` [Vd] is the vocabulary map."""
    given, depths = seen.given, seen.depths
    draft_ids = torch.stack([d.ids for d in depths])
    return Step(
        tokens=given.tokens.numpy(), positions=given.positions.numpy(), texts=given.texts.numpy(),
        counted=given.counted.numpy(), targets=given.targets.numpy(), drafted=ids[draft_ids].numpy(),
        draft_ids=draft_ids.numpy(), width=int(given.states.shape[-1]),
        targets_in_vocab=(given.wanted >= 0).numpy() if given.full_vocabulary else None,
        better=_stacked([d.better for d in depths]), logprobs=_stacked([d.logprobs for d in depths]),
        entropies=_stacked([d.entropies for d in depths]),
    )  # fmt: skip


def _stacked(values: Sequence[torch.Tensor | None]) -> Any:
    known = [v for v in values if v is not None]
    return torch.stack(known).numpy() if len(known) == len(values) else None


def sampled(count: int) -> list[int]:
    """Indices of the anchors whose states are looked at, evenly spaced."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, SAMPLED))}) if count else []


def statistics(states: torch.Tensor, batch: Sequence[int], rows: Sequence[int], slots: int) -> dict[str, Any]:
    """`rms`, `nan_count` and `kurtosis` of some rows of states [B, S, width], [rows, slots] each, as a server's."""
    chosen = states.detach()[torch.tensor(batch), torch.tensor(rows)].float().cpu().unflatten(-1, (slots, -1))
    return {name: values.numpy() for name, values in moments(chosen).items()}
