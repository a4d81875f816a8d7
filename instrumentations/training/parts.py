"""Finds the parts of an EAGLE-3 draft in training by what they have and take, not by the names of their classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eagletrace.errors import EagletraceError

TARGETS = ("verifier_last_hidden_states", "target", "target_hidden_for_compact")
"""Arguments with the target's states or logits: of speculators 0.9, and of SpecForge 0.2 (two)."""
STATES = "hidden_states"


class NotADraftError(EagletraceError):
    """A model in which no EAGLE-3 draft is found."""


@dataclass(frozen=True)
class Parts:
    """The draft, and the module whose forward is one step of training: None where no module takes states and target.

    `entry` is the module whose hooks see that forward: the compiled wrapper where there is one, else `step`.
    """

    draft: nn.Module
    step: nn.Module | None
    entry: nn.Module | None

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments of the step's forward by name; TypeError where they do not fit."""
        forward: Any = getattr(self.step, "forward", None)
        return inspect.signature(forward).bind(*args, **kwargs).arguments


def find_parts(model: nn.Module) -> Parts:
    """Look through a model, wrappers such as DDP included; NotADraftError where there is no EAGLE-3 draft in it."""
    modules = _modules(model)
    draft = next(
        (m for m in modules if all(isinstance(getattr(m, n, None), nn.Module) for n in ("fc", "lm_head"))), None
    )
    if draft is None:
        raise NotADraftError(
            f"no EAGLE-3 draft in {type(model).__name__}: no module of it has both `fc` and `lm_head`; give the model "
            "that the trainer calls"
        )
    step = next((m for m in modules if _takes(m)), None)
    entry = next((m for m in modules if getattr(m, "_orig_mod", None) is step), step) if step is not None else None
    return Parts(draft, step, entry)


def _modules(model: nn.Module) -> list[nn.Module]:
    """The model and all modules in it, the outer ones first."""
    return list(model.modules())


def _takes(module: nn.Module) -> bool:
    forward: Any = module.forward
    try:
        names = inspect.signature(forward).parameters
    except (TypeError, ValueError):
        return False
    return STATES in names and any(name in names for name in TARGETS)


def tensors(draft: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters by name, each once, and the vocabulary maps."""
    maps = [(name, value) for name in ("d2t", "t2d") if isinstance(value := getattr(draft, name, None), torch.Tensor)]
    return [*_parameters(draft), *maps]


def _parameters(draft: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(draft.named_parameters())


def is_sharded(tensor: torch.Tensor) -> bool:
    """A shard of a parameter (DTensor of FSDP and tensor parallelism): its values are not all here."""
    return hasattr(tensor, "full_tensor")


def token_map(draft: nn.Module) -> torch.Tensor:
    """Target id of each row of the head, [Vd], on the CPU: as `t2d` marks them, else by `d2t` as offsets."""
    head: Any = draft.lm_head
    rows = int(head.weight.shape[0])
    t2d, d2t = (getattr(draft, name, None) for name in ("t2d", "d2t"))
    if isinstance(t2d, torch.Tensor) and int(t2d.sum()) == rows:
        return t2d.detach().cpu().to(torch.bool).reshape(-1).nonzero().reshape(-1)
    ids = torch.arange(rows)
    if isinstance(d2t, torch.Tensor) and d2t.numel() == rows:
        return ids + d2t.detach().cpu().to(torch.int64).reshape(-1)
    return ids


def vocab_size(draft: nn.Module, settings: Mapping[str, Any]) -> int | None:
    """Size of the target's vocabulary: rows of the embedding or of `t2d`, else what the configuration says."""
    embed: Any = getattr(draft, "embed_tokens", None)
    t2d = getattr(draft, "t2d", None)
    if isinstance(getattr(embed, "weight", None), torch.Tensor):
        return int(embed.weight.shape[0])
    if isinstance(t2d, torch.Tensor):
        return t2d.numel()
    known = settings.get("vocab_size")
    return known if isinstance(known, int) else None


def config_of(draft: nn.Module) -> dict[str, Any]:
    """The draft's configuration as its library writes it; empty where it has none."""
    config: Any = getattr(draft, "config", None)
    to_dict = getattr(config, "to_dict", None)
    found: Any = to_dict() if callable(to_dict) else config if isinstance(config, Mapping) else {}
    return dict(found)


def split(frozen: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[str], list[str]]:
    """Names of parameters that are trained, and of those that are frozen."""
    trained, still = list[str](), list[str]()
    for name, tensor in frozen:
        (trained if tensor.requires_grad else still).append(name)
    return trained, still
