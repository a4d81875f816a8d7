"""Load time: which model is loaded, which checkpoint tensor landed where, and what the parameters hold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from eagletrace.instrumentations.landing import LandingMode, elements_loaded
from eagletrace.instrumentations.patching import Hook, Target
from eagletrace.instrumentations.sglang import capture, draft_models, facts, sharing, vocabulary
from eagletrace.instrumentations.sglang.draft_models import Draft
from eagletrace.instrumentations.sglang.file_parts import of_the_target, passed_over, widened
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.tensor_stats import checksum, module_types, place, summary


class LoadModel(Hook):
    """`ModelRunner.load_model`: notes whether the target or the draft is being loaded."""

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """The loader's hook asks which side is being loaded."""
        self.session.phase = f"load_{_side(instance)}"
        self.session.loading = draft_models.step_of(instance)
        return time.time()

    def after(
        self, token: float | None, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record the model's facts; hook its sharing and capture methods before the engine calls them."""
        session, side = self.session, _side(instance)
        session.phase = ""
        if token is not None:
            session.recorder.phase(f"load_{side}", int(token * 1e9), time.time_ns(), [], {})
        if side == "draft":
            if draft_models.add(session, instance):
                facts.draft(session, instance)
            sharing.watch(session, instance.model)
        else:
            session.target_runner = instance
            facts.target(session, instance)
            capture.watch(session, instance.model)
        capture.without_method(session)

    def failed(self, token: float | None, error: BaseException, instance: Any) -> None:
        """Leave the loading phase."""
        self.session.phase = ""


def _side(runner: Any) -> str:
    return "draft" if getattr(runner, "is_draft_worker", False) else "target"


class LoadWeights(Hook):
    """`DefaultModelLoader.load_weights_and_postprocess(model, weights, target_device)` of the draft.

    The wrapped call gets the same tensors through a generator and runs under a `LandingMode`.
    """

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session

    def __call__(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Feed the draft's weights through a landing mode; everything else passes untouched."""
        if self.session.phase != "load_draft" or not self.enabled:
            return super().__call__(wrapped, instance, args, kwargs)
        self.calls += 1
        try:
            model, weights = (*args, *(kwargs[n] for n in ("model", "weights")[len(args) :]))[:2]
            mode = LandingMode(model, of_the_target(self.session, model))
            fed = mode.feed(weights)
            args, kwargs = ((args[0], fed, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "weights": fed})
        except Exception as error:  # noqa: BLE001 - load as if we were not there
            self.swallow(error)
            return wrapped(*args, **kwargs)
        start, done = time.time(), False
        try:
            with mode:
                result = wrapped(*args, **kwargs)
            done = True
        finally:
            try:
                loaded(self.session, model, mode, time.time() - start, failed=not done)
            except Exception as error:  # noqa: BLE001
                self.swallow(error)
        return result


def loaded(
    session: Session, model: torch.nn.Module, mode: LandingMode, seconds: float, *, failed: bool = False
) -> None:
    """Write `checkpoint_keys`, `params` and the facts that follow from them.

    Where each step has a draft, all of them read the same file: its tensors are written with the last of them, or with
    one whose load `failed`.
    """
    step, recorder = session.loading, session.recorder
    start = draft_models.prefix(step)
    unseen = {start + name for name in mode.unseen(model)}
    draft_models.named_as_in_file(mode.keys, step)
    for landing in (landing for record in mode.keys for landing in record.landed):
        landing["parameter"] = start + landing["parameter"]
    written = elements_loaded(mode.keys)
    session.keys = draft_models.merged(session.keys, mode.keys) if step else mode.keys
    session.unseen = {*unseen, *(session.unseen if step else ())}
    if mode.failure is not None:
        session.unseen.add(mode.failure)
    skipped = passed_over(model)
    fates = {id(record): record.fate(skipped) for record in session.keys}
    if session.unseen:  # what was not seen to be used may have been used all the same
        fates = {key: None if fate == "dropped" else fate for key, fate in fates.items()}
    last = failed or draft_models.is_last(session, step)
    for record in session.keys if last else ():
        recorder.row(
            "checkpoint_keys", key=record.key, shape=record.shape, dtype=record.dtype, checksum=record.checksum,
            landed_in=record.landed, fate=fates[id(record)], rms=record.rms, elements=record.elements,
        )  # fmt: skip
    for name, tensor in named_tensors(model, start):
        count, keys = written.get(name, (0, []))
        unknown = mode.failure is not None or name in unseen
        if count < tensor.numel() and widened(name, tensor, mode.keys, count):
            count = tensor.numel()
        session.params[name] = {"elements_loaded": None if unknown else min(count, tensor.numel()),
                                "checkpoint_keys": keys, "loaded_checksum": checksum_of(tensor)}  # fmt: skip
    write_params(session, [(start, model)], "loaded")
    recorder.event(
        "weights_loaded", side="draft", keys=len(mode.keys), seconds=seconds,
        dropped=[r.key for r in session.keys if last and fates[id(r)] == "dropped"],
        unwritten=[n for n, p in session.params.items() if n.startswith(start) and p["elements_loaded"] == 0],
        unseen=sorted(unseen), failure=mode.failure,
    )  # fmt: skip
    if not step:
        vocabulary.checkpoint_facts(session, mode.keys)
        session.from_file = sharing.written_by_file(session, model, start)


def named_tensors(model: torch.nn.Module, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Parameters, each once (a tied one under its first name), and a head that is a plain tensor: with a token map the
    engine puts a copy of some of the target's rows in the parameter's place. Names begin with `prefix`."""
    found: list[tuple[str, torch.Tensor]] = [*model.named_parameters()]
    head = sharing.head(model)
    if isinstance(head, torch.Tensor) and not isinstance(head, torch.nn.Parameter):
        found.append(("lm_head.weight", head))
    return [(prefix + name, tensor) for name, tensor in found] if prefix else found


def write_params(session: Session, models: Sequence[Draft], phase: str) -> None:
    """Write a `params` row for each parameter of these drafts, and in phase `serving` for what the target shares."""
    checksums = {(side, name): session.params.get(name, {}).get("loaded_checksum")
                 for side, name, _ in watched(session, models) if side == "draft"}  # fmt: skip
    if phase == "serving":
        checksums = {(side, name): checksum_of(tensor) for side, name, tensor in watched(session, models)}
    param_rows(session, models, phase, checksums)


def watched(session: Session, models: Sequence[Draft]) -> list[tuple[str, str, torch.Tensor]]:
    """(side, name, tensor): the parameters of the drafts, and those of the target that a draft may share."""
    target = [("target", name, tensor) for name, tensor in target_shared(session)]
    own = [("draft", name, tensor) for prefix, model in models for name, tensor in named_tensors(model, prefix)]
    return [*own, *target]


def param_rows(
    session: Session,
    models: Sequence[Draft],
    phase: str,
    checksums: Mapping[tuple[str, str], str | None],
    epoch: int = 0,
) -> None:
    """Write the `params` rows of the parameters, by side and name, whose checksums are given."""
    shared: dict[tuple[int, int], str] = {}
    types: dict[str, str] = {}
    for prefix, model in models:
        shared |= shared_places(session, model)
        types |= {prefix + name: kind for name, kind in module_types(model).items()}
    for side, name, tensor in watched(session, models):
        if (side, name) not in checksums:
            continue
        of_draft: dict[str, Any] = {}
        if side == "draft":
            facts_of = session.params.get(name, {})
            of_draft = {key: facts_of.get(key) for key in ("elements_loaded", "checkpoint_keys", "loaded_checksum")}
            of_draft |= {"shared_with": shared.get(place(tensor)), "module_type": types.get(name)}
        session.recorder.row(
            "params", side=side, name=name, elements=tensor.numel(), shape=list(tensor.shape), dtype=_dtype(tensor),
            checksum=checksums[side, name], epoch=epoch, phase=phase, time_unix_nano=time.time_ns(), **of_draft,
            **_summary(tensor),
        )  # fmt: skip
    session.checksums.update(checksums)


def checksum_of(tensor: torch.Tensor) -> str | None:
    """Checksum; None for a packed type that cannot be converted."""
    try:
        return checksum(tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _summary(tensor: torch.Tensor) -> dict[str, Any]:
    try:
        return summary(tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        return {}


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def target_shared(session: Session) -> list[tuple[str, torch.Tensor]]:
    """The target's embedding and head, which a draft may share."""
    model = getattr(session.target_runner, "model", None)
    if model is None or not hasattr(model, "get_embed_and_head"):
        return []
    try:
        embed, head = model.get_embed_and_head()
    except AttributeError:  # a pipeline stage without them
        return []
    names = {id(p): n for n, p in model.named_parameters()}
    pairs = (("embed_tokens.weight", embed), ("lm_head.weight", head))
    return [(names.get(id(tensor), name), tensor) for name, tensor in pairs if isinstance(tensor, torch.Tensor)]


def shared_places(session: Session, model: torch.nn.Module) -> dict[tuple[int, int], str]:
    """Storage that is the target's, or a copy of some of its rows, by place."""
    target = target_shared(session)
    places = {place(tensor): f"target:{name}" for name, tensor in target}
    head = sharing.head(model)
    if head is not None and place(head) not in places:
        names = [name for name, tensor in target[1:] if sharing.is_mapped_head(session, head, tensor)]
        places |= {place(head): f"target:{name}[hot_token_id]" for name in names}
    return places
