"""The verdict: the target's token at every node and the accepted path, where the engine decides them."""

from __future__ import annotations

from typing import Any

import torch

from eagletrace.instrumentations.sglang.distributions import Topology, drafted, with_root
from eagletrace.instrumentations.sglang.launch import SessionHook
from eagletrace.instrumentations.sglang.launch_state import Launch
from eagletrace.instrumentations.sglang.session import Session
from eagletrace.record.device import stage

PART_BYTES = 128 << 20  # logits turned into facts at a time


class Greedy(SessionHook):
    """`verify_tree_greedy_func(...)`, called with keywords (spelled retrive_* to 0.5.10)."""

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stage drafts, targets, tree and path."""
        launch = self.session.launch
        if launch is None:
            return
        links = [kwargs.get(f"retrieve_{n}", kwargs.get(f"retrive_{n}")) for n in ("next_token", "next_sibling")]
        observe(self.session, launch, kwargs["candidates"], kwargs["target_predict"], links, result[1])


class Sample(SessionHook):
    """`eagle_sample(verify_input, batch, logits_output, ...)` or `verify_input.sample(batch, logits_output, ...)`.

    Used where a batch samples: the target's choice is then the argmax, and the path is the engine's.
    """

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stage the same facts, unless the greedy verdict was seen."""
        launch = self.session.launch
        if launch is None or launch.packet.target_tokens is not None or not launch.reqs:
            return
        verify_input, logits_output = (args[0], args[2]) if instance is None else (instance, args[1])
        bs = len(launch.reqs)
        candidates = verify_input.draft_token.reshape(bs, -1)
        targets = logits_output.next_token_logits.argmax(dim=-1).reshape(bs, -1)
        links = [getattr(verify_input, f"retrieve_{n}", getattr(verify_input, f"retrive_{n}", None))
                 for n in ("next_token", "next_sibling")]  # fmt: skip
        observe(self.session, launch, candidates, targets, links, result[2])


def observe(
    session: Session, launch: Launch, candidates: torch.Tensor, targets: torch.Tensor,
    links: list[torch.Tensor | None], accept_index: torch.Tensor,
) -> None:  # fmt: skip
    """Stage one launch. candidates and targets [bs, D], links [bs, D], accept_index [bs, S + 1]."""
    bs, nodes = candidates.shape
    packet = launch.packet
    packet.nodes = nodes
    positions = launch.positions
    values: dict[str, torch.Tensor | None] = {
        "draft_tokens": candidates, "target_tokens": targets, "next_token": links[0], "next_sibling": links[1],
        "accept_index": accept_index,
        "positions": positions[: bs * nodes] if positions is not None else None,
    }  # fmt: skip
    if session.recorder.settings.level != "contract":
        values |= _draft_side(session, launch, targets, nodes)
    for name, reader in stage(values).items():
        setattr(packet, name, reader)


def _draft_side(session: Session, launch: Launch, targets: torch.Tensor, nodes: int) -> dict[str, torch.Tensor | None]:
    first = _first_logits(session, launch)
    topology = launch.topology
    if topology is None and launch.topk == 1:
        topology = Topology(targets[:, :0], torch.arange(nodes - 1, device=targets.device).expand(len(targets), -1), 1)
    if launch.too_large or first is None or topology is None or session.draft_id_of is None or nodes < 2:
        return {}
    if launch.topk == 1 and len(launch.step_logits) != nodes - 2:
        return {}
    expected = targets.to(torch.int64).gather(1, topology.parents().to(torch.int64))
    facts = _in_parts(first, launch.step_logits, topology, expected, session.draft_id_of)
    launch.packet.engine_has_probs = launch.topk > 1 or session.softmax_chains
    unknown = {
        "draft_ids": -1,
        "ranks": 0,
        "in_vocab": -1,
        "draft_logprobs": float("nan"),
        "draft_entropies": float("nan"),
    }
    values: dict[str, torch.Tensor | None] = {name: with_root(v, unknown[name]) for name, v in facts.items()}
    values["rope_positions"] = _rope(launch, topology, len(targets))
    return values


def _in_parts(
    first: torch.Tensor, steps: list[torch.Tensor], topology: Topology, expected: torch.Tensor, ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """`drafted`, some requests at a time: its float32 copies of [bs, D, Vd] would not fit beside the engine."""
    bs, k = first.shape[0], topology.topk
    size = max(1, PART_BYTES // max(1, 4 * first.shape[1] * max(expected.shape[1], k * len(steps) + 1)))
    parts = [
        drafted(
            first[a : a + size], [s[a * k : (a + size) * k] for s in steps],
            Topology(topology.parent_list[a : a + size], topology.selected[a : a + size], k),
            expected[a : a + size], ids,
        )
        for a in range(0, bs, size)
    ]  # fmt: skip
    return parts[0] if len(parts) == 1 else {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def _first_logits(session: Session, launch: Launch) -> torch.Tensor | None:
    """Logits that drafted depth 1, [bs, Vd]; None unless every request's are known."""
    carried = [session.carried.get(state.rid) for state in launch.packet.requests]
    rows = [(c.logits, c.row) for c in carried if c and c.logits is not None]
    if len(rows) != len(carried):
        return None
    whole = rows[0][0]
    if whole.shape[0] == len(rows) and all(t is whole and r == i for i, (t, r) in enumerate(rows)):
        return whole
    return torch.stack([t[r] for t, r in rows])


def _rope(launch: Launch, topology: Topology, bs: int) -> torch.Tensor | None:
    """Rotary position at which each node was drafted, [bs, D]; -1 for the root and depth 1."""
    if not launch.rope_positions:
        return None
    flat = torch.cat(launch.rope_positions)
    first = torch.full((bs,), -1, dtype=flat.dtype, device=flat.device)
    if topology.topk == 1:
        steps = [p.view(bs) for p in launch.rope_positions]
        return with_root(torch.stack([first, *steps], dim=1), -1)
    return with_root(torch.cat([first, flat])[topology.rows(bs)], -1)
