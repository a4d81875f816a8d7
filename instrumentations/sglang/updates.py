"""Weights that change while serving: SGLang's `update_weights_from_*`, on whichever model they were called.

An update stops the engine and is no part of a round, so that checksums may wait for the device here. What changes
weights in another way (a pointer kept by a trainer, RDMA without `end_weight_update`) is seen at the next update only:
looking for it between updates would make the engine wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from eagletrace.instrumentations.patching import Hook, Target
from eagletrace.instrumentations.sglang import load, param_values
from eagletrace.instrumentations.sglang.draft_models import drafts
from eagletrace.instrumentations.sglang.session import Session

NAMES_KEPT = 50
CHECKSUM_SHARE = 0.1
"""Buckets of a large model arrive in hundreds of calls: checksums take no more than this share of the time."""

_TENSORS = ("named_tensors", "names")


class WeightsUpdated(Hook):
    """`update_weights_from_disk|tensor|distributed|ipc`, `load_weights_from_distributed` and `end_weight_update`.

    The instance is a `ModelRunner`, or the updater of one; the last part of the target's name says how.
    """

    def __init__(self, target: Target, session: Session) -> None:
        super().__init__(target)
        self.session = session
        self.how = target.name.rpartition(".")[2].removeprefix("update_").removeprefix("load_")

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """When it began."""
        return time.time()

    def after(
        self, token: float | None, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record the change, also one that the engine calls failed: it may have written a part."""
        success, message = result if isinstance(result, tuple) else (True, "")  # end_weight_update gives nothing
        self._record(token, instance, given(args, kwargs), success=bool(success), message=str(message))

    def failed(self, token: float | None, error: BaseException, instance: Any) -> None:
        """An update that raised may have written a part."""
        self._record(token, instance, {}, success=False, message=repr(error))

    def _record(
        self, start: float | None, instance: Any, source: Mapping[str, Any], *, success: bool, message: str
    ) -> None:
        session, model = self.session, model_of(instance)
        side = "draft" if any(model is draft for _, draft in drafts(session)) else "target"
        session.epochs[side] = epoch = session.epochs.get(side, 0) + 1
        end, due = time.time(), time.monotonic() >= session.checksums_from or self.how == "end"
        changed = params_after(session, side, epoch) if due else None
        if due:
            session.checksums_from = time.monotonic() + (time.time() - end) / CHECKSUM_SHARE
        session.recorder.event(
            "weights_changed", side=side, epoch=epoch, how=self.how, success=success, message=message[:500],
            names=None if changed is None else changed[:NAMES_KEPT], changed=None if changed is None else len(changed),
            seconds=None if start is None else end - start, **source,
        )  # fmt: skip
        session.recorder.flush()


def model_of(instance: Any) -> Any:
    """The model of a runner, or of an updater that asks its runner."""
    return instance.get_model() if hasattr(instance, "get_model") else instance.model


def given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`{path}` of an update from files, `{given, given_names}` of one that was handed tensors."""
    first = next((kwargs[name] for name in ("model_path", *_TENSORS) if name in kwargs), args[0] if args else None)
    if isinstance(first, str):
        return {"path": first}
    if isinstance(first, Mapping):  # a flattened bucket
        first = [entry.name for entry in first.get("metadata", ())]
    if not isinstance(first, list | tuple):
        return {}
    names = list(_names(first))
    return {"given": len(names), "given_names": names[:NAMES_KEPT]}


def _names(entries: Iterable[Any]) -> Iterable[str]:
    for entry in entries:
        yield str(entry[0] if isinstance(entry, tuple) else entry)


def params_after(session: Session, side: str, epoch: int) -> list[str] | None:
    """Write `params` rows of what changed, and return the names; None where there is no draft.

    Of the target only its embedding and head are looked at. What uses the target's storage is the draft's as well.
    """
    if session.draft_runner is None:
        return None
    models = drafts(session)
    now = {(which, name): load.checksum_of(tensor) for which, name, tensor in load.watched(session, models)}
    changed = {key: checksum for key, checksum in now.items() if checksum != session.checksums.get(key)}
    load.param_rows(session, models, "updated", changed, epoch)
    param_values.write_changed(session, {name for which, name in changed if which == "draft"})
    return [name if which == side else f"{which}:{name}" for which, name in changed]
