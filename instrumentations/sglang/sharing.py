"""`set_embed`, `set_embed_and_head`, `set_lm_head_from_target`: who called them, and what they replaced.

They run between loading and the first forward (eagle_worker.py of 0.5.9, eagle_worker_v2.py `init_lm_head`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from eagletrace.instrumentations.landing import KeyRecord
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.vocabulary import served_map
from eagletrace.instrumentations.tensor_stats import checksum, describe, difference, place

MAP_ROWS = 4096
"""Rows that are compared at a time, so that no second head is made."""
METHODS = ("set_embed", "set_embed_and_head", "set_lm_head_from_target")


def embedding(model: Any) -> torch.Tensor | None:
    """The draft's embedding weight, shape [V, H]."""
    module = getattr(getattr(model, "model", model), "embed_tokens", None)
    return getattr(module, "weight", None)


def head(model: Any) -> torch.Tensor | None:
    """The draft's head weight, shape [Vd, H]."""
    return getattr(getattr(model, "lm_head", None), "weight", None)


def watch(session: Session, model: Any) -> None:
    """Wrap the sharing methods of this one draft model."""
    for name in METHODS:
        original = getattr(model, name, None)
        if callable(original):
            setattr(model, name, _observed(session, model, name, original))
            session.undo.append(partial(vars(model).pop, name, None))


def _observed(session: Session, model: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before: dict[str, Any] = {}
        differences: dict[str, Any] = {}
        try:
            before = {"embed_before": _safe(embedding(model)), "head_before": _safe(head(model)), "caller": caller()}
            differences = _against_given(model, name, args, kwargs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            session.recorder.event("hook_error", target=name, error=repr(error))
        result = original(*args, **kwargs)
        try:
            session.count(name)
            detail = {**before, "embed_after": _safe(embedding(model)), "head_after": _safe(head(model))}
            session.recorder.event(name, **detail)
            for part, difference_ in differences.items() if model is first_draft(session) else ():
                if detail[f"{part}_after"] != detail.get(f"{part}_before"):
                    session.replaced[part] = {**difference_, "by": name}
        except Exception as error:  # noqa: BLE001
            session.recorder.event("hook_error", target=name, error=repr(error))
        return result

    return call


def first_draft(session: Session) -> Any:
    """The draft, where there are several that of the first step."""
    return getattr(session.draft_runner, "model", None)


def _against_given(model: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """How the present weights differ from those about to replace them. Taken before the call, so that no reference
    keeps the old ones alive while the engine sizes its memory pools."""
    given = dict(zip(("embed", "head"), args, strict=False)) | kwargs
    if name == "set_lm_head_from_target":
        given = {"head": next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)}
    present = {"embed": embedding(model), "head": head(model)}
    if present["head"] is not None and present["head"] is present["embed"]:
        given["head"] = given.get("embed")  # a tied head goes where the embedding goes
    found: dict[str, Any] = {}
    for part, old in present.items():
        new = given.get(part)
        if old is not None and isinstance(new, torch.Tensor):
            found[part] = difference(old, new)
    return found


def _safe(tensor: torch.Tensor | None) -> dict[str, Any] | None:
    return None if tensor is None else describe(tensor)


def caller() -> str:
    """`module.function:line` of the engine code that called a watched method."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("eagletrace"):
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}:{frame.f_lineno}" if frame else "unknown"


def written_by_file(session: Session, model: Any, prefix: str = "") -> dict[str, str | None]:
    """Checksum right after loading of the embedding and head that tensors of the file wrote; None for the others.
    `prefix` is what the model's names in `session.params` begin with."""
    names = {id(p): prefix + n for n, p in model.named_parameters()}
    found: dict[str, str | None] = {}
    for part, tensor in (("embed", embedding(model)), ("head", head(model))):
        facts = session.params.get(names.get(id(tensor), ""), {})
        found[part] = facts["loaded_checksum"] if facts.get("elements_loaded") else None
    return found


def file_head(session: Session) -> KeyRecord | None:
    """The tensor of the file that is the draft's head, wherever it landed."""
    own = (k for k in session.keys if not k.passed_over)
    return next((k for k in own if k.key.split(".")[-2:-1] == ["lm_head"] or k.key == "lm_head.weight"), None)


def served_facts(session: Session) -> None:
    """Facts of the embedding and head as served, against those of the file and the target's."""
    recorder, model = session.recorder, session.draft_runner.model
    for name in METHODS:
        recorder.fact(f"sharing.{name}_calls", session.counts.get(name, 0))
    target = getattr(session.target_runner, "model", None)
    shared = target.get_embed_and_head() if target is not None and hasattr(target, "get_embed_and_head") else ()
    places = {place(t) for t in shared if isinstance(t, torch.Tensor)}
    embed, lm_head = embedding(model), head(model)
    recorder.fact("embed.shared_with_target", embed is not None and place(embed) in places)
    recorder.fact("head.shared_with_target", lm_head is not None and place(lm_head) in places)
    recorder.fact("embed.in_checkpoint", session.from_file.get("embed") is not None)
    recorder.fact("embed.replaced", _replaced(session, "embed", embed, session.from_file.get("embed")))
    record = file_head(session)
    recorder.fact("head.in_checkpoint", record is not None, source=record.key if record else None)
    checksum_of_file = session.from_file.get("head") or (record.checksum if record else None)
    replaced = _replaced(session, "head", lm_head, checksum_of_file) if record else None
    if replaced and replaced["changed"] and replaced["by"] is None and lm_head is embed:
        replaced["by"] = "tie_word_embeddings"
    recorder.fact("head.replaced", replaced, source=record.key if record else None)


def is_mapped_head(session: Session, tensor: torch.Tensor, target_head: torch.Tensor) -> bool:
    """Whether a head [Vd, H] is a copy of those rows of the target's [V, H] that a token map names (`init_lm_head`)."""
    ids = served_map(session)
    fits = ids is not None and tensor.shape == (len(ids), *target_head.shape[1:]) and len(ids) > 0
    if ids is None or not fits or int(ids.min()) < 0 or int(ids.max()) >= len(target_head):
        return False
    parts = zip(tensor.split(MAP_ROWS), ids.split(MAP_ROWS), strict=True)
    return all(torch.equal(rows, target_head[chosen]) for rows, chosen in parts)


def _replaced(session: Session, part: str, served: torch.Tensor | None, from_file: str | None) -> dict[str, Any] | None:
    """{changed, relative_difference, cosine, by}: what the file wrote against what is served; None without either."""
    if served is None or from_file is None:
        return None
    changed = checksum(served) != from_file
    unknown = {"relative_difference": None, "cosine": None, "by": None}
    return {"changed": changed, **(session.replaced.get(part, unknown) if changed else unknown)}
