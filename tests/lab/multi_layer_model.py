"""A tiny Step-3.5 with its layers of multi-token prediction, for SGLang's multi-layer EAGLE worker on a CPU.

Nothing is trained. The target's layers add nothing to the residual but a little attention in the first, so that it says
mostly what follows the last token; each layer of multi-token prediction knows that rule, the later the more blurred.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from eagletrace.lab.pair import shipped_pair

HIDDEN, HEADS, HEAD, INNER = 64, 2, 32, 64
LAYERS = 45
"""SGLang's class builds a layer of multi-token prediction as layer 45, and its cache has a place for layer 0 alone
(step3p5_mtp.py, 0.5.23)."""
PREDICTIONS = 3
BLUR = 0.03
ATTENTION = 0.25

Tensors = dict[str, torch.Tensor]


def write(folder: Path, *, predictions: int = PREDICTIONS) -> Path:
    """The model's folder, with `predictions` layers behind the target's; the tokenizer is that of the lab's Llama."""
    source = shipped_pair("llama") / "target"
    vocabulary = int(json.loads((source / "config.json").read_text())["vocab_size"])
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config(vocabulary, predictions)))
    save_file(tensors(vocabulary, predictions), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tensors(vocabulary: int, predictions: int) -> Tensors:
    """Keys as Step-3.5-Flash has them; norms are those of Gemma, whose neutral weight is zero."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def block(prefix: str, attention: float) -> Tensors:
        rows = HEADS * HEAD
        made = {f"self_attn.{part}_proj": random(rows, HIDDEN) / 8 for part in "qkv"}
        made |= {"self_attn.o_proj": random(HIDDEN, rows) / 8 * attention}
        made |= {f"mlp.{part}_proj": random(INNER, HIDDEN) / 8 for part in ("gate", "up")}
        made |= {"mlp.down_proj": torch.zeros(HIDDEN, INNER)}
        made |= {f"self_attn.{part}_norm": torch.zeros(HEAD) for part in "qk"}
        made |= {f"{part}_layernorm": torch.zeros(HIDDEN) for part in ("input", "post_attention")}
        return {f"{prefix}{name}.weight": tensor.contiguous() for name, tensor in made.items()}

    head = random(vocabulary, HIDDEN)
    made = {"model.embed_tokens.weight": random(vocabulary, HIDDEN), "lm_head.weight": head}
    made["model.norm.weight"] = torch.zeros(HIDDEN)
    for layer in range(LAYERS):
        made |= block(f"model.layers.{layer}.", ATTENTION if layer == 0 else 0.0)
    for step in range(predictions):
        prefix = f"model.layers.{LAYERS + step}."
        made |= block(f"{prefix}transformer.", 0.0)
        of_the_embedding = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1)
        made |= {
            f"{prefix}eh_proj.weight": of_the_embedding + random(HIDDEN, 2 * HIDDEN) * BLUR * step,
            f"{prefix}enorm.weight": torch.zeros(HIDDEN), f"{prefix}hnorm.weight": torch.zeros(HIDDEN),
            f"{prefix}transformer.shared_head.norm.weight": torch.zeros(HIDDEN),
            f"{prefix}transformer.shared_head.output.weight": head.clone(),
        }  # fmt: skip
    return made


def config(vocabulary: int, predictions: int) -> dict[str, Any]:
    """Without experts and sliding windows."""
    count, heads = LAYERS + predictions, {"num_attention_heads": HEADS, "num_attention_groups": HEADS}
    return {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "vocab_size": vocabulary,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "head_dim": HEAD, **heads, "attention_other_setting": heads,
        "num_hidden_layers": LAYERS, "num_nextn_predict_layers": predictions, "rms_norm_eps": 1e-5,
        "layer_types": ["full_attention"] * count, "yarn_only_types": [], "sliding_window": 512,
        "rope_theta": [10000.0] * count, "partial_rotary_factors": [1.0] * count, "rope_scaling": None,
        "max_position_embeddings": 2048, "max_seq_len": 2048, "use_head_wise_attn_gate": False,
        "moe_layers_enum": "1000", "moe_num_experts": 2, "moe_top_k": 1, "moe_intermediate_size": INNER,
        "share_expert_dims": INNER, "swiglu_limits": [0.0] * count, "swiglu_limits_shared": [0.0] * count,
        "need_fp32_gate": False, "moe_router_scaling_factor": 1.0, "use_moe_router_bias": True,
        "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
