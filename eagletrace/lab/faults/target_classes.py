"""Changes that make the pair's Llama target a model of another class that computes the same, so that every draft of the
pair serves on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from eagletrace.lab.faults.changes import NoEffectError, PairFiles
from eagletrace.lab.faults.checkpoint import Checkpoint

Tensors = dict[str, torch.Tensor]

LOUD = 2.0**20
"""What an RMS norm is drowned with, so that it divides by a constant; queries and keys are smaller by a factor of 1e4
at least, and the error they leave is their ratio squared."""
SILENT_SINK = -1.0e4
"""A logit beside which every score is large: exp(-1e4) is zero."""
NO_CLAMP = 1.0e6
ALPHA = 1.702
"""Gain of the sigmoid in gpt-oss' experts (gpt_oss.py of SGLang, modeling_gpt_oss.py of transformers)."""
EXPERTS = 2


@dataclass(frozen=True)
class AsQwen2:
    """A Qwen2: a Llama whose queries, keys and values have biases, here of zero."""

    def apply(self, pair: PairFiles) -> None:
        """Add the biases, in the type of the weights."""
        biases = {f"{module}.bias": torch.zeros(len(weight), dtype=weight.dtype)
                  for module, weight in _projections(_llama(pair), "qkv")}  # fmt: skip
        pair.target.tensors |= biases
        _rename(pair.target, "Qwen2ForCausalLM", "qwen2")
        pair.target.config["use_sliding_window"] = False


@dataclass(frozen=True)
class AsQwen3:
    """A Qwen3: its norms of each head's queries and keys divide by a constant, because half of a head is a constant.

    Heads are twice as wide. The bias of the new half is `LOUD` in queries and keys and the norm's weight for it is
    zero, so that it sets the root mean square and adds nothing to a score; the norm's weight for the old half gives
    the root mean square back, and in queries the root of two by which the scores of wider heads are smaller. Old
    dimensions are spread so that each keeps its rotary frequency. Written in float32.
    """

    def apply(self, pair: PairFiles) -> None:
        """Widen every head."""
        target = _in_float32(_llama(pair))
        old = int(target.config["head_dim"])
        places = _spread(old)
        constant = torch.full((2 * old,), LOUD).index_fill(0, places, 0.0)
        rms = LOUD * 0.5**0.5
        made: Tensors = {}
        for module, weight in _projections(target, "qkv"):
            heads = weight.unflatten(0, (-1, old))
            wide = torch.zeros(heads.shape[0], 2 * old, heads.shape[2]).index_copy(1, places, heads)
            made[f"{module}.weight"] = wide.flatten(0, 1)
            value = module.endswith("v_proj")
            made[f"{module}.bias"] = (torch.zeros_like(constant) if value else constant).repeat(heads.shape[0])
        for module, weight in _projections(target, "o"):
            heads = weight.unflatten(1, (-1, old))
            wide = torch.zeros(heads.shape[0], heads.shape[1], 2 * old).index_copy(2, places, heads)
            made[f"{module}.weight"] = wide.flatten(1)
            made[f"{module}.bias"] = torch.zeros(len(wide))
            for norm, scale in (("q_norm", rms * 2**0.5), ("k_norm", rms)):
                weights = torch.zeros(2 * old).index_fill(0, places, scale)
                made[f"{module.replace('o_proj', norm)}.weight"] = weights
        target.tensors |= made
        _rename(target, "Qwen3ForCausalLM", "qwen3")
        target.config |= {"head_dim": 2 * old, "attention_bias": True, "use_sliding_window": False}


@dataclass(frozen=True)
class AsGptOss:
    """A gpt-oss: experts that are all the Llama's feed-forward block, sinks that take nothing, no sliding window.

    Its experts compute `g * sigmoid(1.702 * g) * (u + 1)` of a gate `g` and an `u`: with the gate divided by 1.702 and
    `u` multiplied by it, less one, that is a Llama's `silu(gate) * up`. Written in float32.
    """

    def apply(self, pair: PairFiles) -> None:
        """Rewrite every layer's feed-forward block; add biases, sinks and a router."""
        target = _in_float32(_llama(pair))
        heads, generator = int(target.config["num_attention_heads"]), torch.Generator().manual_seed(0)
        made: Tensors = {}
        for module, weight in _projections(target, "qkvo"):
            made[f"{module}.bias"] = torch.zeros(len(weight))
            made[f"{module.rpartition('.')[0]}.sinks"] = torch.full((heads,), SILENT_SINK)
        for key in [key for key in target.tensors if key.endswith("mlp.gate_proj.weight")]:
            block = key.removesuffix(".gate_proj.weight")
            gate, up, down = (target.tensors.pop(f"{block}.{part}_proj.weight") for part in ("gate", "up", "down"))
            both = torch.stack([gate / ALPHA, up * ALPHA], 1).flatten(0, 1).T  # a row of each in turn
            bias = torch.tensor([0.0, -1.0]).repeat(len(gate))
            made[f"{block}.experts.gate_up_proj"] = both.expand(EXPERTS, -1, -1)
            made[f"{block}.experts.gate_up_proj_bias"] = bias.expand(EXPERTS, -1)
            made[f"{block}.experts.down_proj"] = down.T.expand(EXPERTS, -1, -1)
            made[f"{block}.experts.down_proj_bias"] = torch.zeros(EXPERTS, len(down))
            made[f"{block}.router.weight"] = torch.randn(EXPERTS, gate.shape[1], generator=generator)
            made[f"{block}.router.bias"] = torch.zeros(EXPERTS)
        target.tensors |= made
        _rename(target, "GptOssForCausalLM", "gpt_oss")
        theta = target.config.pop("rope_theta")
        target.config |= {
            "attention_bias": True, "num_local_experts": EXPERTS, "num_experts_per_tok": 1, "swiglu_limit": NO_CLAMP,
            "layer_types": ["full_attention"] * int(target.config["num_hidden_layers"]),
            "sliding_window": int(target.config["max_position_embeddings"]),
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        }  # fmt: skip


def _llama(pair: PairFiles) -> Checkpoint:
    """The target; NoEffectError if it is no Llama."""
    if pair.target.config.get("architectures") != ["LlamaForCausalLM"]:
        raise NoEffectError("the target is no Llama")
    return pair.target


def _in_float32(target: Checkpoint) -> Checkpoint:
    target.tensors = {key: tensor.float() for key, tensor in target.tensors.items()}
    target.config["torch_dtype"] = "float32"
    return target


def _projections(target: Checkpoint, which: str) -> list[tuple[str, torch.Tensor]]:
    """Module and weight of the attention's projections, `which` of q, k, v and o."""
    pattern = re.compile(rf"(.*\.self_attn\.[{which}]_proj)\.weight")
    return [(match[1], weight) for key, weight in target.tensors.items() if (match := pattern.fullmatch(key))]


def _spread(size: int) -> torch.Tensor:
    """Where the dimensions of a head go in one twice as wide, so that each keeps its rotary frequency, [size].

    A pair of dimensions `i` and `i + size / 2` turns by `theta ** (-2 i / size)`.
    """
    half = torch.arange(size // 2) * 2
    return torch.cat([half, half + size])


def _rename(target: Checkpoint, architecture: str, model_type: str) -> None:
    for name in ("attention_bias", "mlp_bias"):
        target.config.pop(name, None)
    target.config |= {"architectures": [architecture], "model_type": model_type}
