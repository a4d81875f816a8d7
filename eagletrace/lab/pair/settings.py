"""Every number of the lab's pair in one place: the architecture and how long each part trains."""

from dataclasses import dataclass
from typing import Literal

Size = Literal["full", "small"]


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


SIZES: dict[str, PairSettings] = {
    "full": PairSettings(),
    "small": PairSettings(
        layers=8,
        target_steps=100,
        target_length=96,
        target_batch=8,
        rollouts=96,
        rollout_prompt_lengths=(8, 24, 48),
        rollout_length=96,
        draft_steps=50,
        draft_batch=8,
        draft_depths=3,
        other_layers=(3, 5, 7),
    ),
}
