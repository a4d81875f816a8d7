"""What tests do inside a lab server: break hooks, the engine, or the recorder's disk. Called through `sitecustomize`.

`$REMOTE_START` names functions (comma separated) that every process of the server calls before anything else.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import wrapt

HOOKS = "eagletrace.instrumentations.sglang.hooks"
V2 = "sglang.srt.speculative.eagle_worker_v2"
SCHEDULER = "sglang.srt.managers.scheduler"
PHASES = ("before", "after", "failed")

_raise: Counter[tuple[str, str]] = Counter()  # how often a phase of a hook is still to raise
_raised: Counter[str] = Counter()
_called: Counter[str] = Counter()  # calls through wrappers of the other tool
_theirs: dict[str, Any] = {}
_hang: list[float] = []


class InjectedError(Exception):
    """What broken hooks and the broken engine raise."""


def at_start() -> None:
    """Run what `$REMOTE_START` names."""
    wrapt.register_post_import_hook(_break_hooks, HOOKS)
    for name in filter(None, os.environ.get("REMOTE_START", "").split(",")):
        globals()[name]()


# -- hooks ------------------------------------------------------------------------------------------


def _break_hooks(module: Any) -> None:
    """Before anything is attached: each phase of each hook class asks first whether it is to raise."""
    for name in list(module.HOOKS):
        module.HOOKS[name] = _breakable(module.HOOKS[name])


def _breakable(factory: type[Any]) -> type[Any]:
    def phase(name: str) -> Callable[..., Any]:
        original = getattr(factory, name)

        def run(self: Any, *args: Any) -> Any:
            key = (self.target.name, name)
            if _raise[key] > 0:
                _raise[key] -= 1
                _raised[self.target.name] += 1
                raise InjectedError(f"{self.target.name} broke in {name}")
            return original(self, *args)

        return run

    overridden = [n for n in PHASES if n != "failed" or "failed" in vars(factory)]
    return type(factory.__name__, (factory,), {n: phase(n) for n in overridden})


def break_hook(name: str, before: int, after: int, failed: int = 0) -> None:
    """Make the phases of a hook raise that many times."""
    for phase, times in zip(PHASES, (before, after, failed), strict=True):
        _raise[name, phase] = times


def break_load_hooks() -> None:
    """From the start: the hooks that run while models are loaded raise."""
    _raise["runner.load_model", "before"] = 1
    _raise["loader.load_weights", "before"] = 5


def hooks() -> dict[str, dict[str, Any]]:
    """Each installed hook by the name of its target."""
    return {
        p.hook.target.name: {
            "path": p.hook.target.path, "calls": p.hook.calls, "errors": p.hook.errors, "enabled": p.hook.enabled,
            "in_place": p.in_place(), "raised": _raised[p.hook.target.name],
        }
        for p in _patches()
    }  # fmt: skip


def _attachment() -> Any:
    from eagletrace import activate

    return activate._state.get("attachment")  # pyright: ignore[reportPrivateUsage]


def _patches() -> list[Any]:
    attachment = _attachment()
    return list(attachment.hooks.patches.values()) if attachment is not None else []


def uninstrument() -> None:
    """As a user would."""
    import eagletrace

    eagletrace.uninstrument()


def targets(paths: list[str]) -> dict[str, str]:
    """Type of the object at each place, and whether it is ours, theirs or the engine's."""
    return {path: _whose(path) for path in paths}


def _at(path: str) -> tuple[Any, str, Any]:
    module, _, dotted = path.partition(":")
    *parents, name = dotted.split(".")
    owner = sys.modules[module]
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name, vars(owner)[name]


def _whose(path: str) -> str:
    value = _at(path)[2]
    if value is _theirs.get(path):
        return "theirs"
    if any(value is p.wrapper for p in _patches()):
        return "ours"
    return "engine"


