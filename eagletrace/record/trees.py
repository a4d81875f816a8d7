"""Reads launches of one shape together and walks their verify trees: NumPy over all their requests at once.

Shapes: R rows, one for each request of each launch; D nodes of a verify tree (root included).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagletrace.record.rounds import DRAFT_FLOATS, Bools, Floats, Ints, Part, RoundPacket


@dataclass(slots=True)
class Trees:
    """Verify trees of some launches, [R, D] each; the optional ones are None where they were not observed."""

    draft_tokens: Ints
    target_tokens: Ints
    expected_tokens: Ints  # the target's choice after the parent; the root's own choice at the root
    parents: Ints  # -1 for the root
    depths: Ints
    on_path: Bools
    reached: Bools
    accepted: Ints  # [R], correct drafts
    positions: Ints | None
    rope_positions: Ints | None = None  # -1 unknown, as in what follows; NaN for floats
    draft_ids: Ints | None = None
    better: Floats | None = None
    probs: Floats | None = None
    logprobs: Floats | None = None
    entropies: Floats | None = None


def alike(launches: Sequence[RoundPacket]) -> Iterator[list[RoundPacket]]:
    """Groups of launches that can be read together, in the order in which each group began."""
    groups: dict[Any, list[RoundPacket]] = {}
    for packet in launches:
        values = packet.values
        shape = None if values is None else (id(values.int_parts), id(values.float_parts))
        groups.setdefault((shape, len(packet.requests), packet.nodes), []).append(packet)
    yield from groups.values()


def read(launches: Sequence[RoundPacket]) -> Trees | None:
    """The trees of launches of one group; None if they died before their verify."""
    first = launches[0]
    if first.values is None:
        return None
    bs, nodes = len(first.requests), first.nodes
    ints = _parts(first.values.int_parts, [p.values.ints() for p in launches if p.values is not None], bs)
    floats: dict[str, npt.NDArray[Any]] = {}
    if first.values.float_parts:
        read_floats = [p.values.floats() for p in launches if p.values is not None and p.values.floats is not None]
        floats = _parts(first.values.float_parts, read_floats, bs)
    parents, depths = _topology(ints, len(launches) * bs, nodes)
    on_path = _path(ints["accept_index"], bs, nodes)
    target, above = ints["target_tokens"], np.maximum(parents, 0)
    reached = np.take_along_axis(on_path, above, axis=1)
    reached[:, 0] = True
    found, together = _together(launches, bs, nodes)
    rope_positions, draft_ids = (_of_last(ints.get(n), nodes, -1) for n in ("rope_positions", "draft_ids"))
    if found is not None:
        draft_ids = found
    together |= {n: _of_last(v, nodes, np.nan) for n, v in floats.items()}
    better, probs, logprobs, entropies = _drafted(together)
    return Trees(
        ints["draft_tokens"], target, np.take_along_axis(target, above, axis=1), parents, depths, on_path, reached,
        on_path.sum(axis=1) - 1, ints.get("positions"), rope_positions, draft_ids, better, probs, logprobs, entropies,
    )  # fmt: skip


def _together(
    launches: Sequence[RoundPacket], bs: int, nodes: int
) -> tuple[Ints | None, dict[str, npt.NDArray[Any] | None]]:
    """Draft ids and floats that were computed for several launches at once, [R, D]; of the depths that were seen."""
    if not any(packet.drafted for packet in launches):
        return None, {}
    ids = np.full((len(launches), bs, nodes), -1, dtype=np.int64)
    floats = np.full((len(DRAFT_FLOATS), len(launches), bs, nodes), np.nan, dtype=np.float32)
    for number, packet in enumerate(launches):
        start = 0
        for part in packet.drafted:
            one, rows = part.together, slice(start, start + part.together.bs)
            start += one.bs
            if one.ids is None or one.floats is None:
                continue
            shape, depths = (one.steps, one.launches, one.bs), slice(1, 1 + one.steps)
            ids[number, rows, depths] = one.ids().reshape(shape)[:, part.index].T
            floats[:, number, rows, depths] = one.floats().reshape(-1, *shape)[:, :, part.index].swapaxes(1, 2)
    return ids.reshape(-1, nodes), {name: f.reshape(-1, nodes) for name, f in zip(DRAFT_FLOATS, floats, strict=True)}


def _drafted(floats: dict[str, npt.NDArray[Any] | None]) -> tuple[Any, Any, Any, Any]:
    """What the draft's distribution says: `better`, `probs`, log-probabilities and entropies (nats)."""
    better, probs = floats.get("better"), floats.get("draft_probs")
    logits, means = floats.get("draft_logits"), floats.get("draft_means")
    if probs is None:
        return better, None, None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        logprobs = np.log(probs)
        entropies = None if logits is None or means is None else np.maximum(logits - logprobs - means, 0)
    return better, probs, logprobs, entropies


def _parts(parts: Sequence[Part], packed: Sequence[npt.NDArray[Any]], bs: int) -> dict[str, npt.NDArray[Any]]:
    """The parts of packed arrays of equal length, [launches * bs, width] each."""
    whole, due = np.stack(packed), bs * sum(part.width for part in parts)
    if whole.shape[1] != due:
        raise ValueError(f"a launch has {whole.shape[1]} values, {due} are due")
    found: dict[str, npt.NDArray[Any]] = {}
    start = 0
    for part in parts:
        values = whole[:, start : start + bs * part.width]
        start += bs * part.width
        shape = (len(packed), part.width, bs) if part.by_step else (len(packed), bs, part.width)
        values = values.reshape(shape)
        found[part.name] = (values.swapaxes(1, 2) if part.by_step else values).reshape(-1, part.width)
    return found


def _of_last(values: npt.NDArray[Any] | None, nodes: int, unknown: float) -> npt.NDArray[Any] | None:
    if values is None or values.shape[1] == nodes:
        return values
    padded = np.full((len(values), nodes), unknown, dtype=values.dtype)
    padded[:, nodes - values.shape[1] :] = values
    return padded


def _path(accept_index: Ints, bs: int, nodes: int) -> Bools:
    """Which nodes are on the accepted path, from node ids that count through a launch's requests."""
    rows = np.arange(len(accept_index))[:, None]
    on_path = np.zeros((len(accept_index), nodes), dtype=np.bool_)
    kept = accept_index >= 0
    index = np.broadcast_to(rows, accept_index.shape)[kept]
    on_path[index, accept_index[kept] - (index % bs) * nodes] = True
    return on_path


def _topology(ints: dict[str, npt.NDArray[Any]], rows: int, nodes: int) -> tuple[Ints, Ints]:
    """Parents (-1 for the root) and depths from first-child and next-sibling links; without them a chain's."""
    child, sibling = ints.get("next_token"), ints.get("next_sibling")
    if child is None or sibling is None:
        chain = np.arange(nodes)
        return np.broadcast_to(chain - 1, (rows, nodes)), np.broadcast_to(chain, (rows, nodes))
    parents = np.full((rows, nodes), -1, dtype=np.int64)
    depths = np.zeros((rows, nodes), dtype=np.int64)
    row = np.arange(rows)
    # A node's index is greater than its parent's and its elder siblings', so one pass in order suffices.
    for node in range(nodes):
        has = child[:, node] > 0
        parents[row[has], child[has, node]] = node
        has = sibling[:, node] > 0
        parents[row[has], sibling[has, node]] = parents[has, node]
        if node:
            known = parents[:, node] >= 0
            depths[known, node] = depths[row[known], parents[known, node]] + 1
    return parents, depths
