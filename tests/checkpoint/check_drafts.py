"""Drafts and targets of a few numbers, of every format, written without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from eagletrace.checkpoint.engines.parameters import build
from eagletrace.checkpoint.engines.rules import RULES
from eagletrace.checkpoint.write import write_safetensors

Config = dict[str, Any]
Tensors = dict[str, npt.NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]

HIDDEN, INNER, VOCAB, DRAFT_VOCAB, LAYERS = 32, 64, 512, 384, 12

SIZES: Config = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "vocab_size": VOCAB, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
}  # fmt: skip
LLAMA: Config = {
    **SIZES, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
    "draft_vocab_size": DRAFT_VOCAB, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MLA: Config = {
    **LLAMA, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "rope_scaling": {
        "type": "yarn", "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 256, "mscale": 1.0,
        "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
    },
}  # fmt: skip
EAGLE: Config = {
    **SIZES, "architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "num_hidden_layers": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN_EAGLE: Config = {**EAGLE, "architectures": ["Qwen2ForCausalLMEagle"], "model_type": "qwen2"}
TARGET: Config = {
    **SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": LAYERS,
    "tie_word_embeddings": False,
}  # fmt: skip


def shapes(config: Config, layer: str = "midlayer") -> Shapes:
    """The keys of a complete checkpoint, in the names that trainers write, without embeddings."""
    found: Shapes = {}
    for parameter in build(config, RULES[config["architectures"][0]][-1]).values():
        for part in parameter.parts:
            name = parameter.name.removeprefix("model.").replace("layers.0.", f"{layer}.").replace("midlayer", layer)
            if part.name:
                head, _, tail = name.rpartition(".")
                name = f"{head.rpartition('.')[0]}.{part.name}.{tail}"
            found[name] = part.shape
    del found["embed_tokens.weight"]
    if config["architectures"][0].endswith("Eagle"):
        del found["lm_head.weight"]
    elif config.get("draft_vocab_size") not in (None, VOCAB):
        found["d2t"] = (int(config["draft_vocab_size"]),)
        found["t2d"] = (VOCAB,)
    return found


def tensors(config: Config, layer: str = "midlayer", seed: int = 0) -> Tensors:
    """A complete checkpoint with random values, norms near one, and a right `d2t` and `t2d`."""
    random = np.random.default_rng(seed)
    filled: Tensors = {}
    for key, shape in shapes(config, layer).items():
        values = random.standard_normal(shape) * 0.1 + (1 if "norm" in key else 0)
        filled[key] = values.astype(ml_dtypes.bfloat16)
    if "lm_head.weight" in filled:
        rows, width = filled["lm_head.weight"].shape
        filled["lm_head.weight"] = structured((rows, width), seed + 20)
    if "d2t" in filled:
        rows = len(filled["d2t"])
        kept = np.sort(random.permutation(VOCAB)[:rows])
        filled["d2t"] = kept - np.arange(rows)
        filled["t2d"] = np.isin(np.arange(VOCAB), kept)
    return filled


def target_tensors(vocabulary: int = VOCAB, hidden: int = HIDDEN, seed: int = 1) -> Tensors:
    """A target's embedding and head, with the structure that training gives."""
    return {
        "model.embed_tokens.weight": structured((vocabulary, hidden), seed),
        "lm_head.weight": structured((vocabulary, hidden), seed + 1),
    }


def structured(shape: tuple[int, int], seed: int) -> npt.NDArray[Any]:
    """Random rows around a few directions, as embeddings have after training."""
    random = np.random.default_rng(seed)
    directions = random.standard_normal((3, shape[1]))
    values = random.standard_normal((shape[0], 3)) @ directions + 0.5 * random.standard_normal(shape)
    return (0.05 * values).astype(ml_dtypes.bfloat16)


def write(folder: Path, config: Config, values: Tensors) -> Path:
    """A model's folder with one file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", values)
    return folder


def write_sharded(folder: Path, config: Config, values: Tensors, shards: int = 3) -> Path:
    """A model's folder with shards and their index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    places: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        keys = list(values)[number::shards]
        places |= dict.fromkeys(keys, name)
        write_safetensors(folder / name, {key: values[key] for key in keys})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder
