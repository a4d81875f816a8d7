"""Aux hidden states: the layers asked for, where the request was read, and the layers captured.

SGLang asks its target through `set_eagle3_layers_to_capture(ids)` (model_runner.py of 0.5.9,
attention_backend_setup.py of 0.5.23); each target class decides what an id means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any, cast

from torch import nn

from eagletrace.instrumentations.sglang.facts import config_of
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.sharing import caller
from eagletrace.instrumentations.sglang.targets import AUX_LAYER_KEYS, AUX_LAYER_PATH_READ

METHOD = "set_eagle3_layers_to_capture"
DEFAULT_AUX = 3


def watch(session: Session, model: Any) -> None:
    """Wrap the capture method of this one target model."""
    original = getattr(model, METHOD, None)
    if not callable(original):
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            session.count(METHOD)
            requested = args[0] if args else kwargs.get("layer_ids")
            session.requested_layers = requested
            detail = {
                "requested": requested,
                "captured": captured(model),
                "caller": caller(),
                "model": type(model).__name__,
            }
            session.recorder.event("layers_captured", **detail)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            session.recorder.event("hook_error", target=METHOD, error=repr(error))
        return result

    setattr(model, METHOD, call)
    session.undo.append(partial(vars(model).pop, METHOD, None))


def _with_attribute(model: Any, name: str) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        if name in vars(module):
            yield path or type(module).__name__, vars(module)[name]


def _innermost(model: Any, name: str) -> tuple[str, Any] | None:
    """Where the innermost module that has an attribute stands, and its value: a wrapper's own has no say."""
    found = list(_with_attribute(model, name))
    return max(found, key=lambda item: -1 if item[0] == type(model).__name__ else item[0].count(".")) if found else None


def captured(model: Any) -> list[int] | None:
    """The layers whose inputs the target captures; None if none were set where its decoder looks."""
    _, layers = _innermost(model, "layers_to_capture") or ("", None)
    return [int(x) for x in layers] if layers else None


def config_ids(config: Mapping[str, Any], path: str = "") -> dict[str, list[int]]:
    """Every place of a draft's configuration that names aux layers."""
    found: dict[str, list[int]] = {}
    for key, value in config.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found |= config_ids(cast("Mapping[str, Any]", value), here)
        elif key in AUX_LAYER_KEYS and isinstance(value, list):
            ids = cast("list[Any]", value)
            if all(isinstance(x, int) for x in ids):
                found[here] = ids
    return found


class _Shadow:
    """Reads through to a model and keeps writes to itself, so that the model's own rule can be asked what it would
    capture without changing the model."""

    def __init__(self, of: Any) -> None:
        self.__dict__["_of"] = of

    def __getattr__(self, name: str) -> Any:
        of = self.__dict__["_of"]
        value = getattr(of, name)
        if isinstance(value, MethodType) and value.__self__ is of:
            return MethodType(value.__func__, self)  # a method of the model must not write to the model
        if isinstance(value, nn.Module):
            value = self.__dict__[name] = _Shadow(value)
        return value

    def __getitem__(self, key: Any) -> Any:
        """A layer of a list of layers, which some classes mark one by one."""
        return _Shadow(self.__dict__["_of"][key])

    def _captured(self) -> list[int] | None:
        own = self.__dict__.get("layers_to_capture")
        if own:
            return [int(x) for x in own]
        inner = (v._captured() for v in self.__dict__.values() if isinstance(v, _Shadow))
        return next((found for found in inner if found), None)


def would_capture(model: Any, ids: list[int] | None) -> list[int] | None:
    """The layers that the target's class would capture for `ids` (None: its default); None if it cannot be asked.

    The class of a model inside a wrapper is asked where the wrapper's says nothing.
    """
    inner = (m for m in model.modules() if m is not model) if isinstance(model, nn.Module) else ()
    return next((layers for asked in (model, *inner) if (layers := _asked(asked, ids))), None)


def _asked(model: Any, ids: list[int] | None) -> list[int] | None:
    rule = getattr(type(model), METHOD, None)
    if rule is None:
        return None
    shadow = _Shadow(model)
    try:
        rule(shadow, ids)
    except Exception:  # noqa: BLE001 - an answer that cannot be had is NULL
        return None
    return shadow._captured()  # pyright: ignore[reportPrivateUsage]


