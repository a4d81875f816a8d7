"""SGLang's rules for the names of a draft's tensors, as data, one entry for each stretch of releases.

Read from srt/models/{llama_eagle3,kimi_k25_eagle3,llama_eagle,qwen2_eagle}.py of every release from 0.5.3 to 0.5.23,
and compared with the `load_weights` of the installed ones by tests/checkpoint/test_check_names.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RELEASES = (
    "0.5.3", "0.5.3.post1", "0.5.3.post2", "0.5.3.post3", "0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.4.post3",
    "0.5.5", "0.5.5.post1", "0.5.5.post2", "0.5.5.post3", "0.5.6", "0.5.6.post1", "0.5.6.post2", "0.5.7", "0.5.8",
    "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1",
    "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
)  # fmt: skip
"""Releases whose sources were read, the oldest first."""

Prefix = Literal["optional", "always", "always_but_head"]
"""Whether `model.` is put before a name: where the bare name fits no parameter, always, or always but for lm_head."""

Parameters = Literal["llama_eagle3", "mla_eagle3", "llama_eagle", "qwen2_eagle"]
"""How the class builds its parameters (see `parameters.py`)."""


@dataclass(frozen=True)
class Fused:
    """A parameter made of several tensors: names with `part` go into the same name with `whole`."""

    part: str
    whole: str


QKV = (Fused(".q_proj", ".qkv_proj"), Fused(".k_proj", ".qkv_proj"), Fused(".v_proj", ".qkv_proj"))
GATE_UP = (Fused(".gate_proj", ".gate_up_proj"), Fused(".up_proj", ".gate_up_proj"))
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
}  # fmt: skip
"""By architecture, as config.json names it; the last entry whose `since` is not newer than the engine holds."""

OTHER_DRAFTS = ("MistralForCausalLMEagle", "MistralLarge3ForCausalLMEagle", "Ernie4_5_MoeForCausalLMMTP")
"""Draft classes of SGLang whose naming rules are not described here; so are all that end in NextN or MTP."""

AUX_IDS_READ = f"eagle_config.{_IDS}"
"""The one place where every release reads which layers the target captures."""

USE_AUX_READ_SINCE = "0.5.8"
"""First release that reads eagle_config.use_aux_hidden_state to switch the capture off."""
