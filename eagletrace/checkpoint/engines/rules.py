"""SGLang's rules for the names of a draft's tensors, as data, one entry for each stretch of releases.

Read from srt/models/{llama_eagle3,kimi_k25_eagle3,llama_eagle,qwen2_eagle}.py and, for multi-token prediction, from
{deepseek_v2,deepseek_common/deepseek_weight_loader,glm4_moe,glm4_moe_lite,mimo_mtp,ernie4_eagle}.py of every release
from 0.5.3 to 0.5.23, and compared with the `load_weights` of the installed ones by
tests/checkpoint/test_check_names.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

RELEASES = (
    "0.5.3", "0.5.3.post1", "0.5.3.post2", "0.5.3.post3", "0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.4.post3",
    "0.5.5", "0.5.5.post1", "0.5.5.post2", "0.5.5.post3", "0.5.6", "0.5.6.post1", "0.5.6.post2", "0.5.7", "0.5.8",
    "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1",
    "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
)  # fmt: skip
"""Releases whose sources were read, the oldest first."""

Prefix = Literal["optional", "always", "always_but_head", "never"]
"""Whether `model.` is put before a name: where the bare name fits no parameter, always, always but for lm_head, or
never."""

Parameters = Literal["llama_eagle3", "mla_eagle3", "llama_eagle", "qwen2_eagle", "deepseek", "glm", "glm_lite", "mimo",
                     "ernie"]  # fmt: skip
"""How the class builds its parameters (see `parameters.py`, and `mtp.py` for layers of multi-token prediction)."""

Insists = Literal["never", "on_fused", "always_but_biases", "always"]
"""For which names the class takes for granted that it has a parameter, so that a KeyError ends the loading where it has
none: for parts of fused parameters (but biases), for all names but biases, for all."""


@dataclass(frozen=True)
class Fused:
    """A parameter made of several tensors: names with `part` go into the same name with `whole`."""

    part: str
    whole: str


QKV = (Fused(".q_proj", ".qkv_proj"), Fused(".k_proj", ".qkv_proj"), Fused(".v_proj", ".qkv_proj"))
GATE_UP = (Fused(".gate_proj", ".gate_up_proj"), Fused(".up_proj", ".gate_up_proj"))
BARE_QKV = (Fused("q_proj", "qkv_proj"), Fused("k_proj", "qkv_proj"), Fused("v_proj", "qkv_proj"))
BARE_GATE_UP = (Fused("gate_proj", "gate_up_proj"), Fused("up_proj", "gate_up_proj"))
"""The same where the class looks for the bare words: a tensor that is fused in the file is taken for a part."""
MLA_DOWN = ("q_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa")
"""The two down projections of multi-head latent attention, loaded only when both are there, and their parameter."""


@dataclass(frozen=True)
class NamingRules:
    """What `load_weights` of one class does with a name, from release `since` on.

    renames: (old, new) substrings, replaced in this order; anchored: the same at the start of a name only.
    map_by: how `d2t` and `t2d` are recognised (None: the class reads no map). skips: names with such a part are passed
    over on purpose. pairs: parts that are loaded only together. layer: name of the decoder layers' module.
    switches: settings of config.json that the class reads; others of these are ignored without a word.
    max_layers: more decoder layers are refused (None: any number).

    Layers of multi-token prediction: reads: a regular expression found in the names that are read, others are passed
    over, with {n} for the layer's number (None: all are read). moves: the first of these expressions that is found is
    replaced. experts: tensors of single experts land in one parameter ("or_stacked": one tensor of all of them too).
    insists: see `Insists`. needs: settings without which loading ends with an error. not_described: settings with
    which the class builds parameters that are not described here.
    """

    since: str
    parameters: Parameters
    layer: str
    prefix: Prefix
    renames: tuple[tuple[str, str], ...] = ()
    anchored: tuple[tuple[str, str], ...] = ()
    map_by: Literal["part", "last"] | None = None
    skips: tuple[str, ...] = ()
    fused: tuple[Fused, ...] = (*QKV, *GATE_UP)
    pairs: tuple[str, str, str] | None = None
    switches: frozenset[str] = frozenset()
    max_layers: int | None = None
    shares_head: bool = False
    aux_count_from: tuple[str, ...] = ()
    reads: str | None = None
    moves: tuple[tuple[str, str], ...] = ()
    experts: Literal["none", "single", "or_stacked"] = "none"
    insists: Insists = "never"
    needs: frozenset[str] = frozenset()
    not_described: frozenset[str] = frozenset()

    @property
    def numbered(self) -> bool:
        """The class reads one layer of the target's checkpoint, by its number."""
        return "{n}" in (self.reads or "")


