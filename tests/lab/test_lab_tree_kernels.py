"""The stand-in tree kernels on trees small enough to check by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    import eagletrace.lab

    path = Path(eagletrace.lab.__file__).parent / "kernels_shared" / "lab_tree_kernels.py"
    spec = importlib.util.spec_from_file_location("lab_tree_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Top-k 2, two steps: candidates 0, 1 grow from the root, 2..3 from candidate 0, 4..5 from candidate 1.
# Kept: 0, 1, 3, 4 -> nodes 1, 2 (depth 1), 3 under node 1, 4 under node 2.
PARENTS = [[-1, 0, 1]]
SELECTED = [[0, 1, 3, 4]]


def build(kernels: ModuleType, mode: int, length: int) -> tuple[object, ...]:
    nodes = 5
    prefix = length if mode == kernels.FULL_MASK else 0
    mask = torch.ones(nodes * (prefix + nodes), dtype=torch.bool)
    positions = torch.empty(nodes, dtype=torch.long)
    index, child, sibling = (torch.full((1, nodes), -1) for _ in range(3))
    kernels.build_tree(
        torch.tensor(PARENTS), torch.tensor(SELECTED), torch.tensor([length]), mask, positions, index, child, sibling,
        2, 2, nodes, mode,
    )  # fmt: skip
    return mask.view(nodes, prefix + nodes), positions, index, child, sibling


def test_tree_links_positions_and_mask(kernels: ModuleType) -> None:
    mask, positions, index, child, sibling = build(kernels, kernels.QLEN_ONLY, length=7)
    assert positions.tolist() == [7, 8, 8, 9, 9]  # pyright: ignore
    assert index.tolist() == [[0, 1, 2, 3, 4]]  # pyright: ignore
    assert child.tolist() == [[1, 3, 4, -1, -1]]  # pyright: ignore
    assert sibling.tolist() == [[-1, 2, -1, -1, -1]]  # pyright: ignore
    assert mask.int().tolist() == [  # pyright: ignore
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_the_full_mask_keeps_the_prefix_visible(kernels: ModuleType) -> None:
    short = build(kernels, kernels.QLEN_ONLY, length=3)[0]
    full = build(kernels, kernels.FULL_MASK, length=3)[0]
    assert full[:, :3].all()  # pyright: ignore
    assert torch.equal(full[:, 3:], short)  # pyright: ignore


def test_an_unknown_mask_mode_is_refused(kernels: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match="mask mode 2"):
        build(kernels, 2, length=3)


@pytest.mark.parametrize(
    ("target", "accepted", "predicts"),
    [
        ([20, 0, 31, 0, 50], [0, 2, 4], {0: 20, 2: 31, 4: 50}),  # second child, its child, then the bonus
        ([10, 99, 0, 0, 0], [0, 1], {0: 10, 1: 99}),  # first child, then the target disagrees
        ([7, 0, 0, 0, 0], [0], {0: 7}),  # nothing accepted: the bonus alone
    ],
)
def test_greedy_verification(
    kernels: ModuleType, target: list[int], accepted: list[int], predicts: dict[int, int]
) -> None:
    _, _, index, child, sibling = build(kernels, kernels.QLEN_ONLY, length=7)
    candidates = torch.tensor([[5, 10, 20, 30, 31]])  # node 3 under 1 holds 30, node 4 under 2 holds 31
    out = torch.zeros(5, dtype=torch.int32)
    accept_index = torch.full((1, 3), -1, dtype=torch.int32)
    count = torch.empty(1, dtype=torch.int32)
    kernels.verify_tree_greedy(out, accept_index, count, candidates, index, child, sibling, torch.tensor([target]))
    assert accept_index[0].tolist() == accepted + [-1] * (3 - len(accepted))
    assert count.tolist() == [len(accepted) - 1]
    for node, token in predicts.items():
        assert out[node].item() == token