def call_with_nonsense(paths: list[str]) -> dict[str, str]:
    """Call each target that is there so that the engine's own code raises; what arrived, its cause and context."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            owner, name, _ = _at(path)
        except (KeyError, AttributeError):  # another release has it
            continue
        target = getattr(owner, name)
        try:
            if isinstance(owner, type):
                target(object(), None, None)
            else:
                target(None)
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            found[path] = f"{error!r} {error.__cause__!r} {error.__context__!r}"
    return found


# -- the engine -------------------------------------------------------------------------------------


def break_engine() -> None:
    """The target's next verify raises, and nothing before it: so that the frames are always the same."""
    from sglang.srt.layers.logits_processor import LogitsProcessor  # pyright: ignore

    original = LogitsProcessor.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        modes = [getattr(a, "forward_mode", None) for a in (*args, *kwargs.values())]
        if any(mode is not None and mode.is_target_verify() for mode in modes):
            raise InjectedError("the engine broke")
        return original(self, *args, **kwargs)

    LogitsProcessor.forward = forward


def leave() -> None:
    """End at once."""
    os._exit(7)


def moved_target() -> None:
    """`_draft_extend_for_decode` goes to a base class: there, but not where it was."""

    def move(module: Any) -> None:
        worker = module.EagleDraftWorker
        worker.__mro__[1]._draft_extend_for_decode = vars(worker)["_draft_extend_for_decode"]
        del worker._draft_extend_for_decode

    wrapt.register_post_import_hook(move, V2)


def changed_signature() -> None:
    """`verify_tree_greedy_func` takes other names, and its caller follows."""
    names = {"candidates": "proposals", "target_predict": "wanted"}
    back = {v: k for k, v in names.items()}

    def change(module: Any) -> None:
        original = module.verify_tree_greedy_func

        def verify_tree_greedy_func(**kwargs: Any) -> Any:
            return original(**{back.get(k, k): v for k, v in kwargs.items()})

        module.verify_tree_greedy_func = verify_tree_greedy_func

    def follow(module: Any) -> None:
        spec_tree = sys.modules["sglang.kernels.ops.speculative.spec_tree"]

        def caller(**kwargs: Any) -> Any:
            return spec_tree.verify_tree_greedy_func(**{names.get(k, k): v for k, v in kwargs.items()})

        module.verify_tree_greedy_func = caller

    wrapt.register_post_import_hook(change, "sglang.kernels.ops.speculative.spec_tree")
    wrapt.register_post_import_hook(follow, "sglang.srt.speculative.eagle_utils")


def other_tool_first() -> None:
    """Another tool wraps two targets when their modules are imported, before us."""
    wrapt.register_post_import_hook(lambda _: wrap_as_other_tool(f"{V2}:EAGLEWorkerV2.verify"), V2)
    wrapt.register_post_import_hook(
        lambda _: wrap_as_other_tool(f"{SCHEDULER}:Scheduler.process_batch_result"), SCHEDULER
    )


def wrap_as_other_tool(path: str) -> None:
    """Another tool wraps a target now."""
    owner, name, original = _at(path)

    def theirs(*args: Any, **kwargs: Any) -> Any:
        _called[path] += 1
        return original(*args, **kwargs)

    _theirs[path] = theirs
    setattr(owner, name, theirs)


def other_tool_calls() -> dict[str, int]:
    """How often each wrapper of the other tool was called."""
    return dict(_called)


# -- the disk ---------------------------------------------------------------------------------------


def hang_disk(seconds: float) -> None:
    """Every write of a table from now on waits until so many seconds have passed."""
    import pyarrow.parquet as pq

    if not _hang:
        original = pq.write_table

        def write_table(*args: Any, **kwargs: Any) -> Any:
            time.sleep(max(0.0, _hang[0] - time.monotonic()))
            return original(*args, **kwargs)

        pq.write_table = write_table
        _hang.append(0.0)
    _hang[0] = time.monotonic() + seconds


def recorder() -> dict[str, Any]:
    """How much the recorder holds."""
    recorder = _attachment().recorder
    return {"queued": len(recorder._queue), "alive": recorder._thread.is_alive(), "folder": str(recorder.folder)}
