"""Checkpoints of layers of multi-token prediction, right and wrong ones, of each class that has rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from check_drafts import HIDDEN, INNER, MLA, SIZES, VOCAB, Config, Shapes

from eagletrace.checkpoint.engines.parameters import build
from eagletrace.checkpoint.engines.rules import RULES

Case = tuple[Config, Shapes]
EXPERTS, EXPERT_INNER, LAYERS = 4, 64, 3

_EXPERTS: Config = {
    "moe_intermediate_size": EXPERT_INNER, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.0, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 1,
}  # fmt: skip
_LATENT: Config = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "rope_scaling": MLA["rope_scaling"],
}  # fmt: skip
_BEHIND: Config = {**SIZES, "num_hidden_layers": LAYERS, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
DEEPSEEK: Config = {
    **_BEHIND, **_EXPERTS, **_LATENT, "architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3",
}  # fmt: skip
GLM: Config = {
    **_BEHIND, **_EXPERTS, "architectures": ["Glm4MoeForCausalLMNextN"], "model_type": "glm4_moe",
    "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5,
}  # fmt: skip
GLM_LITE: Config = {
    **_BEHIND, **_EXPERTS, **_LATENT, "architectures": ["Glm4MoeLiteForCausalLMNextN"], "model_type": "glm4_moe_lite",
}  # fmt: skip
MIMO: Config = {**_BEHIND, "architectures": ["MiMoMTP"], "model_type": "mimo", "attention_bias": True}
ERNIE: Config = {
    **_BEHIND, "architectures": ["Ernie4_5_MoeForCausalLMMTP"], "model_type": "ernie4_5_moe", "use_bias": True,
}  # fmt: skip

PREFIX = f"model.layers.{LAYERS}."
STORED: dict[str, Callable[[str], str]] = {
    "DeepseekV3ForCausalLMNextN": lambda name: re.sub(r"^model\.(?:decoder\.)?", PREFIX, name),
    "MiMoMTP": lambda name: re.sub(r"^model\.(?:mtp_block\.)?", "model.mtp_layers.0.", name),
    "Ernie4_5_MoeForCausalLMMTP": lambda name: re.sub(r"^(model\.mtp_[a-z_]+)\.", r"\1.0.", name),
}
STORED["Glm4MoeForCausalLMNextN"] = STORED["Glm4MoeLiteForCausalLMNextN"] = STORED["DeepseekV3ForCausalLMNextN"]
"""Name of a parameter -> the name that the published checkpoints of its class have for it."""


def shapes(config: Config) -> Shapes:
    """A complete layer as it is published, without embeddings and head."""
    architecture = config["architectures"][0]
    found: Shapes = {}
    for parameter in build(config, RULES[architecture][-1]).values():
        if parameter.kind in ("embedding", "head"):
            continue
        name = STORED[architecture](parameter.name)
        for part in parameter.parts:
            module, _, kind = name.rpartition(".")
            if parameter.experts:
                found[f"{module}.{part.name}.weight"] = part.shape
            else:
                found[f"{module.rpartition('.')[0]}.{part.name}.{kind}" if part.name else name] = part.shape
    return found


def changed(config: Config, change: Callable[[Shapes], Shapes] = lambda s: s, **settings: Any) -> Case:
    """The complete layer, changed; `settings` change the configuration after that, None takes one away."""
    found = change(shapes(config))
    after = {**config, **settings}
    return {k: v for k, v in after.items() if v is not None or k not in settings}, found


def renamed(old: str, new: str) -> Callable[[Shapes], Shapes]:
    """Keys with `new` in place of `old`."""
    return lambda found: {key.replace(old, new): shape for key, shape in found.items()}


def without(*parts: str) -> Callable[[Shapes], Shapes]:
    """Keys without those that have one of the parts."""
    return lambda found: {key: shape for key, shape in found.items() if not any(part in key for part in parts)}


def also(**keys: tuple[int, ...]) -> Callable[[Shapes], Shapes]:
    """Keys and some more, `__` for a dot."""
    return lambda found: {**found, **{key.replace("__", "."): shape for key, shape in keys.items()}}


def stacked(found: Shapes) -> Shapes:
    """One tensor for each of the experts' matrices, as transformers 5 writes them."""
    kept = {key: shape for key, shape in found.items() if ".experts." not in key}
    return {
        **kept,
        f"{PREFIX}mlp.experts.gate_up_proj": (EXPERTS, 2 * EXPERT_INNER, HIDDEN),
        f"{PREFIX}mlp.experts.down_proj": (EXPERTS, HIDDEN, EXPERT_INNER),
    }


ALONE = renamed(PREFIX, "model.layers.0.")
TARGETS = also(
    model__embed_tokens__weight=(VOCAB, HIDDEN), lm_head__weight=(VOCAB, HIDDEN), model__norm__weight=(HIDDEN,),
    model__layers__0__input_layernorm__weight=(HIDDEN,), model__layers__1__input_layernorm__weight=(HIDDEN,),
    model__layers__2__input_layernorm__weight=(HIDDEN,), model__layers__2__mlp__gate_proj__weight=(INNER, HIDDEN),
)  # fmt: skip
SHARED = also(
    model__layers__3__embed_tokens__weight=(VOCAB, HIDDEN), model__layers__3__shared_head__head__weight=(VOCAB, HIDDEN)
)
DENSE = also(model__layers__3__mlp__gate_proj__weight=(INNER, HIDDEN))