def served_facts(session: Session, draft_config: Mapping[str, Any], is_eagle3_draft: bool) -> None:
    """Facts of the capture, once the engine has asked for it."""
    recorder, model = session.recorder, getattr(session.target_runner, "model", None)
    if model is None:
        return
    calls = session.counts.get(METHOD, 0)
    named = config_ids(draft_config)
    expected_ids = _expected_ids(named)
    requested = session.requested_layers if calls else None
    recorder.fact("aux.set_layers_calls", calls)
    recorder.fact("aux.config_ids", named)
    recorder.fact("aux.layers_requested", requested, expected_ids, _source(calls, requested, named))
    layers = captured(model) if calls else None
    flags = dict(_with_attribute(model, "capture_aux_hidden_states"))
    inner = _innermost(model, "capture_aux_hidden_states")
    recorder.fact("aux.capture_enabled", {k: bool(v) for k, v in flags.items()}, source=inner[0] if inner else None)
    if is_eagle3_draft:
        choices = _expected_layers(model, named)
        expected = layers if layers in choices else next(iter(choices), None)
        recorder.fact("aux.layers_captured", layers, expected, type(model).__name__)
        recorder.fact("aux.count", len(set(layers)) if layers else 0, _aux_count(session))
    else:
        recorder.fact("aux.layers_captured", layers, None, type(model).__name__)
        recorder.fact("aux.count", len(set(layers)) if layers else 0, None)


def without_method(session: Session) -> None:
    """Facts of a target that cannot be asked: the engine ends before it would be, so they are written on loading.

    0.5.9 ends before the draft is loaded, 0.5.23 after that.
    """
    model = getattr(session.target_runner, "model", None)
    if model is None or callable(getattr(model, METHOD, None)):
        return
    if session.draft_facts:
        eagle3, due = session.draft_facts.get("eagle3"), _aux_count(session)
    else:
        algorithm = getattr(session.server_args, "speculative_algorithm", None)
        eagle3, due = algorithm == "EAGLE3", _configured_count(session)
    if eagle3:
        session.recorder.fact("aux.set_layers_calls", 0, source=f"{type(model).__name__} has no {METHOD}")
        session.recorder.fact("aux.count", 0, due)


def _configured_count(session: Session) -> int:
    """Aux states that a draft's configuration names, by the rule of llama_eagle3.py, 0.5.23."""
    config = config_of(None, getattr(session.server_args, "speculative_draft_model_path", None))
    ids = config_ids(config).get(AUX_LAYER_PATH_READ)
    return config.get("num_aux_hidden_states") or len(ids or ()) or DEFAULT_AUX


def _expected_ids(named: Mapping[str, list[int]]) -> list[int] | None:
    """The ids that the training wrote down: a top-level list before the engine's nested one."""
    unread = [ids for path, ids in named.items() if path != AUX_LAYER_PATH_READ]
    return unread[0] if unread else named.get(AUX_LAYER_PATH_READ)


def _expected_layers(model: Any, named: Mapping[str, list[int]]) -> list[list[int] | None]:
    """What could have been meant, as inputs of layers.

    A place that SGLang reads means what the target's class makes of it. A place that it does not read is written
    in one of two conventions: the engine's (outputs of layers), or as indices of hidden states (inputs of layers,
    as vLLM and speculators write them); beside a place that SGLang reads it is the latter, else it would be there
    twice. Without any ids, the class's default is what is expected.
    """
    unread = [ids for path, ids in named.items() if path != AUX_LAYER_PATH_READ]
    if unread and AUX_LAYER_PATH_READ in named:
        return [list(ids) for ids in unread]
    if unread:
        return [choice for ids in unread for choice in (list(ids), would_capture(model, ids)) if choice]
    return [would_capture(model, named.get(AUX_LAYER_PATH_READ))]


def _source(calls: int, requested: list[int] | None, named: Mapping[str, list[int]]) -> str:
    if not calls:
        return "never asked for"
    if requested is None:
        return "default of the target's class"
    return next((f"draft config {path}" for path, ids in named.items() if list(ids) == list(requested)), "elsewhere")


def _aux_count(session: Session) -> int | None:
    """Aux states that the fusion layer was built for: fc.in_features / hidden size of the target."""
    facts = session.draft_facts
    width, hidden = facts.get("fc_in"), facts.get("target_hidden_size")
    return width // hidden if width and hidden else None
