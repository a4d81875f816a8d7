"""Wraps engine functions so that they can be unwrapped, and guards them: a hook never changes what the engine does.

A hook observes. It runs before and after the wrapped function, which is called exactly once with the same
arguments; its result and its exceptions pass through unchanged. A hook's own errors are swallowed, counted, and
after `MAX_ERRORS` of them the hook switches itself off.

A plain function is wrapped by a plain function, which is the cheapest; everything else (static and class methods,
objects that another tool made) by `wrapt.FunctionWrapper`, which knows the descriptor protocol.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import wrapt

logger = logging.getLogger("eagletrace")
MAX_ERRORS = 5


@dataclass(frozen=True)
class Target:
    """A function of the engine: `path` is `module:attribute` (or `module:Class.attribute`)."""

    name: str
    path: str
    required: bool
    doc: str
    level: str = "contract"  # the lowest level that needs it
    alternatives: tuple[str, ...] = ()  # names of targets of which one suffices for `required`


class Observer:
    """What hooks have in common: the target, counts, and whether they are on."""

    # Slots, close together: between two calls the engine's work empties the caches.
    __slots__ = ("calls", "enabled", "errors", "last_error", "looks_after", "looks_before", "on", "only", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.calls = self.errors = 0
        self.enabled = True  # False after MAX_ERRORS
        self.on = True  # False after that, and while the wrapper is taken away (somebody else's may still call it)
        self.only: Any = None  # the one object whose calls are observed; of others nothing but the call is seen
        self.last_error: str | None = None
        kind: Any = type(self)
        self.looks_before = kind.before not in (Hook.before, RoundHook.before)
        self.looks_after = kind.after not in (Hook.after, RoundHook.after)

    def wrapper(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        """What is put in place of a plain function."""
        raise NotImplementedError

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        """Runs when the wrapped function raised; the exception goes on afterwards."""

    def swallow(self, error: Exception) -> None:
        """Count an error of the hook's own; too many switch it off."""
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if self.errors == 1:
            logger.warning(
                "eagletrace: hook on %s failed: %s; serving is not affected", self.target.path, self.last_error
            )
            logger.debug("eagletrace: hook error", exc_info=error)
        if self.errors >= MAX_ERRORS and self.enabled:
            self.enabled = self.on = False
            logger.warning("eagletrace: hook on %s switched itself off after %d errors", self.target.path, self.errors)


class Hook(Observer):
    """Observes one target. Subclasses override `before`, `after` and `failed`; what `before` returns is given to both.

    args and kwargs are the caller's; `instance` is the object of a method, None for a function.
    """

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs before the wrapped function."""

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs after the wrapped function returned."""

    def __call__(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call `wrapped`, bound to `instance` if it is a method, under observation: what wrapt asks of a wrapper."""
        return self._observed(wrapped, 0, instance)(*args, **kwargs)

    def wrapper(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        """A function that calls `original` under observation."""
        return self._observed(original, 1 if method else 0, None)

    def _observed(self, original: Callable[..., Any], first: int, owner: Any) -> Callable[..., Any]:
        """`first` arguments are the instance; without one it is `owner`."""
        hook = self

        def observed(*args: Any, **kwargs: Any) -> Any:
            hook.calls += 1
            instance = args[0] if first else owner
            if not hook.on or (hook.only is not None and hook.only is not instance):
                return original(*args, **kwargs)
            token: Any = None
            given = args[first:]
            try:
                if hook.looks_before:
                    token = hook.before(instance, given, kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
                hook.swallow(error)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                failed(hook, token, error, instance)
                raise
            try:
                if hook.looks_after:
                    hook.after(token, result, instance, given, kwargs)
            except Exception as error:  # noqa: BLE001
                hook.swallow(error)
            return result

        return observed


class RoundHook(Observer):
    """As `Hook`, for what runs in every round: args are the function's own, of a method with the instance first.

    Its wrapper does as little as it can: where the caches are cold, what an ordinary one does with its arguments takes
    longer than most hooks.
    """

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs before the wrapped function."""

    def after(self, token: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs after the wrapped function returned."""

    def __call__(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call `wrapped`, bound to `instance` if it is a method, under observation: what wrapt asks of a wrapper."""
        if instance is None:
            return self.wrapper(wrapped, method=False)(*args, **kwargs)

        def unbound(_: Any, *given: Any, **named: Any) -> Any:
            return wrapped(*given, **named)

        return self.wrapper(unbound, method=True)(instance, *args, **kwargs)

    def wrapper(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        """A function that calls `original` under observation."""
        hook = self

        def observed(*args: Any, **kwargs: Any) -> Any:
            hook.calls += 1
            if not hook.on:
                return original(*args, **kwargs)
            token: Any = None
            try:
                if hook.looks_before:
                    token = hook.before(args, kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
                hook.swallow(error)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                failed(hook, token, error, args[0] if method else None)
                raise
            try:
                if hook.looks_after:
                    hook.after(token, result, args, kwargs)
            except Exception as error:  # noqa: BLE001
                hook.swallow(error)
            return result

        return observed


def failed(hook: Observer, token: Any, error: BaseException, instance: Any) -> None:
    """Tell a hook that the wrapped function raised."""
    try:
        hook.failed(token, error, instance)
    except Exception as own:  # noqa: BLE001
        hook.swallow(own)


def _wrapper(hook: Hook | RoundHook, original: Any, *, method: bool) -> Any:
    # Not isinstance: a wrapper of another tool's may pass for the function that it wraps, and would not be bound.
    own = type(hook).__call__ not in (Hook.__call__, RoundHook.__call__)
    if type(original) is not FunctionType or own:
        return wrapt.FunctionWrapper(original, hook)
    found = functools.wraps(original)(hook.wrapper(original, method=method))
    found.__dict__["_eagletrace_hook"] = hook
    return found


@dataclass
class _Place:
    owner: Any
    attribute: str
    original: Any
    away: bool = False  # `undo` took the wrapper away here


@dataclass
class Patch:
    """An installed wrapper and every place where it stands."""

    hook: Hook | RoundHook
    wrapper: Any
    places: list[_Place] = field(default_factory=list[_Place])

    def in_place(self) -> bool:
        """Whether the object at the target is still ours."""
        first = self.places[0]
        return vars(first.owner).get(first.attribute) is self.wrapper

    def undo(self) -> None:
        """Put the original objects back, where nobody else has wrapped them since."""
        self.hook.on = False
        for place in self.places:
            if vars(place.owner).get(place.attribute) is self.wrapper:
                setattr(place.owner, place.attribute, place.original)
                place.away = True

    def redo(self) -> bool:
        """Put the wrapper back where `undo` took it away; False if somebody else has wrapped the target since then."""
        for place in self.places:
            if place.away and vars(place.owner).get(place.attribute) is place.original:
                setattr(place.owner, place.attribute, self.wrapper)
                place.away = False
        if self.places[0].away:
            return False
        self.hook.on = self.hook.enabled
        return True


def install(hook: Hook | RoundHook, ours: Sequence[Any] = ()) -> Patch | None:
    """Wrap the hook's target; None if one of our wrappers already stands there under another name.

    Raises ImportError or AttributeError where the engine has no such target.
    """
    owner, attribute, original = resolve(hook.target.path)
    hook.on = hook.enabled
    if any(original is wrapper for wrapper in ours):
        return None
    wrapper = _wrapper(hook, original, method=isinstance(owner, type))
    patch = Patch(hook, wrapper, [_Place(owner, attribute, original)])
    setattr(owner, attribute, wrapper)
    if not isinstance(owner, type):
        _rebind(patch, original)
    return patch


def resolve(path: str) -> tuple[Any, str, Any]:
    """Owner, attribute and raw object of a target's path; ImportError or AttributeError where there is none."""
    module_name, _, dotted = path.partition(":")
    owner: Any = importlib.import_module(module_name)
    *parents, attribute = dotted.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    # The raw attribute, so that static and class methods stay what they are.
    own: dict[str, Any] = dict(vars(owner))
    return owner, attribute, own[attribute] if attribute in own else _missing(owner, attribute)


def _missing(owner: Any, attribute: str) -> Any:
    raise AttributeError(f"{owner!r} does not define {attribute!r}")


def _rebind(patch: Patch, original: Any) -> None:
    """Replace the names under which other modules imported a function."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if names is None or module is patch.places[0].owner:
            continue
        for name, value in list(names.items()):
            if value is original:
                setattr(module, name, patch.wrapper)
                patch.places.append(_Place(module, name, original))


def replace_on(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[], bool]:
    """Set a method on one object; returns what brings back what was there, unless it is somebody else's by now."""
    own = vars(owner)
    before = own.get(name)
    setattr(owner, name, function)

    def undo() -> bool:
        if own.get(name) is not function:
            return False
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
        return True

    return undo
