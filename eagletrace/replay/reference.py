"""EAGLE-1 to EAGLE-3 and multi-token prediction in plain PyTorch: what a draft proposes at every position of a recorded
sequence.

From the papers (Li et al., EAGLE and EAGLE-2 2024, EAGLE-3 2025) and SGLang's `models/llama_eagle.py`,
`models/llama_eagle3.py` and `speculative/eagle_worker_v2.py` (0.5.23), without an engine. Stages, in order: inputs,
fuse, embed, layers (one causal pass over the sequence gives the draft's KV), logits, recurrent steps, and the choice of
a chain or tree.

Shapes: n rows of a sequence, A anchors, K branches, H hidden size, h heads, g KV heads, e head dim, Vd draft
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagletrace.replay.architecture import Latent, needed_tensors
from eagletrace.replay.recipe import CAPTURED, Recipe, to_target
from eagletrace.replay.recorded import Sequence
from eagletrace.replay.result import ReplayError

ANCHORS_AT_ONCE = 128


@dataclass(frozen=True)
class Extended:
    """One causal pass: `start` [n, H] (what depth 1 starts from: `fused`, or for EAGLE-1 the target's hidden state),
    `fused` [n, H] (into the first layer), `out` [n, H] (before the final norm), and each layer's rotated keys and
    values, [n, g, e]."""

    start: Tensor
    fused: Tensor
    out: Tensor
    cache: list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Drafted:
    """Trees of some anchors: token, parent (index of a node, -1: the root) and depth, [A, nodes] each."""

    anchors: Tensor
    tokens: Tensor
    parents: Tensor
    depths: Tensor
    states: list[Tensor]
    """State handed from depth d to d + 1, [A, K, H] for d = 1, 2, ..."""


class Reference:
    """A recipe that can be run. ReplayError when its tensors do not fit together."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.shape = recipe.architecture
        missing = [name for name in self._needed() if name not in recipe.tensors]
        if missing:
            raise ReplayError(f"the draft has no tensor {missing[0]} (and {len(missing) - 1} more)" if len(missing) > 1
                              else f"the draft has no tensor {missing[0]}")  # fmt: skip

    def _needed(self) -> Iterator[str]:
        fusion = f"{self.shape.fusion}.weight"
        yield from (n for n in needed_tensors(self.shape) if n != fusion or self.recipe.apply_fc)

    # -- stages ------------------------------------------------------------------------------------------------------

    def inputs(self, sequence: Sequence) -> Tensor:
        """Hidden states given to the draft, [n, width]: as captured, or those of the recipe's layers side by side."""
        recipe = self.recipe
        if recipe.layers == CAPTURED:
            hidden = sequence.captured
        else:
            absent = [layer for layer in recipe.layers if layer not in sequence.layers]
            if absent:
                raise ReplayError(
                    f"the run has no states of target layer {absent[0]}: record with EAGLETRACE_AUX_LAYERS=all"
                )
            hidden = torch.cat([sequence.layers[layer] for layer in recipe.layers], -1)
        if recipe.basis is not None:
            width = recipe.basis.shape[0]
            hidden = (hidden.view(len(hidden), -1, width) @ recipe.basis).reshape(len(hidden), -1)
        for edit in recipe.edits:
            hidden = edit.inputs(sequence, hidden)
        return hidden

    def fuse(self, sequence: Sequence, hidden: Tensor) -> Tensor:
        """States given [n, width] to what enters the first layer [n, H]: norms of the 3.1 flags, then `fc`."""
        recipe, shape = self.recipe, self.shape
        if shape.feature:
            hidden = self.join(self.embed(self._tokens_of(sequence, len(hidden))), hidden)
        elif recipe.apply_fc:
            weight = recipe.tensors["fc.weight"]
            if hidden.shape[-1] != weight.shape[1]:
                raise ReplayError(
                    f"the draft's fc takes {weight.shape[1]} elements, the states have {hidden.shape[-1]}"
                )
            if shape.norm_before_fc:
                hidden = self._norm(hidden, "input_norm")
            if shape.fc_norm:
                slots = hidden.chunk(shape.aux_count, -1)
                hidden = torch.cat([self._norm(slot, f"fc_norm.{i}") for i, slot in enumerate(slots)], -1)
            hidden = F.linear(hidden, weight, recipe.tensors.get("fc.bias"))
        if hidden.shape[-1] != shape.hidden_size:
            raise ReplayError(f"the draft's layer takes {shape.hidden_size} elements, it was given {hidden.shape[-1]}")
        for edit in recipe.edits:
            hidden = edit.fused(sequence, hidden)
        return hidden

    def join(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """`fc` over embeddings and hidden states side by side, [..., H] each; `eh_proj` takes each after its norm."""
        name = self.shape.fusion
        weight, width = self.recipe.tensors[f"{name}.weight"], embeds.shape[-1] + hidden.shape[-1]
        if width != weight.shape[1]:
            raise ReplayError(
                f"the draft's {name.rpartition('.')[2]} takes {weight.shape[1]} elements, embedding and hidden state "
                f"have {width}"
            )
        if self.shape.nextn:
            embeds, hidden = self._norm(embeds, "layers.0.enorm"), self._norm(hidden, "layers.0.hnorm")
        return F.linear(torch.cat([embeds, hidden], -1), weight, self.recipe.tensors.get(f"{name}.bias"))

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids [...] to embeddings [..., H]; an id outside the table gives zeros."""
        table = self.recipe.embedding
        inside = (tokens >= 0) & (tokens < table.shape[0])
        rows = table[torch.where(inside, tokens, torch.zeros_like(tokens))].float()
        return rows * inside[..., None]

    def extend(self, sequence: Sequence) -> Extended:
        """The draft over the whole sequence, each row seeing itself and those before."""
        given = self.inputs(sequence)
        fused = self.fuse(sequence, given)
        n = len(fused)
        tokens, positions = self._tokens_of(sequence, n), torch.arange(n) + self.recipe.position_shift
        for edit in self.recipe.edits:
            positions = edit.positions(sequence, positions)
        embeds, hidden, cache = self.embed(tokens), fused, list[tuple[Tensor, Tensor]]()
        rows = torch.arange(n)
        for layer in range(self.shape.layers):
            hidden, states = self._enter(layer, embeds, hidden)
            query, key, value = self._project(layer, states, positions)
            for edit in self.recipe.edits:
                key, value = edit.cache(sequence, key, value)
            cache.append((key, value))
            mixed = torch.cat(
                [
                    self._attend(query[part], key, value, self._mask(sequence, part, n))
                    for part in rows.split(ANCHORS_AT_ONCE * 4)
                ]
            )
            hidden = self._rest(layer, hidden, mixed)
        return Extended(given if self.shape.feature else fused, fused, hidden, cache)

    def _tokens_of(self, sequence: Sequence, n: int) -> Tensor:
        """Token ids that the extend embeds, [n]."""
        tokens = sequence.tokens[1 : n + 1]
        for edit in self.recipe.edits:
            tokens = edit.tokens(sequence, tokens)
        return tokens

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft-vocabulary logits of states [..., H] before the final norm."""
        norm = self.shape.final_norm
        return F.linear(hidden if norm is None else self._norm(hidden, norm), self.recipe.head.float())

    def handed_on(self, start: Tensor, first: Tensor | None, entered: Tensor, made: Tensor) -> Tensor:
        """What the next depth is fed: the state before the final norm unless the recipe says otherwise.

        `start` is that of the extend, `first` what the extend handed on (None there), `entered` the state that entered
        the layers at this depth and `made` the one that they made of it; [..., H] each.
        """
        recurrent = self.recipe.recurrent
        if recurrent == "repeated" and first is not None:
            return first
        if recurrent == "fused":
            return start
        if recurrent == "difference":
            return made - entered
        normed, norm = (recurrent == "normed") != self.shape.norm_output, self.shape.final_norm
        return self._norm(made, norm) if normed and norm is not None else made

    def draft(
        self, sequence: Sequence, extended: Extended, anchors: Tensor, steps: int, topk: int, nodes: int
    ) -> Drafted:
        """Chains (`topk` 1) or trees of `nodes` nodes at some anchors [A]."""
        parts = [self._draft(sequence, extended, part, steps, topk, nodes) for part in anchors.split(ANCHORS_AT_ONCE)]
        return Drafted(
            anchors, torch.cat([p.tokens for p in parts]), torch.cat([p.parents for p in parts]),
            torch.cat([p.depths for p in parts]),
            [torch.cat([p.states[d] for p in parts]) for d in range(len(parts[0].states))],
        )  # fmt: skip

    # -- one part of the anchors -------------------------------------------------------------------------------------

    def _draft(
        self, sequence: Sequence, extended: Extended, anchors: Tensor, steps: int, topk: int, nodes: int
    ) -> Drafted:
        recipe = self.recipe
        out = extended.out[anchors]
        for edit in recipe.edits:
            out = edit.first_states(sequence, anchors, out)
        logits = self.logits(out)
        for edit in recipe.edits:
            logits = edit.first_logits(sequence, anchors, logits)
        scores, ids = _best(logits, topk)
        tree = _Candidates(self._tokens(ids), scores)
        start = extended.start[anchors]
        first = self.handed_on(start, None, extended.fused[anchors], out)[:, None].expand(-1, topk, -1)
        start = start[:, None].expand(-1, topk, -1)
        hidden, states = first, [first[:, :1]]
        mask = self._mask(sequence, anchors, len(extended.out))
        paths: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(self.shape.layers)]
        for depth in range(2, steps + 1):
            positions = (anchors + depth - 1 + recipe.step_shift + recipe.position_shift)[:, None].expand(-1, topk)
            embeds = self.embed(tree.frontier_tokens)
            entered = self.join(embeds, hidden) if self.shape.feature else hidden
            state = entered
            for layer in range(self.shape.layers):
                state, states_in = self._enter(layer, embeds, state)
                query, key, value = self._project(layer, states_in, positions)
                paths[layer].append((key, value))
                mixed = self._attend_paths(query, extended.cache[layer], mask, paths[layer])
                state = self._rest(layer, state, mixed)
            logits = self.logits(state)
            for edit in recipe.edits:
                logits = edit.step_logits(sequence, anchors, depth, logits)
            handed = self.handed_on(start, first, entered, state)
            probabilities, ids = _best(logits, topk)
            chosen = tree.grow(self._tokens(ids), probabilities)
            hidden = handed.gather(1, chosen[..., None].expand(-1, -1, handed.shape[-1]))
            states.append(handed)
        tokens, parents, depths = tree.choose(nodes if topk > 1 else steps)
        return Drafted(anchors, tokens, parents, depths, states)

    def _tokens(self, ids: Tensor) -> Tensor:
        return to_target(self.recipe.token_of, ids, self.recipe.embedding.shape[0])

    def _mask(self, sequence: Sequence, anchors: Tensor, n: int) -> Tensor:
        """Cached rows that each anchor sees, [A, n]."""
        mask = torch.arange(n)[None, :] <= anchors[:, None]
        for edit in self.recipe.edits:
            mask = edit.visible(sequence, anchors, mask)
        return mask

    def _norm(self, states: Tensor, name: str) -> Tensor:
        """RMS norm; without a weight in the recipe, the weight is one."""
        normed = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.shape.norm_eps)
        weight = self.recipe.tensors.get(f"{name}.weight")
        return normed if weight is None else normed * weight

    @property
    def _scale(self) -> float:
        return self.shape.attention_scale or self.shape.head_dim**-0.5

    def _linear(self, layer: int, module: str, states: Tensor) -> Tensor:
        tensors, name = self.recipe.tensors, f"layers.{layer}.{module}"
        return F.linear(states, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def _enter(self, layer: int, embeds: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual, and what attention is given: [..., 2 H] in the first layer, [..., H] in later ones, and in all
        of a draft whose `fc` has taken the embedding."""
        if self.shape.feature and not layer:
            return hidden, self._norm(hidden, "layers.0.input_layernorm") if self.shape.nextn else hidden
        states = self._norm(hidden, f"layers.{layer}.hidden_norm")
        if layer:
            return hidden, states
        residual = states if self.shape.norm_before_residual else hidden
        return residual, torch.cat([self._norm(embeds, "layers.0.input_layernorm"), states], -1)

    def _project(self, layer: int, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [..., h, e] and keys [..., g, e], and values [..., g, e]."""
        shape = self.shape
        if shape.latent is not None:
            return self._project_latent(layer, states, positions, shape.latent)
        query = self._linear(layer, "self_attn.q_proj", states).unflatten(-1, (shape.heads, shape.head_dim))
        key = self._linear(layer, "self_attn.k_proj", states).unflatten(-1, (shape.kv_heads, shape.head_dim))
        value = self._linear(layer, "self_attn.v_proj", states).unflatten(-1, (shape.kv_heads, shape.head_dim))
        return shape.rope.rotate(query, positions), shape.rope.rotate(key, positions), value

    def _project_latent(
        self, layer: int, states: Tensor, positions: Tensor, latent: Latent
    ) -> tuple[Tensor, Tensor, Tensor]:
        """MLA, its keys and values written out: each head's key is its own part and one rotated part for all heads."""
        heads, rope = self.shape.heads, self.shape.rope
        compressed = self._norm(
            self._linear(layer, "self_attn.q_a_proj", states), f"layers.{layer}.self_attn.q_a_layernorm"
        )
        query = self._linear(layer, "self_attn.q_b_proj", compressed).unflatten(-1, (heads, latent.nope + latent.rope))
        plain, turned = query.split([latent.nope, latent.rope], -1)
        query = torch.cat([plain, rope.rotate(turned, positions)], -1)
        down = self._linear(layer, "self_attn.kv_a_proj_with_mqa", states)
        compressed, shared = down.split([latent.kv_rank, latent.rope], -1)
        compressed = self._norm(compressed, f"layers.{layer}.self_attn.kv_a_layernorm")
        up = self._linear(layer, "self_attn.kv_b_proj", compressed).unflatten(-1, (heads, latent.nope + latent.value))
        plain, value = up.split([latent.nope, latent.value], -1)
        shared = rope.rotate(shared.unsqueeze(-2), positions).expand(*plain.shape[:-1], latent.rope)
        return query, torch.cat([plain, shared], -1), value

    def _rest(self, layer: int, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Output projection, residual and feed-forward block."""
        hidden = hidden + self._linear(layer, "self_attn.o_proj", mixed)
        states = self._norm(hidden, f"layers.{layer}.post_attention_layernorm")
        if self.shape.experts is not None:
            return hidden + self.shape.experts.run(self.recipe.tensors, f"layers.{layer}.mlp", states)
        gate = F.silu(self._linear(layer, "mlp.gate_proj", states)) * self._linear(layer, "mlp.up_proj", states)
        return hidden + self._linear(layer, "mlp.down_proj", gate)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Queries [m, h, e] over cached rows [n, g, e]; [m, h * e]."""
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None], key.transpose(0, 1)[None], value.transpose(0, 1)[None], mask[None, None],
            enable_gqa=True, scale=self._scale,
        )  # fmt: skip
        return mixed[0].transpose(0, 1).flatten(1)

    def _attend_paths(
        self, query: Tensor, cached: tuple[Tensor, Tensor], mask: Tensor, path: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Queries [A, K, h, e] over the cached rows that each anchor sees and over each branch's own path."""
        shape = self.shape
        grouped = query.unflatten(2, (shape.kv_heads, shape.heads // shape.kv_heads))  # [A, K, g, r, e]
        keys, values = cached
        scores = torch.einsum("akgre,nge->akgrn", grouped, keys).masked_fill(~mask[:, None, None, None], -torch.inf)
        own_keys = torch.stack([key for key, _ in path], 2)  # [A, K, steps, g, e]
        own_values = torch.stack([value for _, value in path], 2)
        own = torch.einsum("akgre,aksge->akgrs", grouped, own_keys)
        weights = (torch.cat([scores, own], -1) * self._scale).softmax(-1)
        n = keys.shape[0]
        mixed = torch.einsum("akgrn,nge->akgre", weights[..., :n], values)
        mixed = mixed + torch.einsum("akgrs,aksge->akgre", weights[..., n:], own_values)
        return mixed.flatten(2)


class _Candidates:
    """The nodes that a tree may choose from, as SGLang orders them (`select_top_k_tokens`, `organize_draft_results`).

    A branch keeps its own KV slots: SGLang does not move a parent's keys to the branches that it chose from it.
    """

    def __init__(self, tokens: Tensor, scores: Tensor) -> None:
        count, self.topk = tokens.shape
        self.tokens, self.scores = [tokens], [scores]
        self.parents = [torch.full_like(tokens, -1)]
        self.depths = [torch.ones_like(tokens)]
        self.frontier_tokens, self.frontier_scores = tokens, scores
        self.frontier_index = torch.arange(self.topk).expand(count, -1)
        self.size = self.topk

    def grow(self, tokens: Tensor, probabilities: Tensor) -> Tensor:
        """Add the K children of each branch, [A, K, K]; returns the branch that each of the next frontier follows."""
        scores = (self.frontier_scores[..., None] * probabilities).flatten(1)
        parents = self.frontier_index[..., None].expand_as(probabilities).flatten(1)
        flat = tokens.flatten(1)
        self.tokens.append(flat)
        self.scores.append(scores)
        self.parents.append(parents)
        self.depths.append(torch.full_like(flat, len(self.depths) + 1))
        best = scores.topk(self.topk, -1)
        self.frontier_scores, self.frontier_index = best.values, best.indices + self.size
        self.frontier_tokens = flat.gather(1, best.indices)
        self.size += flat.shape[1]
        return best.indices // self.topk

    def choose(self, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, parents and depths of the best nodes, in order of depth."""
        scores = torch.cat(self.scores, 1)
        chosen = scores.topk(min(nodes, scores.shape[1]), -1).indices.sort(-1).values
        tokens, parents, depths = (torch.cat(x, 1).gather(1, chosen) for x in (self.tokens, self.parents, self.depths))
        at = torch.searchsorted(chosen, parents.clamp(min=0))
        at = at.clamp(max=chosen.shape[1] - 1)
        return tokens, torch.where(parents < 0, torch.full_like(at, -1), at), depths


def _best(logits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """Probabilities and draft ids of the best tokens, [..., K]; a chain's probability is one."""
    if topk == 1:
        ids = logits.argmax(-1, keepdim=True)
        return torch.ones(ids.shape), ids
    best = logits.softmax(-1).topk(topk, -1)
    return best.values, best.indices


def longest_path(drafted: Drafted, tokens: Tensor, label_shift: int = 0) -> Tensor:
    """Depth to which each tree holds the sequence's own continuation, [A]; `label_shift` positions later."""
    wanted = drafted.anchors[:, None] + 1 + label_shift + drafted.depths
    inside = wanted < len(tokens)
    right = inside & (tokens[wanted.clamp(max=len(tokens) - 1)] == drafted.tokens)
    held = torch.zeros_like(right)
    for node in range(right.shape[1]):
        parent = drafted.parents[:, node]
        above = torch.where(parent < 0, torch.ones_like(parent, dtype=torch.bool),
                            held.gather(1, parent.clamp(min=0)[:, None])[:, 0])  # fmt: skip
        held[:, node] = right[:, node] & above
    return torch.where(held, drafted.depths, torch.zeros_like(drafted.depths)).amax(-1)
