"""Wrapping: a hook observes, and the engine never notices it."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import wrapt

from eagletrace.instrumentations.patching import MAX_ERRORS, Hook, Patch, Target, install

ENGINE = '''
class EngineError(Exception):
    pass

class Worker:
    calls = 0
    def step(self, x, *, fail=False):
        """One step."""
        Worker.calls += 1
        if fail:
            raise EngineError(x)
        return [x]
    @staticmethod
    def static(x):
        return x + 1
    @classmethod
    def build(cls, x):
        return cls, x

class Special(Worker):
    pass

def verify(x):
    return x * 2
'''
USER = "from fake_engine import verify\nfrom fake_engine import verify as alias\ndef use(x):\n    return verify(x)\n"


class Watch(Hook):
    """Notes what it sees; raises in the phases it is told to."""

    def __init__(self, path: str, *broken: str) -> None:
        super().__init__(Target("t", path, True, "a test"))
        self.broken, self.seen = broken, list[Any]()

    def _note(self, phase: str, *what: Any) -> None:
        self.seen.append((phase, *what))
        if phase in self.broken:
            raise RuntimeError(f"hook broke in {phase}")

    def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._note("before", instance, args, kwargs)
        return "token"

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._note("after", token, result)

    def failed(self, token: Any, error: BaseException, instance: Any) -> None:
        self._note("failed", token, error)


@pytest.fixture
def engine() -> Iterator[Any]:
    """A fake engine, and a module that imported its function by name."""
    modules = {"fake_engine": ENGINE, "fake_user": USER}
    for name, source in modules.items():
        sys.modules[name] = module = ModuleType(name)
        exec(source, module.__dict__)
    yield sys.modules["fake_engine"]
    for name in modules:
        del sys.modules[name]


def put(hook: Hook) -> Patch:
    patch = install(hook)
    assert patch is not None
    return patch


STEP = "fake_engine:Worker.step"


def test_arguments_and_results_pass_unchanged(engine: Any) -> None:
    hook, worker, x = Watch(STEP), engine.Worker(), object()
    put(hook)
    result = worker.step(x, fail=False)
    assert result[0] is x and engine.Worker.calls == 1
    assert hook.seen == [("before", worker, (x,), {"fail": False}), ("after", "token", result)]
    assert hook.seen[1][2] is result and hook.calls == 1
    assert engine.Worker.step.__doc__ == "One step." and engine.Worker.step.__name__ == "step"


def test_exceptions_pass_unchanged(engine: Any) -> None:
    hook, raised = Watch(STEP), object()
    put(hook)
    with pytest.raises(engine.EngineError) as caught:
        engine.Worker().step(raised, fail=True)
    assert caught.value.args[0] is raised and caught.value.__cause__ is None and engine.Worker.calls == 1
    assert hook.seen[1] == ("failed", "token", caught.value) and hook.errors == 0


@pytest.mark.parametrize("phase", ["before", "after", "failed"])
@pytest.mark.parametrize("fail", [False, True])
def test_errors_of_the_hook_never_reach_the_engine(
    engine: Any, phase: str, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Watch(STEP, phase)
    put(hook)
    with caplog.at_level(logging.WARNING, "eagletrace"):
        if fail:
            with pytest.raises(engine.EngineError):
                engine.Worker().step(1, fail=True)
        else:
            assert engine.Worker().step(1) == [1]
    assert engine.Worker.calls == 1  # once, whatever the hook does
    fired = phase == "before" or fail == (phase == "failed")
    assert hook.errors == len(caplog.records) == int(fired)
    if fired:
        assert hook.last_error == f"RuntimeError: hook broke in {phase}" and "not affected" in caplog.messages[0]


def test_a_hook_switches_itself_off_after_some_errors(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    hook, worker = Watch(STEP, "before"), engine.Worker()
    put(hook)
    with caplog.at_level(logging.WARNING, "eagletrace"):
        for x in range(MAX_ERRORS + 3):
            assert worker.step(x) == [x]
    assert not hook.enabled and hook.errors == MAX_ERRORS
    assert hook.calls == engine.Worker.calls == MAX_ERRORS + 3  # calls are still counted
    assert len([s for s in hook.seen if s[0] == "before"]) == MAX_ERRORS
    assert len(caplog.records) == 2 and "switched itself off" in caplog.messages[1]


def test_an_interrupt_is_not_swallowed(engine: Any) -> None:
    class Interrupted(Hook):
        def before(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            raise KeyboardInterrupt

    put(Interrupted(Target("t", STEP, True, "a test")))
    with pytest.raises(KeyboardInterrupt):
        engine.Worker().step(1)


def test_static_and_class_methods_stay_what_they_are(engine: Any) -> None:
    originals = {n: vars(engine.Worker)[n] for n in ("static", "build")}
    hooks = {n: Watch(f"fake_engine:Worker.{n}") for n in originals}
    patches = [put(h) for h in hooks.values()]
    assert engine.Worker.static(1) == engine.Worker().static(1) == 2
    assert engine.Worker.build(1) == (engine.Worker, 1) and engine.Special.build(2) == (engine.Special, 2)
    assert hooks["build"].seen[0][1:] == (engine.Worker, (1,), {}) and hooks["static"].seen[0][2:] == ((1,), {})
    assert [h.calls for h in hooks.values()] == [2, 2]
    for patch in patches:
        patch.undo()
    assert all(vars(engine.Worker)[n] is original for n, original in originals.items())


def test_names_that_other_modules_imported_are_wrapped_and_put_back(engine: Any) -> None:
    user: Any = sys.modules["fake_user"]
    original, hook = engine.verify, Watch("fake_engine:verify")
    patch = put(hook)
    assert engine.verify is user.verify is user.alias is patch.wrapper and patch.in_place()
    assert user.use(3) == 6 and hook.calls == 1
    patch.undo()
    assert engine.verify is original and user.verify is original and user.alias is original
    assert not patch.in_place() and user.use(3) == 6 and hook.calls == 1


def test_undo_leaves_what_somebody_else_wrapped_since(engine: Any) -> None:
    patch = put(Watch(STEP))

    def theirs(self: Any, x: Any) -> str:
        return "theirs"

    engine.Worker.step = theirs
    assert not patch.in_place()
    patch.undo()
    assert vars(engine.Worker)["step"] is theirs


def other_tool(original: Any, kind: str) -> Any:
    """How another tool may wrap a method: a function, wrapt's wrapper, or an object that is no function."""
    calls: list[Any] = []

    def plainly(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    def with_wrapt(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append((instance, *args))
        return wrapped(*args, **kwargs)

    made: Any = {
        "function": lambda: functools.wraps(original)(plainly),
        "wrapt": lambda: wrapt.FunctionWrapper(original, with_wrapt),
        "partialmethod": lambda: functools.partialmethod(plainly),
    }[kind]()
    return made, calls


KINDS = ["function", "wrapt", "partialmethod"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_that_wrapped_before_us_keeps_its_wrapper(engine: Any, kind: str) -> None:
    theirs, calls = other_tool(vars(engine.Worker)["step"], kind)
    engine.Worker.step = theirs
    hook = Watch(STEP)
    patch = put(hook)
    worker = engine.Worker()
    assert worker.step(1) == [1] and len(calls) == hook.calls == engine.Worker.calls == 1
    assert hook.seen[0] == ("before", worker, (1,), {})
    assert calls == [(worker, 1)]  # as it sees them without us
    patch.undo()
    assert vars(engine.Worker)["step"] is theirs
    assert worker.step(2) == [2] and len(calls) == 2 and hook.calls == 1


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_tool_that_wrapped_after_us_our_hook_falls_silent(engine: Any, kind: str) -> None:
    original, hook, worker = vars(engine.Worker)["step"], Watch(STEP), engine.Worker()
    patch = put(hook)
    theirs, calls = other_tool(patch.wrapper, kind)
    engine.Worker.step = theirs
    assert worker.step(1) == [1] and len(calls) == hook.calls == 1 and not patch.in_place()
    patch.undo()
    assert vars(engine.Worker)["step"] is theirs  # they call us still
    seen = list(hook.seen)
    assert worker.step(2) == [2] and len(calls) == 2 and hook.seen == seen
    with pytest.raises(engine.EngineError):
        worker.step(3, fail=True)
    assert hook.seen == seen and engine.Worker.calls == 3
    again = Watch(STEP)  # traced again, on top of them
    put(again).undo()
    assert vars(engine.Worker)["step"] is theirs
    engine.Worker.step = patch.wrapper  # they leave, and put back what they had found
    assert worker.step(4) == [4] and hook.seen == seen
    assert original is not patch.wrapper


def test_a_name_that_another_tool_took_since_is_left_to_it(engine: Any) -> None:
    user: Any = sys.modules["fake_user"]
    original, hook = engine.verify, Watch("fake_engine:verify")
    patch = put(hook)
    user.alias = theirs = functools.partial(patch.wrapper)
    patch.undo()
    assert user.alias is theirs and user.verify is engine.verify is original
    assert user.alias(3) == 6 and hook.seen == []


def test_one_function_under_two_names_is_wrapped_once(engine: Any) -> None:
    patch = put(Watch("fake_engine:verify"))
    assert install(Watch("fake_user:verify"), ours=[patch.wrapper]) is None


@pytest.mark.parametrize("path", ["fake_engine:Worker.gone", "fake_engine:Gone.step", "fake_engine:gone",
                                  "fake_engine:Special.step"])  # fmt: skip
def test_a_target_that_is_not_there_is_an_error_for_the_caller_and_changes_nothing(engine: Any, path: str) -> None:
    step = vars(engine.Worker)["step"]
    with pytest.raises(AttributeError):
        install(Watch(path))
    with pytest.raises(ImportError):
        install(Watch("fake_engine_gone:verify"))
    assert vars(engine.Worker)["step"] is step and "step" not in vars(engine.Special)


def test_a_wrapper_comes_back_where_it_was_taken_away(engine: Any) -> None:
    hook = Watch(STEP)
    patch = put(hook)
    patch.undo()
    engine.Worker().step(1)
    assert hook.calls == 0 and patch.redo() and patch.in_place()
    engine.Worker().step(1)
    assert hook.calls == 1


def test_another_tools_wrapper_that_came_meanwhile_is_not_lost(engine: Any) -> None:
    hook, theirs = Watch(STEP), list[Any]()
    patch = put(hook)
    patch.undo()
    original = engine.Worker.step

    def other(self: Any, *args: Any, **kwargs: Any) -> Any:
        theirs.append(args)
        return original(self, *args, **kwargs)

    engine.Worker.step = other
    assert not patch.redo()
    again = install(hook)
    assert again is not None
    engine.Worker().step(1)
    assert hook.calls == 1 and theirs == [(1,)]
    again.undo()
    assert engine.Worker.step is other


def test_a_wrapper_under_another_tools_goes_quiet_and_comes_back(engine: Any) -> None:
    hook = Watch(STEP)
    patch = put(hook)
    ours = engine.Worker.step

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    engine.Worker.step = theirs
    patch.undo()
    engine.Worker().step(1)
    assert hook.seen == []
    assert patch.redo()
    engine.Worker().step(1)
    assert [phase for phase, *_ in hook.seen] == ["before", "after"]
