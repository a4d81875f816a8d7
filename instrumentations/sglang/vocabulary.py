"""The draft vocabulary map: `d2t` in the file, `hot_token_id` as served, `t2d` beside them.

SGLang reads `d2t` as offsets (`hot_token_id = d2t + arange`, llama_eagle3.py of 0.5.9 and 0.5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eagletrace.instrumentations.landing import KeyRecord
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.vocabulary_map import map_facts

OF_D2T = ("d2t.all_zero", "d2t.as_offsets", "d2t.as_ids", "d2t.length")
"""Facts of the file's `d2t`; null where it has none."""


def find(keys: Sequence[KeyRecord], part: str) -> KeyRecord | None:
    """The vocabulary map of that name in the checkpoint."""
    return next((k for k in keys if part in k.key and k.value is not None), None)


def checkpoint_facts(session: Session, keys: Sequence[KeyRecord]) -> None:
    """Facts of the file's `d2t` and `t2d`, read both as offsets and as ids."""
    recorder, redacted = session.recorder, session.recorder.settings.redact
    d2t, t2d = find(keys, "d2t"), find(keys, "t2d")
    recorder.fact("d2t.in_checkpoint", d2t is not None, source=d2t.key if d2t else None)
    recorder.fact("t2d.in_checkpoint", t2d is not None, source=t2d.key if t2d else None)
    if d2t is None or d2t.value is None:
        for key in OF_D2T:
            recorder.fact(key, None)
        return
    values = d2t.value.to("cpu", torch.int64).reshape(-1)
    vocab = target_vocab(session)
    marked = t2d.value if t2d else None
    recorder.fact("d2t.all_zero", bool((values == 0).all()), source=d2t.key)
    for key, ids in (("d2t.as_offsets", values + torch.arange(values.numel())), ("d2t.as_ids", values)):
        facts = map_facts(ids, vocab, marked)
        if redacted:
            facts["min"] = facts["max"] = None
        recorder.fact(key, facts, source=d2t.key)


def target_vocab(session: Session) -> int | None:
    """Size of the target's vocabulary."""
    config = getattr(session.target_runner, "model_config", None)
    return getattr(config, "vocab_size", None)


def head_rows(model: Any) -> int | None:
    """Rows of the draft's head [Vd, H], padding included, over all tensor-parallel ranks; None without a head.

    Each rank holds an equal part of them (vocab_parallel_embedding.py of 0.5.9 and 0.5.23).
    """
    head = getattr(model, "lm_head", None)
    weight, parts = getattr(head, "weight", None), getattr(head, "tp_size", 1)
    if not isinstance(weight, torch.Tensor):
        return None
    return weight.shape[0] * (parts if isinstance(parts, int) else 1)


def logits_width(model: Any) -> int | None:
    """Width of the draft's logits, Vd; None if it cannot be told.

    With the target's head under a reduced draft vocabulary that is less than the head's rows: SGLang cuts the logits
    to the vocabulary of the processor's configuration (logits_processor.py, 0.5.9 and 0.5.23).
    """
    width = getattr(getattr(getattr(model, "logits_processor", None), "config", None), "vocab_size", None)
    return width if isinstance(width, int) else None


def served_map(session: Session) -> torch.Tensor | None:
    """The map that the worker uses, [Vd]: of the file's `d2t` (EAGLE-3), or of `--speculative-token-map` (others)."""
    worker = session.worker
    hot = getattr(getattr(worker, "_draft_worker", None) or worker, "hot_token_id", None)
    return hot if isinstance(hot, torch.Tensor) else None


def served_facts(session: Session) -> None:
    """Facts of the map that the worker uses; prepares the inverse map for ranks."""
    worker, recorder = session.worker, session.recorder
    inner, hot = getattr(worker, "_draft_worker", None) or worker, served_map(session)
    rows = head_rows(getattr(session.draft_runner, "model", None))
    vocab = target_vocab(session)
    if hot is not None:
        facts = map_facts(hot, vocab)
        if recorder.settings.redact:
            facts["min"] = facts["max"] = None
        d2t, t2d = find(session.keys, "d2t"), find(session.keys, "t2d")
        if t2d is not None and t2d.value is not None:
            share = map_facts(hot, vocab, t2d.value)["t2d_agreement"]
            marked = int(t2d.value.to(torch.bool).sum())
            recorder.fact(
                "t2d.agreement", {"share": share, "marked": marked, "map_length": hot.numel()}, source=t2d.key
            )
        if d2t is not None:
            recorder.fact("d2t.length", d2t.elements, rows, source=d2t.key)
        else:
            recorder.fact("draft.draft_vocab_size", rows, source="server_args.speculative_token_map")
    else:
        facts = None
    if find(session.keys, "t2d") is None:
        recorder.fact("t2d.agreement", None)
    recorder.fact("hot_token_id", facts, {"length": rows, "max_below": vocab}, source=type(inner).__name__)
    width = min((n for n in (rows, logits_width(session.draft_runner.model)) if n is not None), default=None)
    prepare_maps(session, hot, width, vocab)


def prepare_maps(session: Session, hot: torch.Tensor | None, width: int | None, vocab: int | None) -> None:
    """Keep the served map and its inverse ([V], -1 outside) on the draft's device; `width` is that of the logits."""
    session.hot_token_id = hot
    if vocab is None or width is None:
        return
    device = hot.device if hot is not None else session.draft_runner.device
    ids = hot.to(torch.int64) if hot is not None else torch.arange(min(width, vocab), device=device)
    inverse = torch.full((vocab,), -1, dtype=torch.int64, device=device)
    places = torch.arange(ids.numel(), device=device)
    valid = (ids >= 0) & (ids < vocab) & (places < width)
    inverse[ids[valid]] = places[valid]
    session.draft_id_or_zero = inverse.clamp(min=0)
    session.recorder.draft_id_of = inverse.cpu().numpy()
