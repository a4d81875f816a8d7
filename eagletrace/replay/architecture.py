"""A draft's shape, as the reference needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagletrace.checkpoint import Draft
from eagletrace.checkpoint import config as configs
from eagletrace.replay.experts import Experts
from eagletrace.replay.result import ReplayError, UnknownDraftError
from eagletrace.replay.rope import Rope

DEFAULT_AUX = 3


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024): ranks of the compressed queries and keys, and widths of a head's
    parts: `nope` without rotation, `rope` with, `value`."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Architecture:
    """An EAGLE draft of one or more decoder layers, with grouped-query attention or, if `latent`, MLA.

    With `feature` it is EAGLE-1 or EAGLE-2 (SGLang models/llama_eagle.py, 0.5.23): at every depth `fc` takes the
    embedding and the last hidden state, the target's after its final norm or the draft's own; there is no norm before
    the first attention and none before the head. With `nextn` besides it is DeepSeek-V3's layer of multi-token
    prediction (models/deepseek_nextn.py): `eh_proj` plays the part of `fc`, embedding and hidden state are each normed
    before it, and the decoder layer has all its norms and `experts`. Else it is EAGLE-3, and `fc` fuses the target's
    aux states at depth 1.

    `norm_before_fc` normalises the concatenated aux states, `fc_norm` each of them, `norm_output` hands the normed
    state to the next depth (SGLang models/llama_eagle3.py and kimi_k25_eagle3.py, 0.5.23); `norm_before_residual` makes
    the normed hidden state the first layer's residual (speculators 0.9.0; no SGLang to 0.5.23 does that).
    """

    hidden_size: int
    target_hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    norm_eps: float
    aux_count: int
    rope: Rope
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    latent: Latent | None = None
    feature: bool = False
    nextn: bool = False
    experts: Experts | None = None
    intermediate_size: int = 0
    attention_scale: float = 0.0
    """What attention scores are multiplied by."""

    @property
    def fusion(self) -> str:
        """Name of the projection into the first layer."""
        return "layers.0.eh_proj" if self.nextn else "fc"

    @property
    def final_norm(self) -> str | None:
        """Name of the norm before the head; EAGLE-1 has none."""
        return "layers.0.shared_head.norm" if self.nextn else None if self.feature else "norm"

    @staticmethod
    def of(draft: Draft) -> Architecture:
        """The shape of a described draft; UnknownDraftError for an architecture that the reference does not have."""
        settings, where = draft.settings, draft.checkpoint.path
        nextn = draft.algorithm == "NEXTN" and draft.attention == "mla" and "layers.0.eh_proj.weight" in draft.names
        feature = nextn or (draft.algorithm == "EAGLE" and draft.attention == "gqa")
        if draft.algorithm != "EAGLE3" and not feature:
            raise UnknownDraftError(
                f"{where} is a draft of class {draft.architecture} ({draft.algorithm}); the reference has drafts of "
                "EAGLE-1 to EAGLE-3 and DeepSeek-V3's layer of multi-token prediction only"
            )
        heads = configs.integer(settings, "num_attention_heads")
        if not draft.hidden_size or not heads:
            raise ReplayError(f"{where}/config.json lacks hidden_size or num_attention_heads")
        latent = _latent(settings) if draft.attention == "mla" else None
        head_dim = configs.integer(settings, "head_dim") or draft.hidden_size // heads
        if latent is not None:
            head_dim = latent.nope + latent.rope
        rope = Rope.of(settings, latent.rope, interleaved=True) if latent else Rope.of(settings, head_dim)
        return Architecture(
            hidden_size=draft.hidden_size,
            target_hidden_size=draft.target_hidden_size or draft.hidden_size,
            heads=heads,
            kv_heads=heads if latent else configs.integer(settings, "num_key_value_heads") or heads,
            head_dim=head_dim,
            layers=draft.layers,
            norm_eps=configs.number(settings, "rms_norm_eps", 1e-6),
            aux_count=draft.aux_count or DEFAULT_AUX,
            rope=rope,
            norm_before_fc=bool(draft.norms.before_fc),
            fc_norm=bool(draft.norms.each_aux),
            norm_output=bool(draft.norms.output) or nextn,
            norm_before_residual=bool(draft.norms.before_residual),
            latent=latent,
            feature=feature,
            nextn=nextn,
            experts=Experts.of(settings) if nextn else None,
            intermediate_size=configs.integer(settings, "intermediate_size") or 0,
            attention_scale=head_dim**-0.5 * (rope.score_factor() if latent else 1.0),
        )


def _latent(settings: Mapping[str, Any]) -> Latent:
    """The ranks of an MLA draft; ReplayError names the one that is missing."""
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = [configs.integer(settings, name) for name in names]
    missing = [name for name, size in zip(names, sizes, strict=True) if not size]
    if missing:
        raise ReplayError(f"the draft has multi-head latent attention, and its config.json lacks {', '.join(missing)}")
    return Latent(*(size or 0 for size in sizes))


def needed_tensors(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the matrices that a draft cannot do without, its head apart."""
    hidden, heads = shape.hidden_size, shape.heads
    fused = hidden + shape.target_hidden_size if shape.feature else shape.aux_count * shape.target_hidden_size
    found: dict[str, tuple[int, ...]] = {f"{shape.fusion}.weight": (hidden, fused)}
    for layer in range(shape.layers):
        width = hidden if layer or shape.feature else 2 * hidden
        latent = shape.latent
        if latent is None:
            rows = {"q_proj": heads, "k_proj": shape.kv_heads, "v_proj": shape.kv_heads}
            attention = {name: (count * shape.head_dim, width) for name, count in rows.items()}
            attention["o_proj"] = (hidden, heads * shape.head_dim)
        else:
            attention = {
                "q_a_proj": (latent.q_rank, width), "q_b_proj": (heads * (latent.nope + latent.rope), latent.q_rank),
                "kv_a_proj_with_mqa": (latent.kv_rank + latent.rope, width),
                "kv_b_proj": (heads * (latent.nope + latent.value), latent.kv_rank),
                "o_proj": (hidden, heads * latent.value),
            }  # fmt: skip
        found |= {f"layers.{layer}.self_attn.{name}.weight": size for name, size in attention.items()}
        if shape.experts is not None:
            found |= shape.experts.needed(f"layers.{layer}.mlp", hidden)
            continue
        inner = shape.intermediate_size
        found |= {f"layers.{layer}.mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")}
        found[f"layers.{layer}.mlp.down_proj.weight"] = (hidden, inner)
    return found
