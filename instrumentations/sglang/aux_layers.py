"""EAGLETRACE_AUX_LAYERS: inputs of layers of the target, whatever the engine captures for the draft.

A layer's input is the sum of the hidden state and the residual that it is given. Releases before 0.5.23, and models
that were not moved since, give both as arguments; others keep the residual in `forward_batch.residual_stream`, where it
is complete once the layer's first norm has run, which is before its attention is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from eagletrace.instrumentations.sglang.session import Session

ATTENTION = ("self_attn", "attn", "attention", "linear_attn")
NORM = ("norm", "final_layernorm", "ln_f")
Forward = Callable[..., Any]


class AuxLayers:
    """Hooks on the layers of one target."""

    def __init__(self, session: Session, asked: str) -> None:
        self.session = session
        found = decoder_layers(session.target_runner.model)
        self.path, self._stack, self._norm = found if found is not None else ("", nn.ModuleList(), None)
        self.count = count = len(self._stack)
        wanted = range(count + 1) if asked == "all" else [int(part) for part in asked.split(",")]
        self.layers = tuple(layer for layer in wanted if layer <= count)
        self.unknown = tuple(layer for layer in wanted if layer > count)
        self.calls = self.hidden = 0
        self.error: str | None = None
        self._handles: list[Any] = []

    def watch(self, *, on: bool) -> None:
        """Hook the layers, or cease to."""
        if not on:
            for handle in self._handles:
                handle.remove()
            self._handles = []
        elif not self._handles:
            for layer in self.layers:
                self._hook(layer)

    @property
    def standing(self) -> int:
        """Layers that are hooked."""
        return len(self._handles)

    def _hook(self, layer: int) -> None:
        if layer == len(self._stack):
            if self._norm is not None:
                self._handles.append(self._norm.register_forward_pre_hook(partial(self._before_norm, layer)))
            return
        module = self._stack[layer]
        names = list(inspect.signature(module.forward).parameters)
        if "residual" in names:
            before = partial(self._before_layer, layer, names.index("hidden_states"), names.index("residual"))
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            return
        attention = next((m for m in (getattr(module, name, None) for name in ATTENTION) if m is not None), None)
        if attention is not None:
            names = list(inspect.signature(attention.forward).parameters)
            place = names.index("forward_batch") if "forward_batch" in names else -1
            before = partial(self._before_attention, layer, place)
            self._handles.append(attention.register_forward_pre_hook(before, with_kwargs=True))

    def _before_layer(
        self, layer: int, hidden_at: int, residual_at: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.session.recording is None:
            return
        hidden = args[hidden_at] if hidden_at < len(args) else kwargs.get("hidden_states")
        residual = args[residual_at] if residual_at < len(args) else kwargs.get("residual")
        if not getattr(hidden, "_sglang_needs_allreduce_fusion", False):  # else a part of the sum
            self._keep(layer, hidden, residual)

    def _before_attention(
        self, layer: int, place: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.session.recording is None:
            return
        forward_batch = args[place] if 0 <= place < len(args) else kwargs.get("forward_batch")
        self._keep(layer, getattr(getattr(forward_batch, "residual_stream", None), "residual", None), None)

    def _before_norm(self, layer: int, module: Any, args: tuple[Any, ...]) -> None:
        if self.session.recording is not None:
            self._keep(layer, args[0], args[1] if len(args) > 1 else None)

    def _keep(self, layer: int, hidden: Any, residual: Any) -> None:
        """Give a copy of the sum to what is being recorded."""
        try:
            if not isinstance(hidden, torch.Tensor) or self.session.graphs.capturing():
                return
            self.calls += 1
            self.session.recording.layer(layer, hidden.clone() if residual is None else hidden + residual)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            if self.error is None:
                self.session.recorder.event("hook_error", target="aux_layers", error=repr(error))
            self.error = repr(error)


def decoder_layers(model: Any) -> tuple[str, nn.ModuleList, nn.Module | None] | None:
    """The target's decoder layers, their path and the norm after them; None if there is no list of layers.

    The longest list named `layers` or `h`: a vision tower's is named otherwise or is shorter.
    """
    modules: Mapping[str, nn.Module] = dict(model.named_modules())
    lists = [
        (path, module) for path, module in modules.items()
        if isinstance(module, nn.ModuleList) and path.rpartition(".")[2] in ("layers", "h") and "vis" not in path
    ]  # fmt: skip
    if not lists:
        return None
    path, stack = max(lists, key=lambda item: len(item[1]))
    parent = modules[path.rpartition(".")[0]]
    return path, stack, next((m for m in (getattr(parent, name, None) for name in NORM) if m is not None), None)


def row(session: Session) -> dict[str, Any] | None:
    """The `hooks` row of the target's layers; None if none were asked for."""
    aux: AuxLayers | None = session.aux_layers
    if aux is None:
        return None
    detail = "module hooks of the target's layers"
    if aux.unknown:
        detail = f"no such layers: {', '.join(map(str, aux.unknown))}; the target has {aux.count}"
    if aux.hidden:
        detail = f"not called in {aux.hidden} launches whose verify ran from a captured graph: of prompts alone"
    return {
        "target": f"{type(session.target_runner.model).__name__}:{aux.path or 'layers'}",
        "status": "graph_hidden" if aux.hidden else "installed" if aux.standing else "missing",
        "calls": aux.calls, "errors": int(aux.error is not None), "required": False, "detail": aux.error or detail,
    }  # fmt: skip
