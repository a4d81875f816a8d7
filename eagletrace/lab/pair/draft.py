"""Drafts as SGLang serves them, EAGLE-3 (``llama_eagle3.py``, and ``kimi_k25_eagle3.py`` for latent attention) and
EAGLE-1 (``llama_eagle.py``), and their run over many anchors at once.

An anchor is a position ``t`` up to which everything is known: tokens ``x[0..t+1]`` and target states of ``0..t``.
Its chain of depth 1, 2, ... predicts ``x[t+2]``, ``x[t+3]``, ... At depth 1 all anchors share one causal pass. At
depth ``k`` the row of an anchor stands at position ``t+k-1``, takes the draft's own hidden state of depth ``k-1``,
and attends to the depth-1 rows of positions ``<= t`` and to its own chain: the pattern of EAGLE-3's training-time
test, which is exactly what the engine computes when it drafts from ``t``.
"""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagletrace.errors import EagletraceError
from eagletrace.lab.pair.settings import KimiSettings, PairSettings
from eagletrace.replay.rope import Rope


@dataclass
class AnchorCache:
    """Keys and values [batch, kv heads, anchors, head dim] of each depth so far; `later` are those of later layers."""

    keys: list[Tensor] = field(default_factory=list[Tensor])
    values: list[Tensor] = field(default_factory=list[Tensor])
    later: dict[str, "AnchorCache"] = field(default_factory=dict[str, "AnchorCache"])


class DraftAttention(nn.Module):
    """Grouped-query attention over states of ``width`` elements; by default the embedding and the hidden state side by
    side (2H)."""

    def __init__(self, settings: PairSettings, width: int | None = None) -> None:
        super().__init__()
        self.settings = settings
        hidden, kv = settings.hidden_size, settings.key_value_heads * settings.head_dim
        width = 2 * hidden if width is None else width
        self.q_proj = nn.Linear(width, hidden, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, inputs: Tensor, cache: AnchorCache) -> Tensor:
        """``inputs`` [batch, anchors, width] of the next depth; appends to ``cache``; returns [batch, anchors, H]."""
        depth = len(cache.keys)
        batch, anchors, _ = inputs.shape
        positions = torch.arange(anchors) + depth
        query = rotate(self._heads(self.q_proj(inputs)), positions, self.settings.rope_theta)
        cache.keys.append(rotate(self._heads(self.k_proj(inputs)), positions, self.settings.rope_theta))
        cache.values.append(self._heads(self.v_proj(inputs)))
        if depth == 0:
            mixed = F.scaled_dot_product_attention(
                query, cache.keys[0], cache.values[0], is_causal=True, enable_gqa=True
            )
        else:
            mixed = attend_over_chain(query, cache)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, anchors, -1))

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (-1, self.settings.head_dim)).transpose(1, 2)


class LatentDraftAttention(nn.Module):
    """Multi-head latent attention over states of ``width`` elements, by default the embedding and the hidden state side
    by side (2H), written out.

    The modules are those of DeepSeek-V2's checkpoints; the key of a head is its own part and one rotated part for all.
    """

    def __init__(self, settings: KimiSettings, width: int | None = None) -> None:
        super().__init__()
        latent, hidden, heads = settings.latent, settings.hidden_size, settings.heads
        width = 2 * hidden if width is None else width
        self.latent, self.heads = latent, heads
        self.rope = Rope.of(rotary_config(settings), latent.rope, interleaved=True)
        self.scale = (latent.nope + latent.rope) ** -0.5 * self.rope.score_factor()
        self.q_a_proj = nn.Linear(width, latent.q_rank, bias=False)
        self.q_a_layernorm = nn.RMSNorm(latent.q_rank, settings.norm_eps)
        self.q_b_proj = nn.Linear(latent.q_rank, heads * (latent.nope + latent.rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, latent.kv_rank + latent.rope, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(latent.kv_rank, settings.norm_eps)
        self.kv_b_proj = nn.Linear(latent.kv_rank, heads * (latent.nope + latent.value), bias=False)
        self.o_proj = nn.Linear(heads * latent.value, hidden, bias=False)

    def forward(self, inputs: Tensor, cache: AnchorCache) -> Tensor:
        """``inputs`` [batch, anchors, width] of the next depth; appends to ``cache``; returns [batch, anchors, H]."""
        latent, depth = self.latent, len(cache.keys)
        positions = torch.arange(inputs.shape[1]) + depth
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(inputs))).unflatten(-1, (self.heads, -1))
        own, turned = query.split([latent.nope, latent.rope], -1)
        query = torch.cat([own, self.rope.rotate(turned, positions)], -1)
        low, shared = self.kv_a_proj_with_mqa(inputs).split([latent.kv_rank, latent.rope], -1)
        both = self.kv_b_proj(self.kv_a_layernorm(low)).unflatten(-1, (self.heads, -1))
        own, value = both.split([latent.nope, latent.value], -1)
        shared = self.rope.rotate(shared[..., None, :], positions).expand(*own.shape[:-1], -1)
        query, key, value = (part.transpose(1, 2) for part in (query, torch.cat([own, shared], -1), value))
        cache.keys.append(key)
        cache.values.append(value)
        if depth == 0:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        else:
            mixed = attend_over_chain(query, cache, self.scale)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def rotary_config(settings: KimiSettings) -> dict[str, object]:
    """The rotary settings of a latent draft, as its ``config.json`` has them."""
    return {
        "rope_theta": settings.rope_theta, "rope_scaling": settings.rope_scaling,
        "max_position_embeddings": settings.max_positions,
    }  # fmt: skip


