"""Every number of the lab's pair in one place: the architecture and how long each part trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Size = Literal["full", "small"]
Pair = Literal["llama", "kimi"]
PAIRS: tuple[Pair, ...] = ("llama", "kimi")
"""The pairs that ship; the first is the default."""


@dataclass(frozen=True)
class PairSettings:
    """Architecture and training lengths of one pair."""

    # architecture, shared by target and drafts where both have it
    layers: int = 12
    hidden_size: int = 128
    target_intermediate_size: int = 224
    draft_intermediate_size: int = 256
    heads: int = 4
    key_value_heads: int = 2
    vocab_size: int = 512
    draft_vocab_size: int = 384
    max_positions: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    other_layers: tuple[int, int, int] = (4, 8, 10)
    """Layers whose inputs the variant ``other_layers`` is trained on."""

    # target training
    target_steps: int = 501
    target_batch: int = 6
    target_length: int = 192
    separation_weight: float = 2.0
    """Weight of the penalty on similar hidden states of nearby layers."""

    # texts that the target writes itself
    rollouts: int = 512
    rollout_prompt_lengths: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 80, 96)
    rollout_length: int = 160

    # draft training
    draft_steps: int = 200
    draft_batch: int = 10
    draft_depths: int = 4
    """Steps of the training-time test: how often the draft runs on its own hidden state, plus one."""

    # both trainings
    matrix_rate: float = 0.02
    """Peak learning rate of Muon."""
    rate: float = 5e-3
    """Peak learning rate of AdamW."""
    threads: int = 1

    @property
    def default_layers(self) -> tuple[int, int, int]:
        """Layers whose inputs SGLang captures unless told otherwise (0.5.9 and 0.5.23)."""
        return (2, self.layers // 2, self.layers - 3)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    def layer_ids(self, layers: tuple[int, ...]) -> list[int]:
        """What `eagle_config` must say so that SGLang 0.5.23 captures the inputs of ``layers`` from this target."""
        return [layer - 1 for layer in layers]


@dataclass(frozen=True)
class LatentSizes:
    """Ranks and widths of multi-head latent attention: compressed queries and keys, a head's parts.

    The cache holds ``kv_rank + rope`` elements, a head's written-out key ``nope + rope``: they differ, so that a kernel
    that takes one for the other fails or is seen.
    """

    q_rank: int = 64
    kv_rank: int = 48
    nope: int = 32
    rope: int = 16
    value: int = 32


@dataclass(frozen=True)
class KimiSettings(PairSettings):
    """A pair whose target is a Kimi-K2.5: a multimodal wrapper around a DeepSeek-V3 with latent attention and experts.

    The drafts are Llama ones, as in the other pair, or have latent attention of the same sizes.
    """

    layers: int = 10
    rope_theta: float = 50000.0
    other_layers: tuple[int, int, int] = (4, 6, 8)
    latent: LatentSizes = LatentSizes()
    experts: int = 8
    experts_per_token: int = 2
    expert_intermediate_size: int = 48
    dense_layers: int = 1
    """So many first layers have no experts."""
    routed_scaling: float = 2.5
    expert_rate: float = 2e-3
    """Peak learning rate of the experts, which are stacked tensors that Muon does not take."""
    yarn_factor: float = 4.0
    yarn_original_positions: int = 256

    @property
    def rope_scaling(self) -> dict[str, object]:
        """YaRN as Kimi-K2.5 has it, of target and latent drafts; on a CPU SGLang's latent attention asks for it."""
        return {
            "type": "yarn", "factor": self.yarn_factor,
            "original_max_position_embeddings": self.yarn_original_positions, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        }  # fmt: skip

    @property
    def latent_attention(self) -> dict[str, object]:
        """Sizes of latent attention as a model's configuration names them."""
        latent = self.latent
        return {
            "num_key_value_heads": self.heads, "q_lora_rank": latent.q_rank, "kv_lora_rank": latent.kv_rank,
            "qk_nope_head_dim": latent.nope, "qk_rope_head_dim": latent.rope, "v_head_dim": latent.value,
        }  # fmt: skip

    def layer_ids(self, layers: tuple[int, ...]) -> list[int]:
        """DeepSeek's classes take ids as they are, unless the first is 1: then they add one (deepseek_v2.py)."""
        return [layer - 1 for layer in layers] if layers[0] == 2 else list(layers)


_SMALL: dict[str, Any] = {
    "layers": 8, "target_length": 96, "rollouts": 96, "rollout_prompt_lengths": (8, 24, 48), "rollout_length": 96,
    "draft_batch": 8, "draft_depths": 3, "other_layers": (3, 5, 7),
}  # fmt: skip

SIZES: dict[str, PairSettings] = {
    "full": PairSettings(),
    "small": PairSettings(**_SMALL, target_steps=100, target_batch=8, draft_steps=50),
}

KIMI_SIZES: dict[str, PairSettings] = {
    "full": KimiSettings(),
    "small": KimiSettings(**_SMALL, target_steps=60, draft_steps=40),
}

SIZES_OF: Mapping[str, Mapping[str, PairSettings]] = {"llama": SIZES, "kimi": KIMI_SIZES}
"""Pair -> size -> settings."""
