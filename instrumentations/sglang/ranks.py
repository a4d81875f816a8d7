"""The ranks of a scheduler process, wherever the release keeps them."""

from __future__ import annotations

from typing import Any

NAMES = ("tp_rank", "dp_rank", "pp_rank")
# Scheduler.__init__(server_args, port_args, gpu_id, tp_rank, moe_ep_rank, pp_rank, ...) to 0.5.13
# (scheduler.py of 0.5.9); 0.5.23 keeps them in runtime_context.


def scheduler_ranks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int | None]:
    """`tp_rank`, `dp_rank` and `pp_rank` of the scheduler about to be built; None where unknown."""
    given = {name: kwargs[name] for name in NAMES if name in kwargs} | _positional(args)
    if not given:
        given = _from_context()
    return {name: _number(given.get(name)) for name in NAMES}


def _positional(args: tuple[Any, ...]) -> dict[str, Any]:
    if len(args) < 6:
        return {}
    import inspect

    from sglang.srt.managers.scheduler import Scheduler

    parameters = list(inspect.signature(Scheduler.__init__).parameters)[1:]
    return {name: value for name, value in zip(parameters, args, strict=False) if name in NAMES}


def _from_context() -> dict[str, Any]:
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return {}
    parallel = get_parallel()
    ranks = {name: getattr(parallel, name, None) for name in ("tp_rank", "pp_rank")}
    ranks["dp_rank"] = getattr(parallel, "dp_rank", None)
    return ranks


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