def attend_over_chain(query: Tensor, cache: AnchorCache, scale: float | None = None) -> Tensor:
    """Attention of later depths: depth-1 rows up to the anchor, then the anchor's own chain.

    ``query`` [batch, heads, anchors, head dim]; the result has the width of the values. ``scale`` is that of the
    scores, by default the inverse root of the head dim.
    """
    groups = query.shape[1] // cache.keys[0].shape[1]
    keys = [key.repeat_interleave(groups, 1) for key in cache.keys]
    values = [value.repeat_interleave(groups, 1) for value in cache.values]
    anchors = query.shape[2]
    scores = query @ keys[0].transpose(-1, -2)
    future = torch.ones(anchors, anchors, dtype=torch.bool).triu(1)
    own = [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
    scores = torch.cat([scores.masked_fill(future, float("-inf")), *own], -1) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    weights = scores.softmax(-1)
    mixed = weights[..., :anchors] @ values[0]
    for index, value in enumerate(values[1:]):
        mixed = mixed + weights[..., anchors + index, None] * value
    return mixed


def rotate(states: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding in Llama's half-split layout; ``states`` [..., positions, head dim]."""
    half = states.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    cosine, sine = angles.cos(), angles.sin()
    first, second = states[..., :half], states[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class DraftMlp(nn.Module):
    """Llama's gated feed-forward block."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., H] to [..., H]."""
        return self.down_proj(F.silu(self.gate_proj(inputs)) * self.up_proj(inputs))


class DraftLayer(nn.Module):
    """The first decoder layer; the hidden state is the residual, the embedding only enters attention."""

    def __init__(self, settings: PairSettings, latent: bool = False) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.input_layernorm = nn.RMSNorm(hidden, settings.norm_eps)
        self.hidden_norm = nn.RMSNorm(hidden, settings.norm_eps)
        self.self_attn = draft_attention(settings, latent)
        self.post_attention_layernorm = nn.RMSNorm(hidden, settings.norm_eps)
        self.mlp = DraftMlp(hidden, settings.draft_intermediate_size)

    def forward(self, embeddings: Tensor, hidden: Tensor, cache: AnchorCache) -> Tensor:
        """The next depth of all anchors; both inputs and the result are [batch, anchors, H]."""
        inputs = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(inputs, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DecoderLayer(nn.Module):
    """An ordinary decoder layer: attention and a feed-forward block, each after a norm and added to the state.

    ``norm`` is what the checkpoint calls the first norm.
    """

    def __init__(
        self, settings: PairSettings, attention: nn.Module, mlp: nn.Module, norm: str = "input_layernorm"
    ) -> None:
        super().__init__()
        self.first_norm = norm
        self.add_module(norm, nn.RMSNorm(settings.hidden_size, settings.norm_eps))
        self.self_attn = attention
        self.post_attention_layernorm = nn.RMSNorm(settings.hidden_size, settings.norm_eps)
        self.mlp = mlp

    def forward(self, hidden: Tensor, cache: AnchorCache) -> Tensor:
        """The next depth of all anchors, [batch, anchors, H]."""
        hidden = hidden + self.self_attn(self.get_submodule(self.first_norm)(hidden), cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def llama_layer(settings: PairSettings, norm: str = "input_layernorm") -> DecoderLayer:
    """A Llama's decoder layer of the draft's sizes."""
    hidden = settings.hidden_size
    attention = DraftAttention(settings, hidden)
    return DecoderLayer(settings, attention, DraftMlp(hidden, settings.draft_intermediate_size), norm)


def draft_attention(settings: PairSettings, latent: bool) -> DraftAttention | LatentDraftAttention:
    """The attention of a draft; EagletraceError for latent attention in a pair that has no sizes for it."""
    if not latent:
        return DraftAttention(settings)
    if not isinstance(settings, KimiSettings):
        raise EagletraceError("a draft with latent attention needs a pair that has its sizes: --pair kimi")
    return LatentDraftAttention(settings)


class Draft(nn.Module):
    """``fc`` over three or more target states, decoder layers, a norm and a head of its own.

    Parameter names are the checkpoint's. ``embed_tokens`` is a parameter only where the draft has its own,
    ``input_norm`` only with ``norm_before_fc``, ``fc_norm`` (one for each state) only with that flag. With
    ``norm_output`` the normed output is fed back. What ``fc`` is given is divided by ``scales`` [states * H].
    """

    scales: Tensor | float = 1.0

    def __init__(
        self,
        settings: PairSettings,
        draft_vocab_size: int,
        own_embeddings: bool = False,
        norm_before_fc: bool = False,
        norm_output: bool = False,
        latent: bool = False,
        *,
        fc_norm: bool = False,
        states: int = 3,
        decoder_layers: int = 1,
    ) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.norm_output = norm_output
        self.embed_tokens = nn.Embedding(settings.vocab_size, hidden) if own_embeddings else None
        self.input_norm = nn.RMSNorm(states * hidden, settings.norm_eps) if norm_before_fc else None
        norms = [nn.RMSNorm(hidden, settings.norm_eps) for _ in range(states)] if fc_norm else None
        self.fc_norm = None if norms is None else nn.ModuleList(norms)
        self.fc = nn.Linear(states * hidden, hidden, bias=False)
        self.midlayer = DraftLayer(settings, latent)
        self.norm = nn.RMSNorm(hidden, settings.norm_eps)
        self.lm_head = nn.Linear(hidden, draft_vocab_size, bias=False)
        # SGLang calls the first norm of later layers so.
        later = {str(number): llama_layer(settings, "hidden_norm") for number in range(1, decoder_layers)}
        self.layers = nn.ModuleDict(later)

    def fuse(self, states: Tensor) -> Tensor:
        """States of the layers side by side [..., states * H] to [..., H]."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            slots = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(slot) for norm, slot in zip(self.fc_norm, slots, strict=True)], -1)
        return self.fc(states / self.scales)

    def step(self, embeddings: Tensor, hidden: Tensor, cache: AnchorCache) -> tuple[Tensor, Tensor]:
        """One depth for all anchors: the hidden state fed back [batch, anchors, H] and draft-vocabulary logits."""
        hidden = self.midlayer(embeddings, hidden, cache)
        for number, layer in self.layers.items():
            hidden = layer(hidden, cache.later.setdefault(number, AnchorCache()))
        normed = self.norm(hidden)
        return normed if self.norm_output else hidden, self.lm_head(normed)

    def matrices(self) -> list[Tensor]:
        """What Muon trains: ``fc`` and the matrices of the layers."""
        inner = [*self.midlayer.parameters(), *self.layers.parameters()]
        return [self.fc.weight, *(value for value in inner if value.ndim == 2)]


class FeatureDraftLayer(nn.Module):
    """The decoder layer of an EAGLE-1 draft: a Llama's without the norm before attention."""

    def __init__(self, settings: PairSettings) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.self_attn = DraftAttention(settings, hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, settings.norm_eps)
        self.mlp = DraftMlp(hidden, settings.draft_intermediate_size)

    def forward(self, hidden: Tensor, cache: AnchorCache) -> Tensor:
        """The next depth of all anchors, [batch, anchors, H]."""
        hidden = hidden + self.self_attn(hidden, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class FeatureDraft(nn.Module):
    """EAGLE-1 (and EAGLE-2, the same draft under trees): at every depth ``fc`` over the embedding and the last hidden
    state, one decoder layer, and the target's ``head`` [vocabulary, H] without a norm before it.

    The state of depth 1 is the target's after its final norm; that of later depths is the draft's own output, which
    learns to be alike. ``scales`` [2H] as in `Draft`.
    """

    scales: Tensor | float = 1.0
    embed_tokens: None = None

    def __init__(self, settings: PairSettings, head: Tensor, fc_bias: bool) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.head = head.detach()  # no parameter of the draft
        self.fc = nn.Linear(2 * hidden, hidden, bias=fc_bias)
        self.midlayer = FeatureDraftLayer(settings)

    def fuse(self, states: Tensor) -> Tensor:
        """The target's normed states [..., H] are taken as they are."""
        return states

    def step(self, embeddings: Tensor, hidden: Tensor, cache: AnchorCache) -> tuple[Tensor, Tensor]:
        """One depth for all anchors: the hidden state fed back [batch, anchors, H] and logits of the vocabulary."""
        hidden = self.midlayer(self.fc(torch.cat([embeddings, hidden], -1) / self.scales), cache)
        return hidden, F.linear(hidden, self.head)

    def matrices(self) -> list[Tensor]:
        """What Muon trains: ``fc`` and the matrices of the layer."""
        return [self.fc.weight, *(value for value in self.midlayer.parameters() if value.ndim == 2)]
