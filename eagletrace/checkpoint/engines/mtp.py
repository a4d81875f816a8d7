"""The parameters of SGLang's classes for a layer of multi-token prediction.

All are one decoder layer behind a projection of the embedding and the target's hidden state, each normed, side by side;
what differs stands in `LAYERS`. Read from srt/models/{deepseek_nextn,glm4_moe_nextn,glm4_moe_lite_nextn,mimo_mtp,
ernie4_eagle}.py of SGLang 0.5.23, and of the releases before it that `rules.py` lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eagletrace.checkpoint.config import integer
from eagletrace.checkpoint.engines.rules import COUNT, NamingRules
from eagletrace.checkpoint.engines.sizes import Parameter, Part, Sizes, Unbuildable, gate_up, mla, plain

Routing = Literal["dense", "biased", "biased_if_noaux_tc"]
"""No experts, or experts whose gate has a correction bias: always, or where topk_method is noaux_tc."""


@dataclass(frozen=True)
class Layer:
    """A class: names of the norms before the projection, of the projection (`fuses`), of the norm behind the decoder
    layer (None: there is none) and of the decoder layer (`block`).

    `latent`: multi-head latent attention. `head_norms`: the setting that gives the heads norms. `biases`: what has a
    bias where the setting `biased_by` is on (None: always). `ties`: with tie_word_embeddings there is no head.
    """

    norms: tuple[str, str]
    fuses: str
    last: str | None
    block: str
    routing: Routing
    latent: bool = False
    head_norms: str | None = None
    biases: tuple[str, ...] = ()
    biased_by: str | None = None
    ties: bool = False


LAYERS: dict[str, Layer] = {
    "deepseek": Layer(("enorm", "hnorm"), "eh_proj", "shared_head.norm", "decoder", "biased_if_noaux_tc", latent=True),
    "glm": Layer(("enorm", "hnorm"), "eh_proj", "shared_head.norm", "decoder", "biased", head_norms="use_qk_norm",
                 biases=("qkv_proj",), biased_by="attention_bias"),
    "glm_lite": Layer(("enorm", "hnorm"), "eh_proj", "shared_head.norm", "decoder", "biased", latent=True),
    "mimo": Layer(("token_layernorm", "hidden_layernorm"), "input_proj", "final_layernorm", "mtp_block", "dense",
                  biases=("qkv_proj",)),
    "ernie": Layer(("mtp_emb_norm", "mtp_hidden_norm"), "mtp_linear_proj", None, "mtp_block", "dense",
                   biases=("fuses", "qkv_proj", "o_proj"), biased_by="use_bias", ties=True),
}  # fmt: skip
"""By `NamingRules.parameters`."""


def parameters(s: Sizes, rules: NamingRules) -> Iterator[Parameter]:
    """All parameters of the class; Unbuildable where a setting is missing, or names more layers than the class takes.

    A shared expert counts as a block of its own, [2 x inner, hidden] and [hidden, inner]. On some GPUs SGLang keeps it
    behind the routed experts; its tensors land all the same.
    """
    layer = LAYERS[rules.parameters]
    missing = sorted(name for name in rules.needs if integer(s.settings, name) is None)
    if missing:
        raise Unbuildable(f"config.json has no {missing[0]}, which the class reads")
    if rules.numbered and s.get(COUNT, 1) != 1:
        raise Unbuildable(f"{COUNT} is {s.settings[COUNT]}, and the class takes one layer only")
    hidden, vocabulary = s.need("hidden_size"), s.need("vocab_size")
    biases = layer.biases if layer.biased_by is None or s.on(layer.biased_by) else ()
    yield plain("model.embed_tokens.weight", (vocabulary, hidden), "embedding")
    for norm in (*layer.norms, *([layer.last] if layer.last else [])):
        yield plain(f"model.{norm}.weight", (hidden,), "norm")
    yield plain(f"model.{layer.fuses}.weight", (hidden, 2 * hidden))
    if "fuses" in biases:
        yield plain(f"model.{layer.fuses}.bias", (hidden,), "bias")
    block = f"model.{layer.block}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield plain(f"{block}.{norm}.weight", (hidden,), "norm")
    if layer.latent:
        yield from mla(s, f"{block}.self_attn", hidden, hidden, compressed=s.settings.get("q_lora_rank") is not None)
    else:
        yield from _attention(s, layer, f"{block}.self_attn", hidden, biases)
    if layer.routing == "dense":
        yield from gate_up(f"{block}.mlp", hidden, s.need("intermediate_size"))
    else:
        yield from _experts(s, layer, f"{block}.mlp", hidden)
    if not (layer.ties and s.on("tie_word_embeddings")):
        yield plain("lm_head.weight", (vocabulary, hidden), "head")


def _attention(s: Sizes, layer: Layer, prefix: str, hidden: int, biases: tuple[str, ...]) -> Iterator[Parameter]:
    heads = s.need("num_attention_heads")
    size = s.get("head_dim", hidden // heads)
    q, kv = heads * size, s.get("num_key_value_heads", heads) * size
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    yield Parameter(f"{prefix}.qkv_proj.weight", "weight", tuple(Part(n, (r, hidden)) for n, r in rows.items()))
    if "qkv_proj" in biases:
        yield Parameter(f"{prefix}.qkv_proj.bias", "bias", tuple(Part(n, (r,)) for n, r in rows.items()))
    yield plain(f"{prefix}.o_proj.weight", (hidden, q))
    if "o_proj" in biases:
        yield plain(f"{prefix}.o_proj.bias", (hidden,), "bias")
    if layer.head_norms is not None and s.on(layer.head_norms):
        for norm in ("q_norm", "k_norm"):
            yield plain(f"{prefix}.{norm}.weight", (size,), "norm")


def _experts(s: Sizes, layer: Layer, prefix: str, hidden: int) -> Iterator[Parameter]:
    count, inner = s.need("n_routed_experts"), s.need("moe_intermediate_size")
    yield plain(f"{prefix}.gate.weight", (count, hidden))
    if layer.routing == "biased" or s.settings.get("topk_method") == "noaux_tc":
        yield plain(f"{prefix}.gate.e_score_correction_bias", (count,), "bias")
    into = [Part(f"{expert}.{name}", (inner, hidden)) for expert in range(count) for name in ("gate_proj", "up_proj")]
    out = [Part(f"{expert}.down_proj", (hidden, inner)) for expert in range(count)]
    yield Parameter(f"{prefix}.experts.w13_weight", "weight", tuple(into), experts=count)
    yield Parameter(f"{prefix}.experts.w2_weight", "weight", tuple(out), experts=count)
    shared = integer(s.settings, "n_shared_experts") if "n_shared_experts" in s.settings else 1
    if shared:
        yield from gate_up(f"{prefix}.shared_experts", hidden, inner * shared)
