"""Facts of a draft in training: what it is, which of its parts are trained, its vocabulary map and its norms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import torch
from torch import nn

from eagletrace.checkpoint import config as configs
from eagletrace.instrumentations.training import weights
from eagletrace.instrumentations.training.parts import config_of, split, token_map, vocab_size
from eagletrace.instrumentations.vocabulary_map import map_facts

Fact = Callable[[str, Any], None]
NORM_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def library(draft: nn.Module) -> dict[str, str | None]:
    """`{name, version}` of the package that the draft's class is from; the version None where it is not installed."""
    name = type(draft).__module__.partition(".")[0]
    try:
        return {"name": name, "version": metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {"name": name, "version": None}


def write(draft: nn.Module, fact: Fact, *, redacted: bool) -> None:
    """Hand the facts to `fact` by key."""
    config = json.loads(json.dumps(config_of(draft), default=str))
    settings = configs.flat(config)
    trained, frozen = split(draft.named_parameters())
    fact("run.kind", "training")
    fact("trace.redacted", redacted)
    fact("training.library", library(draft))
    fact("training.trained", trained)
    fact("training.frozen", frozen)
    fact("training.norms", {name: configs.flag(settings, name) for name in NORM_FLAGS})
    fact("draft.architecture", type(draft).__name__)
    fact("draft.config", config)
    fact("draft.rope", _rope(settings))
    fact("draft.tie_word_embeddings", weights.is_tied(draft))
    _sizes(draft, settings, config, fact)
    _maps(draft, settings, fact, redacted=redacted)


def target_hidden_size(draft: nn.Module) -> int | None:
    """Width of one aux state: as the configuration says, else that of the draft."""
    settings = configs.flat(config_of(draft))
    return configs.integer(settings, "target_hidden_size") or _hidden_size(draft, settings)


def _hidden_size(draft: nn.Module, settings: Mapping[str, Any]) -> int | None:
    fc: Any = draft.fc
    return configs.integer(settings, "hidden_size") or getattr(fc, "out_features", None)


def _sizes(draft: nn.Module, settings: Mapping[str, Any], config: Mapping[str, Any], fact: Fact) -> None:
    fc, head = (getattr(getattr(draft, name), "weight", None) for name in ("fc", "lm_head"))
    target = target_hidden_size(draft)
    fact("draft.hidden_size", _hidden_size(draft, settings))
    fact("draft.target_hidden_size", target)
    fact("draft.draft_vocab_size", int(head.shape[0]) if isinstance(head, torch.Tensor) else None)
    fact("draft.vocab_size", vocab_size(draft, settings))
    if isinstance(fc, torch.Tensor):
        inputs = int(fc.shape[1])
        fact("draft.fc", {"in_features": inputs, "out_features": int(fc.shape[0]), "name": "fc"})
        if target and inputs % target == 0:
            fact("aux.count", inputs // target)
    fact("aux.config_ids", {place.path: list(place.ids) for place in configs.aux_places(config)})


def _rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As `draft.rope` of a served run."""
    rope = configs.rope(settings)
    heads, hidden = (configs.integer(settings, name) for name in ("num_attention_heads", "hidden_size"))
    return {
        "theta": rope.theta, "scaling": "none" if rope.type == "default" else {"rope_type": rope.type, **rope.scaling},
        "head_dim": configs.integer(settings, "head_dim") or (hidden // heads if hidden and heads else None),
        "partial": settings.get("partial_rotary_factor"),
        "max_position": configs.integer(settings, "max_position_embeddings"),
    }  # fmt: skip


def _maps(draft: nn.Module, settings: Mapping[str, Any], fact: Fact, *, redacted: bool) -> None:
    """The map that training uses, and `d2t` read both as offsets and as ids."""
    vocab = vocab_size(draft, settings)
    d2t, t2d = (getattr(draft, name, None) for name in ("d2t", "t2d"))
    marked = t2d.detach().cpu() if isinstance(t2d, torch.Tensor) else None
    found = {"hot_token_id": map_facts(token_map(draft), vocab, marked)}
    if isinstance(d2t, torch.Tensor):
        values = d2t.detach().to("cpu", torch.int64).reshape(-1)
        fact("d2t.all_zero", bool((values == 0).all()))
        found["d2t.as_offsets"] = map_facts(values + torch.arange(values.numel()), vocab, marked)
        found["d2t.as_ids"] = map_facts(values, vocab, marked)
    for key, said in found.items():
        fact(key, said | {"min": None, "max": None} if redacted else said)