_IDS = "eagle_aux_hidden_state_layer_ids"
_LEGACY = (
    ("midlayer", "layers.0"),
    ("aux_norm_low", "fc_norm.0"),
    ("aux_norm_mid", "fc_norm.1"),
    ("aux_norm_high", "fc_norm.2"),
)
_LLAMA_SKIPS = ("lm_head", "rotary_emb.inv_freq", "projector", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
_EAGLE_SWITCHES = frozenset({"attention_bias"})
_EAGLE3_SWITCHES = frozenset({"bias", "fc_norm", "use_aux_norm", "norm_output", "num_aux_hidden_states"})

COUNT = "num_nextn_predict_layers"
_SHARED = ("shared_head.head", "embed_tokens", "lm_head.", "rotary_emb.inv_freq")
_BEHIND = r"^model\.layers\.{n}"
_NUMBERED = ((rf"{_BEHIND}(?=.*(?:shared_head\.norm|eh_proj|enorm|hnorm))", "model"), (_BEHIND, "model.decoder"))
_NOTHING = frozenset[str]()
"""What is needed from 0.5.10 on, which came with transformers 5: without the count its configurations say one layer."""
_DEEPSEEK = NamingRules("0.5.3", "deepseek", "decoder", "never", reads=_BEHIND, moves=_NUMBERED, skips=_SHARED,
                        fused=BARE_GATE_UP, pairs=MLA_DOWN, experts="single", insists="on_fused", shares_head=True,
                        needs=frozenset({COUNT}), not_described=frozenset({"index_topk"}))  # fmt: skip
_GLM = replace(_DEEPSEEK, parameters="glm", fused=(*BARE_QKV, *BARE_GATE_UP), pairs=None, insists="always_but_biases",
               not_described=_NOTHING)  # fmt: skip
_MIMO_OWN = r"token_layernorm|hidden_layernorm|input_proj|final_layernorm"
_MIMO_AT = r"^model\.mtp_layers\.\d+\."

RULES: dict[str, tuple[NamingRules, ...]] = {
    "LlamaForCausalLMEagle3": (
        NamingRules("0.5.3", "llama_eagle3", "midlayer", "optional", map_by="part", max_layers=1,
                    switches=frozenset({"bias"})),
        NamingRules("0.5.12", "llama_eagle3", "layers", "optional", renames=_LEGACY, map_by="part",
                    switches=_EAGLE3_SWITCHES,
                    aux_count_from=("num_aux_hidden_states", f"eagle_config.{_IDS}")),
        NamingRules("0.5.17", "llama_eagle3", "layers", "optional", renames=_LEGACY, map_by="part",
                    switches=_EAGLE3_SWITCHES | {"norm_before_fc"},
                    aux_count_from=("num_aux_hidden_states", f"eagle_config.{_IDS}")),
    ),
    "Eagle3DeepseekV2ForCausalLM": (
        NamingRules("0.5.12", "mla_eagle3", "midlayer", "always_but_head", anchored=(("layers.0.", "midlayer."),),
                    map_by="last", fused=GATE_UP, pairs=MLA_DOWN, max_layers=1, switches=frozenset({"bias"}),
                    aux_count_from=(f"eagle_config.{_IDS}", _IDS)),
        NamingRules("0.5.13", "mla_eagle3", "midlayer", "always_but_head", anchored=(("layers.0.", "midlayer."),),
                    map_by="last", fused=GATE_UP, pairs=MLA_DOWN, max_layers=1,
                    switches=_EAGLE3_SWITCHES - {"num_aux_hidden_states"},
                    aux_count_from=(f"eagle_config.{_IDS}", _IDS)),
    ),
    "LlamaForCausalLMEagle": (
        NamingRules("0.5.3", "llama_eagle", "layers", "always", skips=_LLAMA_SKIPS, shares_head=True,
                    switches=_EAGLE_SWITCHES),
    ),
    "Qwen2ForCausalLMEagle": (
        NamingRules("0.5.3", "qwen2_eagle", "layers", "always", skips=_LLAMA_SKIPS, shares_head=True),
    ),
    "DeepseekV3ForCausalLMNextN": (
        _DEEPSEEK,
        replace(_DEEPSEEK, since="0.5.10", needs=_NOTHING),
        replace(_DEEPSEEK, since="0.5.20", needs=_NOTHING, experts="or_stacked"),
    ),
    "Glm4MoeForCausalLMNextN": (
        _GLM,
        replace(_GLM, since="0.5.4.post1", insists="never"),
        replace(_GLM, since="0.5.10", insists="never", needs=_NOTHING),
    ),
    "Glm4MoeLiteForCausalLMNextN": (
        replace(_GLM, since="0.5.13", parameters="glm_lite", pairs=MLA_DOWN, insists="never",
                needs=_NOTHING),
    ),
    "MiMoMTP": (
        NamingRules("0.5.3", "mimo", "mtp_block", "never",
                    reads=rf"{_MIMO_AT}|mtp_block|embed_tokens|lm_head|{_MIMO_OWN}",
                    moves=((rf"{_MIMO_AT}(?=.*(?:{_MIMO_OWN}))", "model."), (_MIMO_AT, "model.mtp_block.")),
                    skips=(*_LLAMA_SKIPS[1:], "model.vision_tower"), fused=(*BARE_QKV, *BARE_GATE_UP),
                    insists="always_but_biases", shares_head=True),
    ),
    "Ernie4_5_MoeForCausalLMMTP": (
        NamingRules("0.5.3", "ernie", "mtp_block", "never",
                    reads=r"mtp_(?:block|emb_norm|hidden_norm|linear_proj)\.0", moves=((r"\.0\.", "."),),
                    insists="always", shares_head=True),
    ),
}  # fmt: skip
"""By architecture, as config.json names it; the last entry whose `since` is not newer than the engine holds."""

SERVED_AS: dict[str, tuple[str, str]] = {
    "DeepseekV3ForCausalLM": ("0.5.3", "DeepseekV3ForCausalLMNextN"),
    "DeepseekV32ForCausalLM": ("0.5.12", "DeepseekV3ForCausalLMNextN"),
    "Glm4MoeForCausalLM": ("0.5.3", "Glm4MoeForCausalLMNextN"),
    "Glm4MoeLiteForCausalLM": ("0.5.13", "Glm4MoeLiteForCausalLMNextN"),
    "MiMoForCausalLM": ("0.5.3", "MiMoMTP"),
    "Ernie4_5_MoeForCausalLM": ("0.5.3", "Ernie4_5_MoeForCausalLMMTP"),
}
"""Target's architecture -> first release, and the class that its layer of multi-token prediction is served as, where
that class has rules here (`_config_draft_model` of srt/configs/model_config.py)."""

OTHER_DRAFTS = ("MistralForCausalLMEagle", "MistralLarge3ForCausalLMEagle")
"""Draft classes of SGLang whose naming rules are not described here; so are all others that end in NextN or MTP."""

AUX_IDS_READ = f"eagle_config.{_IDS}"
"""The one place where every release reads which layers the target captures."""

USE_AUX_READ_SINCE = "0.5.8"
"""First release that reads eagle_config.use_aux_hidden_state to switch the capture off."""
