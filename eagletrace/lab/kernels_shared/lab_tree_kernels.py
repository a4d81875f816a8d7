"""Plain-torch stand-ins for SGLang's two draft-tree kernels, for a CPU without compiled ones.

Both engine versions of the lab call them through names of their own
(``sgl_kernel.build_tree_kernel_efficient[_cpu]``, ``sgl_kernel.verify_tree_greedy[_cpu]``).
Shapes: B requests, D tree nodes (node 0 is the root, the last committed token), S draft steps.
"""

from collections.abc import Iterator

import torch

FULL_MASK = 0
"""Tree mask of D rows x (sequence length + D) columns per request (``TreeMaskMode.FULL_MASK``)."""
QLEN_ONLY = 1
"""Tree mask of D x D per request, without the committed prefix (``TreeMaskMode.QLEN_ONLY``)."""


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """Parent node of every node; -1 for the root.

    ``selected`` holds, for nodes 1..D-1, the index of the draft among all drafted candidates;
    candidate ``i`` was expanded from the candidate ``parent_list[i // topk]`` (the first ``topk``
    of them from the root).
    """
    parents = [-1]
    for candidate in selected:
        group = candidate // topk
        parents.append(0 if group == 0 else 1 + selected.index(parent_list[group]))
    return parents


def _children_links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node (-1: none), children in node order."""
    count = len(parents)
    first_child, next_sibling = [-1] * count, [-1] * count
    for node in range(count - 1, 0, -1):
        next_sibling[node] = first_child[parents[node]]
        first_child[parents[node]] = node
    return first_child, next_sibling


def _path_to_root(node: int, parents: list[int]) -> Iterator[int]:
    while node != -1:
        yield node
        node = parents[node]


def build_tree(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    num_nodes: int,
    tree_mask_mode: int,
) -> None:
    """Fill the verify tree's mask, positions and child/sibling links in place.

    Stands for the kernel behind ``build_tree_kernel_efficient`` (SGLang 0.5.23:
    kernels/ops/speculative/spec_tree.py; 0.5.9: srt/speculative/eagle_utils.py).
    """
    del depth  # every node's depth follows from its parents
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} has no CPU stand-in")
    lengths = seq_lens.tolist()
    batch = len(lengths)
    all_selected = selected_index.reshape(batch, -1).tolist()
    all_parents = parent_list.reshape(batch, -1).tolist()
    mask, flat_positions = tree_mask.view(-1), positions.view(-1)
    mask_start = 0
    for row, length in enumerate(lengths):
        parents = _parents(all_selected[row], all_parents[row], topk)
        prefix = length if int(tree_mask_mode) == FULL_MASK else 0
        size = num_nodes * (prefix + num_nodes)
        window = mask[mask_start : mask_start + size].view(num_nodes, prefix + num_nodes)
        mask_start += size
        window[:, prefix:] = False
        for node in range(num_nodes):
            path = list(_path_to_root(node, parents))
            for ancestor in path:
                window[node, prefix + ancestor] = True
            flat_positions[row * num_nodes + node] = length + len(path) - 1
        first_child, next_sibling = _children_links(parents)
        retrieve_index.view(batch, -1)[row] = torch.arange(num_nodes) + row * num_nodes
        retrieve_next_token.view(batch, -1)[row] = torch.tensor(first_child)
        retrieve_next_sibling.view(batch, -1)[row] = torch.tensor(next_sibling)


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree along the target's argmax and write the accepted path in place.

    ``candidates`` [B, D] drafted tokens, ``target_predict`` [B, D] the target's argmax after each
    node; ``accept_index`` [B, S + 1] gets the flat indices of the accepted nodes (root first),
    ``accept_token_num`` [B] the number of correct drafts, ``predicts`` [B * D] the token after
    each accepted node. Parameter names are those of the compiled op, which SGLang passes by name.
    """
    target = target_predict.reshape(-1).tolist()
    batch = candidates.shape[0]
    for row in range(batch):
        index = retrive_index[row].tolist()
        drafted = candidates[row].tolist()
        first_child, next_sibling = retrive_next_token[row].tolist(), retrive_next_sibling[row].tolist()
        node, correct = 0, 0
        accept_index[row, 0] = index[0]
        while correct + 1 < accept_index.shape[1]:
            wanted, child = target[index[node]], first_child[node]
            while child != -1 and drafted[child] != wanted:
                child = next_sibling[child]
            if child == -1:
                break
            predicts[index[node]] = wanted
            node, correct = child, correct + 1
            accept_index[row, correct] = index[node]
        predicts[index[node]] = target[index[node]]
        accept_token_num[row] = correct
