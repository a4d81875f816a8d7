"""The ranks of a scheduler process, wherever the release keeps them.

With attention data parallelism the tensor-parallel ranks form groups that serve different requests. A rank is then
counted within its group, so that rank 0 of every group is one that counts, as it is with whole replicas.
"""

from __future__ import annotations

from typing import Any

NAMES = ("tp_rank", "dp_rank", "pp_rank")
# Scheduler.__init__(server_args, port_args, gpu_id, tp_rank, moe_ep_rank, pp_rank, ...) to 0.5.20
# (scheduler.py of 0.5.9 and 0.5.20); 0.5.21 and later keep them in runtime_context.


def scheduler_ranks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int | None]:
    """`tp_rank`, `dp_rank` and `pp_rank` of the scheduler about to be built; None where unknown."""
    server_args = args[0] if args else kwargs.get("server_args")
    given = {name: kwargs[name] for name in NAMES if name in kwargs} | _positional(args)
    if given:
        width, groups = _configured(server_args)
    else:
        given, width, groups = _from_context()
    return within_group({name: _number(given.get(name)) for name in NAMES}, width, groups)


def within_group(ranks: dict[str, int | None], width: int, groups: int) -> dict[str, int | None]:
    """Ranks of `width` tensor-parallel ranks that serve as `groups` data-parallel groups of neighbours.

    The layout is (group, rank in the group), the latter changing fastest (dp_attention.py
    `compute_dp_attention_world_info` of 0.5.9, runtime_context.py `derive_attention_ranks` of 0.5.23).
    """
    rank = ranks["tp_rank"]
    if rank is None or groups < 2 or width % groups:
        return ranks
    group, within = divmod(rank, width // groups)
    known = ranks["dp_rank"]
    return {**ranks, "tp_rank": within, "dp_rank": group if known is None else known}


def _positional(args: tuple[Any, ...]) -> dict[str, Any]:
    if len(args) < 6:
        return {}
    import inspect

    from sglang.srt.managers.scheduler import Scheduler

    parameters = list(inspect.signature(Scheduler.__init__).parameters)[1:]
    return {name: value for name, value in zip(parameters, args, strict=False) if name in NAMES}


def _configured(server_args: Any) -> tuple[int, int]:
    """(tensor-parallel size, attention data-parallel groups): `dp_size` means groups with `enable_dp_attention`."""
    groups = getattr(server_args, "dp_size", 1) if getattr(server_args, "enable_dp_attention", False) else 1
    return _number(getattr(server_args, "tp_size", 1)) or 1, _number(groups) or 1


def _from_context() -> tuple[dict[str, Any], int, int]:
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return {}, 1, 1
    parallel = get_parallel()
    ranks = {name: _read(parallel, name) for name in NAMES}
    return ranks, _read(parallel, "tp_size") or 1, _read(parallel, "attn_dp_size") or 1


def _read(parallel: Any, name: str) -> int | None:
    """A field of the context, which raises RuntimeError where it was not written and ValueError before `publish`."""
    try:
        return _number(getattr(parallel, name, None))
    except (RuntimeError, ValueError):
        return None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
