"""One name for each tensor of a draft, whatever its trainer called it.

Canonical names are those of the Hugging Face Llama or DeepSeek layer with no prefix: `fc.weight`, `norm.weight`,
`layers.0.self_attn.q_proj.weight`, `embed_tokens.weight`, `lm_head.weight`, `input_norm.weight`, `fc_norm.0.weight`,
`d2t`, `t2d`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WRAPPERS = re.compile(r"^(?:(?:_orig_mod|module|model|draft_model|language_model|eagle|speculator)\.)+")
_IN_LAYER = re.compile(
    r"(?P<where>(?:.*\.)?)(?P<what>(?:self_attn|mlp)\..+|"
    r"(?:input_layernorm|hidden_norm|post_attention_layernorm|enorm|hnorm|eh_proj|shared_head\.\w+)\.\w+)"
)
_TOP = {
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
    "embeddings": "embed_tokens",
    "final_norm": "norm",
}
_TOP_LEVEL = re.compile(
    r"(?:.*\.)?(?P<what>(?:embed_tokens|fc|norm|lm_head|input_norm|fc_norm\.\d+|verifier_lm_head|verifier_norm)"
    r"\.(?:weight|bias)|d2t|t2d)"
)


def canonical(key: str) -> str:
    """The canonical name of a checkpoint key; a key that is no part of a draft keeps its own name."""
    name = _WRAPPERS.sub("", key)
    in_layer = _IN_LAYER.fullmatch(name)
    if in_layer:
        numbers = re.findall(r"\d+", in_layer["where"])
        return f"layers.{int(numbers[-1]) if numbers else 0}.{in_layer['what']}"
    first, dot, rest = name.partition(".")
    name = _TOP.get(first, first) + dot + rest
    top = _TOP_LEVEL.fullmatch(name)
    return top["what"] if top else name


def canonical_names(keys: Iterable[str]) -> dict[str, str]:
    """Canonical name -> key. Where two keys have one canonical name, the shorter key has it."""
    names: dict[str, str] = {}
    for key in sorted(keys, key=len):
        names.setdefault(canonical(key), key)
    return names


def layer_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of the decoder layers that canonical names speak of, ascending."""
    return sorted({int(m[1]) for name in names if (m := re.match(r"layers\.(\d+)\.", name))})