MTP_CASES: dict[str, Case] = {
    "deepseek": changed(DEEPSEEK),
    "deepseek, alone": changed(DEEPSEEK, ALONE, num_hidden_layers=1),
    "deepseek, alone under the model's count": changed(DEEPSEEK, ALONE),
    "deepseek, in the target": changed(DEEPSEEK, TARGETS),
    "deepseek, with the shared parts": changed(DEEPSEEK, SHARED),
    "deepseek, no count": changed(DEEPSEEK, num_nextn_predict_layers=None),
    "deepseek, two layers": changed(DEEPSEEK, num_nextn_predict_layers=2),
    "deepseek, no prefix": changed(DEEPSEEK, renamed("model.layers.", "layers.")),
    "deepseek, one of a pair": changed(DEEPSEEK, without("kv_a_proj_with_mqa")),
    "deepseek, no fusion, no norm": changed(DEEPSEEK, without("eh_proj", "hnorm")),
    "deepseek, norm of another name": changed(DEEPSEEK, renamed("shared_head.norm", "final_layernorm")),
    "deepseek, an expert missing": changed(DEEPSEEK, without("experts.2.up_proj")),
    "deepseek, an expert too many": changed(
        DEEPSEEK, also(model__layers__3__mlp__experts__4__up_proj__weight=(EXPERT_INNER, HIDDEN))
    ),
    "deepseek, experts stacked": changed(DEEPSEEK, stacked),
    "deepseek, two shared experts": changed({**DEEPSEEK, "n_shared_experts": 2}),
    "deepseek, no correction bias": changed({**DEEPSEEK, "topk_method": "greedy"}),
    "deepseek, no query rank": changed({**DEEPSEEK, "q_lora_rank": None}),
    "deepseek, of a dense layer": changed(DEEPSEEK, DENSE),
    "deepseek, fused in the file": changed(DEEPSEEK, renamed("experts.gate_proj", "experts.gate_up_proj")),
    "deepseek, biases": changed(DEEPSEEK, also(model__layers__3__mlp__gate_proj__bias=(INNER,))),
    "deepseek, narrow fusion": changed(
        DEEPSEEK, lambda found: {**found, f"{PREFIX}eh_proj.weight": (HIDDEN, HIDDEN)}
    ),
    "deepseek, wide shared expert": changed(
        DEEPSEEK, lambda found: {**found, f"{PREFIX}mlp.shared_experts.down_proj.weight": (2 * HIDDEN, EXPERT_INNER)}
    ),
    "glm": changed(GLM),
    "glm, alone": changed(GLM, ALONE, num_hidden_layers=1),
    "glm, in the target": changed(GLM, lambda found: SHARED(TARGETS(found))),
    "glm, no count": changed(GLM, num_nextn_predict_layers=None),
    "glm, no switches": changed({**GLM, "attention_bias": False, "use_qk_norm": False}),
    "glm, norms without the switch": changed(GLM, use_qk_norm=False),
    "glm, no v_proj": changed(GLM, without("v_proj.weight")),
    "glm, of a dense layer": changed(GLM, DENSE),
    "glm, fused in the file": changed(GLM, renamed("q_proj", "qkv_proj")),
    "glm, experts of another name": changed(GLM, renamed("mlp.experts.", "mlp.expert.")),
    "glm, experts stacked": changed(GLM, stacked),
    "glm lite": changed(GLM_LITE),
    "glm lite, one of a pair": changed(GLM_LITE, without("q_a_proj")),
    "glm lite, of a dense layer": changed(GLM_LITE, DENSE),
    "mimo": changed(MIMO),
    "mimo, in the target": changed(MIMO, TARGETS),
    "mimo, layer of the wrong name": changed(MIMO, renamed("mtp_layers.0.", "layers.3.")),
    "mimo, layer 1": changed(MIMO, renamed("mtp_layers.0.", "mtp_layers.1.")),
    "mimo, no norm": changed(MIMO, without("final_layernorm")),
    "mimo, a norm too many": changed(MIMO, also(model__mtp_layers__0__enorm__weight=(HIDDEN,))),
    "mimo, a bias too many": changed(MIMO, also(model__mtp_layers__0__self_attn__o_proj__bias=(HIDDEN,))),
    "ernie": changed(ERNIE),
    "ernie, in the target": changed(ERNIE, TARGETS),
    "ernie, no biases": changed({**ERNIE, "use_bias": False}),
    "ernie, biases without the switch": changed(ERNIE, use_bias=False),
    "ernie, layer 1 too": changed(ERNIE, also(model__mtp_emb_norm__1__weight=(HIDDEN,))),
    "ernie, no gate": changed(ERNIE, without("gate_proj")),
    "ernie, tied": changed({**ERNIE, "tie_word_embeddings": True}),
}  # fmt: skip
