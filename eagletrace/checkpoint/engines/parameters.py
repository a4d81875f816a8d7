"""The parameters that SGLang's draft classes build from a configuration, with the parts of fused ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from eagletrace.checkpoint.config import lookup
from eagletrace.checkpoint.engines import mtp
from eagletrace.checkpoint.engines.rules import NamingRules
from eagletrace.checkpoint.engines.sizes import Parameter, Part, Sizes, Unbuildable, gate_up, mla, plain

DEFAULT_AUX = 3


def aux_count(settings: Mapping[str, Any], rules: NamingRules) -> int:
    """How many aux states the class makes its fusion layer for."""
    for path in rules.aux_count_from:
        value: Any = lookup(settings, path)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if isinstance(value, list) and value:
            return len(value)  # pyright: ignore[reportUnknownArgumentType]
    return DEFAULT_AUX


def build(settings: Mapping[str, Any], rules: NamingRules) -> dict[str, Parameter]:
    """All parameters of the class by name; Unbuildable where a size is missing or the class refuses one."""
    sizes = Sizes(settings)
    layers = sizes.get("num_hidden_layers", 1)
    if rules.max_layers is not None and layers != rules.max_layers:
        raise Unbuildable(f"num_hidden_layers is {layers}, and this release takes {rules.max_layers} only")
    if rules.parameters == "llama_eagle3":
        _check_attributes(settings)
    if rules.parameters in mtp.LAYERS:
        return {p.name: p for p in mtp.parameters(sizes, rules)}
    return {p.name: p for p in _parameters(sizes, rules, layers)}


def _check_attributes(settings: Mapping[str, Any]) -> None:
    """What llama_eagle3.py reads without asking whether it is there, or whether it is null."""
    if "draft_vocab_size" not in settings:
        raise Unbuildable("config.json has no draft_vocab_size, which the class reads (null: the target's head)")
    if "target_hidden_size" in settings and settings["target_hidden_size"] is None:
        raise Unbuildable("target_hidden_size is null, and the class multiplies it: take it away, or give the size")


def _parameters(s: Sizes, rules: NamingRules, layers: int) -> Iterator[Parameter]:
    hidden, vocabulary = s.need("hidden_size"), s.need("vocab_size")
    eagle3 = rules.parameters in ("llama_eagle3", "mla_eagle3")
    yield plain("model.embed_tokens.weight", (vocabulary, hidden), "embedding")
    yield from _fusion(s, rules, hidden)
    for number in range(layers):
        prefix = "model.midlayer" if rules.layer == "midlayer" else f"model.layers.{number}"
        yield from _layer(s, rules, prefix, hidden, number)
    if eagle3:
        yield plain("model.norm.weight", (hidden,), "norm")
    if not s.on("tie_word_embeddings"):
        rows = s.get("draft_vocab_size", vocabulary) if eagle3 else vocabulary
        yield plain("lm_head.weight", (rows, hidden), "head")


def _fusion(s: Sizes, rules: NamingRules, hidden: int) -> Iterator[Parameter]:
    if rules.parameters not in ("llama_eagle3", "mla_eagle3"):
        yield plain("model.fc.weight", (hidden, 2 * hidden))
        yield plain("model.fc.bias", (hidden,), "bias")
        return
    width, count = s.get("target_hidden_size", hidden), aux_count(s.settings, rules)
    yield plain("model.fc.weight", (hidden, width * count))
    if s.on("bias"):
        yield plain("model.fc.bias", (hidden,), "bias")
    eagle_config: Any = s.settings.get("eagle_config") or {}
    before = eagle_config.get("norm_before_fc", s.on("norm_before_fc")) if isinstance(eagle_config, dict) else False
    if "norm_before_fc" in rules.switches and before:
        yield plain("model.input_norm.weight", (width * count,), "norm")
    if "fc_norm" in rules.switches and (s.on("fc_norm") or s.on("use_aux_norm")):
        for slot in range(count):
            yield plain(f"model.fc_norm.{slot}.weight", (width,), "norm")


def _layer(s: Sizes, rules: NamingRules, prefix: str, hidden: int, number: int) -> Iterator[Parameter]:
    inner = s.need("intermediate_size")
    wide = 2 * hidden if rules.parameters in ("llama_eagle3", "mla_eagle3") and number == 0 else hidden
    if rules.parameters == "mla_eagle3":
        yield from mla(s, f"{prefix}.self_attn", hidden, wide)
    else:
        yield from _gqa(s, rules, f"{prefix}.self_attn", hidden, wide)
    yield from gate_up(f"{prefix}.mlp", hidden, inner)
    if rules.parameters in ("llama_eagle3", "mla_eagle3"):
        yield plain(f"{prefix}.hidden_norm.weight", (hidden,), "norm")
        yield replace(plain(f"{prefix}.input_layernorm.weight", (hidden,), "norm"), unused=number > 0)
    elif number > 0:
        yield plain(f"{prefix}.input_layernorm.weight", (hidden,), "norm")
    yield plain(f"{prefix}.post_attention_layernorm.weight", (hidden,), "norm")


def _gqa(s: Sizes, rules: NamingRules, prefix: str, hidden: int, wide: int) -> Iterator[Parameter]:
    heads = s.need("num_attention_heads")
    size = s.get("head_dim", hidden // heads)
    q, kv = heads * size, s.get("num_key_value_heads", heads) * size
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    yield Parameter(f"{prefix}.qkv_proj.weight", "weight", tuple(Part(n, (r, wide)) for n, r in rows.items()))
    biased = s.on("attention_bias") or s.on("bias")
    if rules.parameters == "qwen2_eagle" or (rules.parameters == "llama_eagle" and biased):
        yield Parameter(f"{prefix}.qkv_proj.bias", "bias", tuple(Part(n, (r,)) for n, r in rows.items()))
    yield plain(f"{prefix}.o_proj.weight", (hidden, q))
    if biased and rules.parameters != "qwen2_eagle":
        yield plain(f"{prefix}.o_proj.bias", (hidden,), "bias")
