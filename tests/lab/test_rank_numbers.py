"""Which rank a scheduler is, as each release says it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eagletrace.instrumentations.sglang.ranks import scheduler_ranks, within_group


class Context:
    """As `runtime_context.get_parallel()`: a name that nobody has written raises."""

    def __init__(self, **known: Any) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        if name not in self._known:
            raise RuntimeError(f"parallel name {name!r} has not been written in this process")
        return self._known[name]


def with_context(patch: pytest.MonkeyPatch, **known: Any) -> None:
    module = ModuleType("sglang.srt.runtime_context")
    module.get_parallel = lambda: Context(**known)  # pyright: ignore[reportAttributeAccessIssue]
    patch.setitem(sys.modules, "sglang.srt.runtime_context", module)


def test_ranks_come_from_the_context_of_newer_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    with_context(monkeypatch, tp_rank=1, pp_rank=0, dp_rank=None, tp_size=2, attn_dp_size=1)
    assert scheduler_ranks((SimpleNamespace(), None), {}) == {"tp_rank": 1, "dp_rank": None, "pp_rank": 0}


def test_a_rank_that_is_not_known_yet_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with_context(monkeypatch, tp_rank=0)
    assert scheduler_ranks((SimpleNamespace(), None), {}) == {"tp_rank": 0, "dp_rank": None, "pp_rank": None}


def test_ranks_given_by_name_are_taken() -> None:
    server_args = SimpleNamespace(tp_size=4, dp_size=2, enable_dp_attention=False)
    given = {"server_args": server_args, "tp_rank": 3, "dp_rank": 1, "pp_rank": 0}
    assert scheduler_ranks((), given) == {"tp_rank": 3, "dp_rank": 1, "pp_rank": 0}


@pytest.mark.parametrize("dp_rank", [None, 1])
def test_with_attention_data_parallelism_a_rank_counts_within_its_group(dp_rank: int | None) -> None:
    """Each group serves requests of its own: its rank 0 is one whose rounds count."""
    server_args = SimpleNamespace(tp_size=4, dp_size=2, enable_dp_attention=True)
    given = {"server_args": server_args, "tp_rank": 2, "dp_rank": dp_rank, "pp_rank": 0}
    assert scheduler_ranks((), given) == {"tp_rank": 0, "dp_rank": 1, "pp_rank": 0}


def test_groups_are_those_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with_context(monkeypatch, tp_rank=5, pp_rank=0, dp_rank=2, tp_size=8, attn_dp_size=4)
    assert scheduler_ranks((SimpleNamespace(), None), {}) == {"tp_rank": 1, "dp_rank": 2, "pp_rank": 0}


def test_the_layout_is_sglangs() -> None:
    context = pytest.importorskip("sglang.srt.runtime_context")
    if not hasattr(context, "derive_attention_ranks"):
        pytest.skip("a release without derive_attention_ranks")
    for width, groups in ((2, 2), (8, 2), (8, 8), (6, 3)):
        for rank in range(width):
            theirs = context.derive_attention_ranks(tp_rank=rank, attn_tp_size=width // groups, attn_cp_size=1)
            ours = within_group({"tp_rank": rank, "dp_rank": None, "pp_rank": 0}, width, groups)
            assert (ours["tp_rank"], ours["dp_rank"]) == theirs
