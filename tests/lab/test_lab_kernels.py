"""The stand-in kernels of the newest engine against dense arithmetic."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
HEADS, KV_HEADS, WIDTH, SLOTS = 4, 2, 8, 40


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    import eagletrace.lab

    lab = Path(eagletrace.lab.__file__).parent
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(lab / "kernels_shared"))
    patch.syspath_prepend(str(lab / "kernels_0_5_23"))
    try:
        return importlib.import_module("sgl_kernel")
    finally:
        patch.undo()


def dense(query: Any, key: Any, value: Any, mask: Any, sinks: Any = None) -> Any:
    """Softmax attention written out: query [Lq, Hq, D], key and value [Lk, Hkv, D]; a score per head of nothing."""
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * WIDTH**-0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(query), -1)], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(key)], value)


def caches() -> tuple[Any, Any, Any]:
    """Key cache, value cache, and a req_to_token whose slots are not in order."""
    torch.manual_seed(0)
    table = torch.randperm(SLOTS).view(2, SLOTS // 2).int()
    return torch.randn(SLOTS, KV_HEADS, WIDTH), torch.randn(SLOTS, KV_HEADS, WIDTH), table


def test_decode_writes_its_key_and_attends_to_everything(kernels: ModuleType) -> None:
    keys, values, table = caches()
    lengths, rows = torch.tensor([5, 9]), torch.tensor([1, 0])
    loc = torch.stack([table[1, 4], table[0, 8]])
    query = torch.randn(2, HEADS, WIDTH)
    new_key, new_value = torch.randn(2, KV_HEADS, WIDTH), torch.randn(2, KV_HEADS, WIDTH)
    output = torch.empty_like(query)
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, keys, values, 1.0, 1.0, output, new_key, new_value, loc, torch.empty(0), table, rows, lengths,
        WIDTH**-0.5, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(keys[loc.long()], new_key)
    for index, (row, length) in enumerate(((1, 5), (0, 9))):
        slots = table[row, :length].long()
        expected = dense(query[index : index + 1], keys[slots], values[slots], torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(output[index : index + 1], expected)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["plain", "sinks"])
@pytest.mark.parametrize("tree", [False, True], ids=["causal", "tree"])
def test_extend_sees_the_prefix_and_its_own_part(kernels: ModuleType, tree: bool, sinks: Any) -> None:
    keys, values, table = caches()
    prefix, new = 6, 3
    slots = table[0, : prefix + new].long()
    query = torch.randn(new, HEADS, WIDTH)
    own = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]] if tree else [[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    mask = torch.cat([torch.ones(new, prefix, dtype=torch.bool), own], 1)
    output = torch.empty_like(query)
    torch.ops.sgl_kernel.extend_attention_cpu(
        query, keys[slots[prefix:]], values[slots[prefix:]], output, keys, values, 1.0, 1.0, table, torch.tensor([0]),
        torch.tensor([prefix + new]), torch.tensor([new]), torch.tensor([0]), new, WIDTH**-0.5, 0.0, False, 0, None,
        sinks, own.flatten() if tree else None, True,
    )  # fmt: skip
    torch.testing.assert_close(output, dense(query, keys[slots], values[slots], mask, sinks))


def test_a_sink_takes_a_share_of_a_decoded_token(kernels: ModuleType) -> None:
    keys, values, table = caches()
    query, sinks = torch.randn(1, HEADS, WIDTH), torch.tensor([0.5, -1.0, 2.0, 0.0])
    output, slots = torch.empty_like(query), table[1, :7].long()
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, keys, values, 1.0, 1.0, output, None, None, torch.tensor([0]), torch.empty(0), table, torch.tensor([1]),
        torch.tensor([7]), WIDTH**-0.5, 0.0, False, 0, None, sinks,
    )  # fmt: skip
    every = torch.ones(1, 7, dtype=torch.bool)
    torch.testing.assert_close(output, dense(query, keys[slots], values[slots], every, sinks))
    assert not torch.allclose(output, dense(query, keys[slots], values[slots], every))


def test_what_is_not_stood_in_for_is_refused(kernels: ModuleType) -> None:
    keys, values, table = caches()
    query = torch.randn(1, HEADS, WIDTH)
    with pytest.raises(NotImplementedError, match="sliding window"):
        torch.ops.sgl_kernel.decode_attention_cpu(
            query, keys, values, 1.0, 1.0, torch.empty_like(query), None, None, torch.tensor([0]), torch.empty(0),
            table, torch.tensor([0]), torch.tensor([1]), 1.0, 0.0, False, 128, None, None,
        )  # fmt: skip


def test_slots_are_assigned_and_gathered(kernels: ModuleType) -> None:
    table = torch.zeros(3, 10, dtype=torch.int32)
    rows, starts, ends = torch.tensor([2, 0]), torch.tensor([1, 4]), torch.tensor([3, 7])
    fresh = torch.tensor([11, 12, 21, 22, 23])
    kernels.assign_req_to_token_pool_cpu(rows, table, starts, ends, fresh, 10)
    assert table[2].tolist() == [0, 11, 12, 0, 0, 0, 0, 0, 0, 0]
    assert table[0].tolist() == [0, 0, 0, 0, 21, 22, 23, 0, 0, 0]
    packed = torch.empty(5, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(rows, table, starts, ends, packed, 10)
    assert torch.equal(packed, fresh)


def test_draft_branches_share_the_prefix(kernels: ModuleType) -> None:
    table = torch.arange(10, dtype=torch.int32)[None] + 100
    branches = kernels.build_draft_decode_metadata_cpu(table, torch.tensor([0]), torch.tensor([3]), 2, 3, 10)
    assert branches[:, :6].tolist() == [[100, 101, 102, 103, 104, 105], [100, 101, 102, 106, 107, 108]]
    slots = torch.empty(6, dtype=torch.int64)
    kernels.assign_draft_cache_locs_contiguous_cpu(torch.tensor([0]), table, torch.tensor([3]), slots, 10, 2, 3)
    assert slots.tolist() == [103, 104, 105, 106, 107, 108]


def test_accepted_tokens_and_slots(kernels: ModuleType) -> None:
    bonus = torch.empty(2, dtype=torch.int32)
    kernels.fill_bonus_tokens_cpu(torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1]), bonus, 3)
    assert bonus.tolist() == [7, 8]
    kept = torch.zeros(3, dtype=torch.int64)
    kernels.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2, -1], [3, -1, -1]]), torch.arange(6) + 50, kept)
    assert kept.tolist() == [50, 52, 53]


def test_cache_rows_move_even_when_they_overlap(kernels: ModuleType) -> None:
    layers = [torch.arange(12, dtype=torch.float32).view(6, 2).clone() for _ in range(2)]
    pointers = torch.tensor([layer.data_ptr() for layer in layers])
    strides = torch.tensor([layer.stride(0) * layer.element_size() for layer in layers])
    kernels.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([1, 2]), torch.tensor([2, 4]))
    for layer in layers:
        assert layer.tolist() == [[0, 1], [4, 5], [8, 9], [6, 7], [8, 9], [10, 11]]


def test_input_ids_rotate(kernels: ModuleType) -> None:
    ids = torch.tensor([1, 2, 3, 7, 8])
    kernels.rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([4, 9]), None)
    assert ids.tolist() == [2, 3, 4, 8, 9]
