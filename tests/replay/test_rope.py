"""The rotary embeddings of the reference are those of transformers, in every scaling that drafts use."""
# transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb  # noqa: E402

from eagletrace.replay.rope import Rope  # noqa: E402

HEAD_DIM, HEADS, N = 32, 2, 64
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 256},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
}  # fmt: skip


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", SCALINGS)
def test_rotation_is_that_of_transformers(kind: str, theta: float) -> None:
    scaling = {"rope_type": "default", **SCALINGS[kind], "rope_theta": theta}
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=HEAD_DIM, max_position_embeddings=1024,
                         rope_parameters=scaling)  # fmt: skip
    states = torch.randn(1, HEADS, N, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(N) + 500
    cosine, sine = LlamaRotaryEmbedding(config)(states, positions[None])
    expected, _ = apply_rotary_pos_emb(states, states, cosine, sine)
    settings = {"rope_parameters": scaling, "max_position_embeddings": 1024}
    turned = Rope.of(settings, HEAD_DIM).rotate(states[0].transpose(0, 1), positions)
    assert torch.allclose(turned.transpose(0, 1), expected[0], atol=1e-4)


def test_the_interleaved_layout_turns_neighbours() -> None:
    """Pairs (0, 1), (2, 3): the half-split layout of the same head with its elements in that order."""
    states = torch.randn(N, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    order = torch.cat([torch.arange(0, HEAD_DIM, 2), torch.arange(1, HEAD_DIM, 2)])
    positions = torch.arange(N)
    halves = Rope(HEAD_DIM).rotate(states[..., order], positions)
    pairs = Rope(HEAD_DIM, interleaved=True).rotate(states, positions)
    assert torch.allclose(pairs[..., order], halves, atol=1e-6)


def test_a_partial_rotation_leaves_the_rest() -> None:
    rope = Rope.of({"partial_rotary_factor": 0.5}, HEAD_DIM)
    states = torch.randn(N, HEADS, HEAD_DIM)
    turned = rope.rotate(states, torch.arange(N))
    assert rope.dim == HEAD_DIM // 2
    assert torch.equal(turned[..., rope.dim :], states[..., rope.dim :])
    assert not torch.allclose(turned[1:, :, : rope.dim], states[1:, :, : rope.dim])
