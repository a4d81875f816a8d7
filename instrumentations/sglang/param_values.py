"""`param_values`: what served parameters hold that no tensor of the checkpoint wrote fully."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from eagletrace.instrumentations.sglang.draft_models import drafts
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.vocabulary import find, served_map
from eagletrace.instrumentations.tensor_stats import place

VALUES_BYTES = 64 << 20


def write(session: Session) -> None:
    """Write the values of the draft's unfinished parameters as they are served now, the smaller ones first.

    What the target shares is in the target's own files. A token map that the server was given is written as
    `hot_token_id`. Not on the hot path: it waits for the device.
    """
    from eagletrace.instrumentations.sglang.load import named_tensors, shared_places

    ids = served_map(session)
    mapped = ids is not None and find(session.keys, "d2t") is None
    chosen = [("hot_token_id", ids)] if ids is not None and mapped else list[tuple[str, torch.Tensor]]()
    for prefix, model in drafts(session):
        shared = shared_places(session, model)
        for name, tensor in named_tensors(model, prefix):
            loaded = session.params.get(name, {}).get("elements_loaded")
            if loaded is not None and loaded < tensor.numel() and place(tensor) not in shared:
                chosen.append((name, tensor))
    _write(session, chosen)


def write_changed(session: Session, names: Collection[str]) -> None:
    """Write the values of draft parameters that an update changed. An update stops the engine: it may wait."""
    from eagletrace.instrumentations.sglang.load import named_tensors

    if session.recorder.settings.level == "tensors" and names:
        tensors = (named for prefix, model in drafts(session) for named in named_tensors(model, prefix))
        _write(session, [(name, tensor) for name, tensor in tensors if name in names])


def _write(session: Session, chosen: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Rows of some parameters, the smaller ones first, until the bound; what is left out is an event."""
    held, left = 0, list[tuple[str, torch.Tensor]]()
    for name, tensor in sorted(chosen, key=lambda item: item[1].nbytes):
        if held + tensor.nbytes > VALUES_BYTES:
            left.append((name, tensor))
            continue
        held += tensor.nbytes
        kept = tensor.detach().to("cpu", copy=True).contiguous()
        session.recorder.row(
            "param_values", name=name, epoch=session.epochs.get("draft", 0), shape=list(kept.shape),
            dtype=str(kept.dtype).removeprefix("torch."), data=kept.reshape(-1).view(torch.uint8).numpy(),
        )  # fmt: skip
    if left:
        elements = sum(tensor.numel() for _, tensor in left)
        session.recorder.event("param_values_bounded", names=[name for name, _ in left], elements=elements)
