"""How long `eagletrace check` takes for a draft and a target of Kimi-K2.5's size, and how much memory.

    python -m benchmarks.check_speed [--runs 5]

Writes `benchmarks/out/check.json` and prints it. The target has as many shards and tensors as the model and its sizes;
its files are sparse, so that they take no disk. The draft (hidden 7168, draft vocabulary 32,000) holds real values.
Runs are pinned to two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.diagnose_speed import absolute, measure
from benchmarks.statistics import publish
from eagletrace.checkpoint.dtypes import BITS, STORED
from eagletrace.checkpoint.write import write_safetensors

SECONDS, MIB = 3.0, 500.0
SHARDS, LAYERS, EXPERTS, DENSE_LAYERS = 64, 61, 384, 1
HIDDEN, VOCAB, DRAFT_VOCAB, EXPERT_INNER, INNER = 7168, 163_840, 32_000, 2048, 18_432
ENGINE = "sglang==0.5.23"
Shape = tuple[str, tuple[int, ...]]

TARGET: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB, "max_position_embeddings": 262_144, "rope_theta": 50_000.0, "n_routed_experts": EXPERTS,
    },
}  # fmt: skip
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN, "head_dim": 128,
    "num_attention_heads": 56, "num_key_value_heads": 8, "intermediate_size": INNER, "num_hidden_layers": 1,
    "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "tie_word_embeddings": False, "rope_theta": 50_000.0,
    "max_position_embeddings": 262_144,
}  # fmt: skip


def target_tensors() -> dict[str, Shape]:
    """Names, types and shapes of a model with packed 4-bit experts, their scales, and latent attention."""
    prefix = "language_model.model"
    tensors: dict[str, Shape] = {
        f"{prefix}.embed_tokens.weight": ("bfloat16", (VOCAB, HIDDEN)),
        "language_model.lm_head.weight": ("bfloat16", (VOCAB, HIDDEN)),
        f"{prefix}.norm.weight": ("bfloat16", (HIDDEN,)),
    }
    for layer in range(LAYERS):
        at = f"{prefix}.layers.{layer}"
        tensors |= {
            f"{at}.self_attn.q_a_proj.weight": ("bfloat16", (1536, HIDDEN)),
            f"{at}.self_attn.kv_b_proj.weight": ("bfloat16", (16_384, 512)),
            f"{at}.input_layernorm.weight": ("bfloat16", (HIDDEN,)),
        }
        for expert in range(EXPERTS if layer >= DENSE_LAYERS else 0):
            for part, rows, columns in (("gate", EXPERT_INNER, HIDDEN), ("up", EXPERT_INNER, HIDDEN),
                                        ("down", HIDDEN, EXPERT_INNER)):  # fmt: skip
                name = f"{at}.mlp.experts.{expert}.{part}_proj"
                tensors[f"{name}.weight_packed"] = ("int32", (rows, columns // 8))
    return tensors


def write_sparse(file: Path, tensors: dict[str, Shape]) -> None:
    """A safetensors file with a real header and holes for data."""
    header: dict[str, Any] = {}
    end = 0
    for key, (dtype, shape) in tensors.items():
        begin, end = end, end + int(np.prod(shape)) * BITS[dtype] // 8
        header[key] = {"dtype": STORED[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)


def make_target(folder: Path) -> tuple[int, int]:
    """Write the target; returns its tensors and bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TARGET))
    tensors = target_tensors()
    keys, places = list(tensors), dict[str, str]()
    for number in range(SHARDS):
        name = f"model-{number + 1:05d}-of-{SHARDS:06d}.safetensors"
        mine = keys[len(keys) * number // SHARDS : len(keys) * (number + 1) // SHARDS]
        write_sparse(folder / name, {key: tensors[key] for key in mine})
        places |= dict.fromkeys(mine, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return len(tensors), sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def make_draft(folder: Path) -> None:
    """Write the draft, with random values in every tensor."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DRAFT))
    random = np.random.default_rng(0)
    block = (0.02 * random.standard_normal(1 << 22)).astype(ml_dtypes.bfloat16)
    layer = "midlayer"
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        f"{layer}.self_attn.q_proj.weight": (7168, 2 * HIDDEN), f"{layer}.self_attn.k_proj.weight": (1024, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (1024, 2 * HIDDEN), f"{layer}.self_attn.o_proj.weight": (HIDDEN, 7168),
        f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN), f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER), f"{layer}.hidden_norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,), f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
    }  # fmt: skip
    kept = np.sort(random.permutation(VOCAB)[:DRAFT_VOCAB])
    tensors: dict[str, Any] = {key: np.resize(block, shape) for key, shape in shapes.items()}
    tensors |= {"d2t": kept - np.arange(DRAFT_VOCAB), "t2d": np.isin(np.arange(VOCAB), kept)}
    write_safetensors(folder / "model.safetensors", tensors)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the models are written (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        count, size = make_target(folder / "target")
        make_draft(folder / "draft")
        command = ("check", str(folder / "draft"), "--target", str(folder / "target"), "--engine", ENGINE)
        samples = [measure(*command) for _ in range(options.runs)]
    what = f"check, target of {count:,} tensors in {SHARDS} shards, {size / 1e9:,.0f} GB"
    figures = [
        absolute(f"{what}: time", "s", [seconds for seconds, _ in samples], SECONDS),
        absolute(f"{what}: memory", "MiB", [mib for _, mib in samples], MIB),
    ]
    print(publish("check", figures).read_text())


if __name__ == "__main__":
    main()
