"""A draft's shape, as the reference needs it."""

from __future__ import annotations

from dataclasses import dataclass

from eagletrace.checkpoint import Draft
from eagletrace.checkpoint import config as configs
from eagletrace.replay.result import ReplayError
from eagletrace.replay.rope import Rope

DEFAULT_AUX = 3


@dataclass(frozen=True)
class Architecture:
    """A Llama-style EAGLE-3 draft. `norm_before_fc` normalises the concatenated aux states, `fc_norm` each of them,
    `norm_output` hands the normed state to the next depth (SGLang models/llama_eagle3.py, 0.5.23)."""

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

    @staticmethod
    def of(draft: Draft) -> Architecture:
        """The shape of a described draft; ReplayError for an architecture that the reference does not have."""
        settings, where = draft.settings, draft.checkpoint.path
        if draft.algorithm != "EAGLE3" or draft.attention != "gqa":
            raise ReplayError(
                f"{where} is a draft of class {draft.architecture} ({draft.algorithm}, {draft.attention} attention); "
                "the reference has Llama-style EAGLE-3 drafts only"
            )
        heads = configs.integer(settings, "num_attention_heads")
        if not draft.hidden_size or not heads:
            raise ReplayError(f"{where}/config.json lacks hidden_size or num_attention_heads")
        head_dim = configs.integer(settings, "head_dim") or draft.hidden_size // heads
        return Architecture(
            hidden_size=draft.hidden_size,
            target_hidden_size=draft.target_hidden_size or draft.hidden_size,
            heads=heads,
            kv_heads=configs.integer(settings, "num_key_value_heads") or heads,
            head_dim=head_dim,
            layers=draft.layers,
            norm_eps=configs.number(settings, "rms_norm_eps", 1e-6),
            aux_count=draft.aux_count or DEFAULT_AUX,
            rope=Rope.of(settings, head_dim),
            norm_before_fc=bool(draft.norms.before_fc),
            fc_norm=bool(draft.norms.each_aux),
            norm_output=bool(draft.norms.output),
        )
