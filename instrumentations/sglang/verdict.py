"""The verdict: the target's token at every node and the accepted path, where the engine decides them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from eagletrace.instrumentations.sglang.deferred import Chain, Deferred, of_a_chain
from eagletrace.instrumentations.sglang.distributions import Facts, Topology, of_tree
from eagletrace.instrumentations.sglang.launch import InRound
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.instrumentations.sglang.steady import Noted
from eagletrace.record.device import pack
from eagletrace.record.rounds import DRAFT_FLOATS, Part

NO_LINKS: Sequence[torch.Tensor | None] = (None, None)  # a chain's are known
PART_BYTES = 128 << 20  # logits turned into facts at a time


class Greedy(InRound):
    """`verify_tree_greedy_func(...)`, called with keywords (spelled retrive_* to 0.5.10)."""

    def wrapper(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        """As any hook's, in fewer steps for a launch that is only noted."""
        session, hook = self.session, self

        def observed(*args: Any, **kwargs: Any) -> Any:
            hook.calls += 1
            result = original(*args, **kwargs)
            try:
                if hook.on:
                    noted = session.launch
                    if type(noted) is Noted:
                        path = kwargs["accept_index"] if result is None else result[1]
                        noted.decided(kwargs["candidates"], kwargs["target_predict"], path)
                    else:
                        hook.after(None, result, args, kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
                hook.swallow(error)
            return result

        return observed

    def after(self, token: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stage drafts, targets, tree and path."""
        session = self.session
        launch = session.launch
        if launch is None:
            return
        links = NO_LINKS if launch.topk == 1 else [
            kwargs.get(f"retrieve_{n}", kwargs.get(f"retrive_{n}")) for n in ("next_token", "next_sibling")
        ]  # fmt: skip
        observe(
            session,
            launch,
            kwargs["candidates"],
            kwargs["target_predict"],
            links,
            kwargs["accept_index"] if result is None else result[1],
        )  # in place in kernels, to 0.5.4


class Sample(InRound):
    """`eagle_sample(verify_input, batch, logits_output, ...)` or `verify_input.sample(batch, logits_output, ...)`.

    Used where a batch samples: the target's choice on the path is then what the engine drew.
    """

    def after(self, token: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stage the same facts, unless the greedy verdict was seen."""
        launch = self.session.launch
        if launch is None or type(launch) is Noted or launch.packet.nodes or not launch.reqs:
            return
        verify_input, logits_output = args[0], args[2]
        bs = len(launch.reqs)
        candidates = verify_input.draft_token.reshape(bs, -1)
        targets = drawn(logits_output.next_token_logits, result[0], result[2]).reshape(bs, -1)
        links = [getattr(verify_input, f"retrieve_{n}", getattr(verify_input, f"retrive_{n}", None))
                 for n in ("next_token", "next_sibling")]  # fmt: skip
        observe(self.session, launch, candidates, targets, links, result[2])


def drawn(likely: torch.Tensor, predict: torch.Tensor, accept_index: torch.Tensor) -> torch.Tensor:
    """The target's choice after each node, [bs * D]: on the accepted path the token that the engine drew, off it the
    likeliest. `likely` is [bs * D, V] (logits or probabilities), `predict` [bs * D] holds a token at each node of
    `accept_index` [bs, S + 1], which is -1 padded."""
    likeliest, path = likely.argmax(dim=-1).reshape(-1), accept_index.reshape(-1).to(torch.int64)
    on_path = torch.zeros(likeliest.shape[0] + 1, dtype=torch.bool, device=likeliest.device)
    on_path.scatter_(0, torch.where(path < 0, likeliest.shape[0], path), True)
    return torch.where(on_path[:-1], predict.reshape(-1).to(likeliest.dtype), likeliest)


def observe(
    session: Session, launch: Launch, candidates: torch.Tensor, targets: torch.Tensor,
    links: Sequence[torch.Tensor | None], accept_index: torch.Tensor,
) -> None:  # fmt: skip
    """Stage one launch. candidates and targets [bs, D], links [bs, D], accept_index [bs, S + 1]."""
    bs, nodes = candidates.shape
    launch.packet.nodes = nodes
    if launch.tensors is not None:
        launch.tensors.verdict(accept_index, nodes)
    detail = session.recorder.settings.level != "contract"
    if launch.topk == 1:
        chain = Chain(launch.packet, candidates, targets, accept_index, launch.positions, launch.rope_positions, [])
        if detail and _seen(session, launch, nodes):
            _keep(session, launch, chain, bs, nodes)
        else:
            launch.packet.values = chain.packed()
        return
    ints, floats = [candidates, targets, accept_index], list[torch.Tensor]()
    positions = launch.positions
    if positions is not None:
        ints.append(positions if positions.shape[0] == bs * nodes else positions[: bs * nodes])
    linked = links[0] is not None and links[1] is not None
    if links[0] is not None and links[1] is not None:
        ints += [links[0], links[1]]
    drafted = _of_tree(session, launch, targets, nodes) if detail else None
    if drafted is not None:
        ints += drafted[0]
        floats = drafted[1]
    int_parts, float_parts = _of_a_tree(
        nodes, accept_index.shape[1], positions is not None, linked, drafted is not None, bool(launch.rope_positions)
    )
    launch.packet.values = pack(int_parts, ints, float_parts, floats)


def _seen(session: Session, launch: Launch, nodes: int) -> bool:
    """Whether the logits of a chain's steps are there. Under a captured graph those of depth 1 are, alone."""
    steps = len(launch.step_logits)
    return (
        launch.first is not None and not launch.too_large and session.draft_id_or_zero is not None and nodes > 1
        and (not steps or steps == nodes - 2)
    )  # fmt: skip


def _keep(session: Session, launch: Launch, chain: Chain, bs: int, nodes: int) -> None:
    """Leave a chain's logits to be reduced with those of other launches, and its verdict to be packed with theirs."""
    deferred, ids, first, packet = session.deferred, session.draft_id_or_zero, launch.first, launch.packet
    assert ids is not None and first is not None
    packet.engine_has_probs = session.softmax_chains
    logits = [first, *launch.step_logits]
    size = 16 * first.numel() * len(logits)
    if size <= PART_BYTES:
        tensors = chain.tensors()
        trusted = not launch.borrowed and (deferred.trusted or deferred.trusts(tensors))
        versions = deferred.versions(*tensors) if trusted else ()
        if not versions:
            packet.values = chain.packed()
        chain = chain._replace(logits=logits, versions=versions)
        deferred.add(chain, (bs, nodes, len(logits), first.nbytes), ids, launch.borrowed)
        return
    chain = chain._replace(logits=logits)
    packet.values = chain.packed()
    rows = max(1, bs * PART_BYTES // size)
    for start in range(0, bs, rows):
        part = chain.rows(slice(start, start + rows))
        Deferred().add(part, (part.targets.shape[0], nodes, len(logits), part.logits[0].nbytes), ids, True)


# What is packed, in its order: the same objects for the same shapes, by which launches are read together.


@lru_cache(maxsize=256)
def _of_a_tree(
    nodes: int, path: int, positions: bool, links: bool, drafted: bool, rope: bool
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    parts = list(of_a_chain(nodes, path, positions, 0))
    if links:
        parts += [Part("next_token", nodes), Part("next_sibling", nodes)]
    if not drafted:
        return tuple(parts), ()
    parts.append(Part("draft_ids", nodes - 1))
    if rope:
        parts.append(Part("rope_positions", nodes - 1))
    return tuple(parts), tuple(Part(name, nodes - 1) for name in DRAFT_FLOATS)


def _of_tree(session: Session, launch: Launch, targets: torch.Tensor, nodes: int) -> Facts | None:
    first, ids, topology, k = launch.first, session.draft_id_or_zero, launch.topology, launch.topk
    if launch.too_large or first is None or ids is None or topology is None or topology.selected.shape[1] != nodes - 1:
        return None
    if launch.step_logits and len(launch.step_logits) != max(0, (topology.parent_list.shape[1] - 1) // k):
        return None  # steps that went another way: the rows would be those of other nodes
    launch.packet.engine_has_probs = True
    bs = topology.selected.shape[0]
    expected = targets.to(torch.int64).gather(1, topology.parents().to(torch.int64))

    def part_of(part: slice) -> Facts:
        rows = slice(part.start * k, min(part.stop, bs) * k)
        own = Topology(topology.parent_list[part], topology.selected[part], k)
        return of_tree(first[part], [s[rows] for s in launch.step_logits], own, expected[part], ids)

    size = first.numel() * 16 * max(nodes - 1, k * len(launch.step_logits) + 1)
    ints, floats = part_of(slice(0, bs)) if size <= PART_BYTES else _in_parts(size, bs, part_of)
    if not launch.step_logits:  # a captured graph drafted, or there was one step: depth 1 alone is known
        known = topology.selected < k
        ints, floats = [torch.where(known, t, -1) for t in ints], [torch.where(known, t, math.nan) for t in floats]
    return ([*ints, _rope(launch, topology, bs)] if launch.rope_positions else ints), floats


def _in_parts(size: int, bs: int, facts: Callable[[slice], Facts]) -> Facts:
    """`facts` of all requests, some at a time: float32 copies of all their logits would not fit beside the engine.

    `size` is about what they would take, in bytes.
    """
    step = max(1, bs * PART_BYTES // size)
    parts = [facts(slice(a, a + step)) for a in range(0, bs, step)]
    ints, floats = ([torch.cat(column) for column in zip(*(p[kind] for p in parts), strict=True)] for kind in (0, 1))
    return ints, floats


def _rope(launch: Launch, topology: Topology, bs: int) -> torch.Tensor:
    """Rotary position at which each node of a tree was drafted, [bs, D - 1]; -1 for depth 1."""
    flat = torch.cat(launch.rope_positions)
    first = torch.full((bs,), -1, dtype=flat.dtype, device=flat.device)
    rows = topology.rows(bs).clamp(0, bs + flat.shape[0] - 1)
    return torch.cat([first, flat])[rows]
