"""Pairs of a few hundred numbers, with everything that the catalogue changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eagletrace.lab.pair.variants import KIMI_RECIPES, RECIPES, Recipe

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

HIDDEN, VOCAB, DRAFT_VOCAB, LAYERS = 8, 192, 160, 12
LAYER_KEYS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj", "hidden_norm", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
LATENT_KEYS = (
    "self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj",
    "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "hidden_norm", "input_layernorm",
    "post_attention_layernorm",
)  # fmt: skip
TARGET_KEYS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it was asked for."""
    if not os.environ.get("EAGLETRACE_SOAK"):
        for item in items:
            if item.get_closest_marker("soak") is not None:
                item.add_marker(pytest.mark.skip(reason="takes minutes: make soak"))


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_draft(folder: Path, recipe: Recipe, outputs: int = 1) -> None:
    """A draft of a recipe; layer ids for the engine are those of the inputs less `outputs`."""
    if recipe.feature:
        write_feature_draft(folder, recipe)
        return
    if recipe.nextn or recipe.standalone_layers:
        write_whole_model(folder, recipe)
        return
    size = VOCAB if recipe.full_vocabulary else DRAFT_VOCAB
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "draft_vocab_size": size, "tie_word_embeddings": False, "num_hidden_layers": recipe.decoder_layers,
        "rope_theta": recipe.rope_theta or 10000.0,
    }  # fmt: skip
    layer, keys = ("layers.0", LATENT_KEYS) if recipe.latent else ("midlayer", LAYER_KEYS)
    tensors = {f"{layer}.{key}.weight": torch.randn(HIDDEN, HIDDEN) for key in keys}
    tensors |= {"fc.weight": torch.randn(HIDDEN, 3 * HIDDEN), "norm.weight": torch.ones(HIDDEN)}
    tensors |= {"lm_head.weight": torch.randn(size, HIDDEN)}
    if not recipe.full_vocabulary:
        kept = torch.arange(VOCAB)[VOCAB - DRAFT_VOCAB :]
        tensors["d2t"] = kept - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = torch.isin(torch.arange(VOCAB), kept)
    if recipe.other_layers:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [n - outputs for n in (4, 8, 10)]}
        config["eagle_aux_hidden_state_layer_ids"] = [4, 8, 10]  # inputs, as training libraries write them
    if recipe.early_layers:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    if recipe.own_embeddings or recipe.other_target:
        tensors["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN)
    if recipe.norm_before_fc:
        config["norm_before_fc"] = True
        tensors["input_norm.weight"] = torch.rand(3 * HIDDEN)
    if recipe.norm_output:
        config["norm_output"] = True
    if recipe.four_states:
        config["num_aux_hidden_states"] = 4
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 4, 7, 9]}
        tensors["fc.weight"] = torch.randn(HIDDEN, 4 * HIDDEN)
    if recipe.fc_norm:
        config["fc_norm"] = True
        tensors |= {f"fc_norm.{slot}.weight": torch.rand(HIDDEN) for slot in range(4)}
    for later in range(1, recipe.decoder_layers):
        tensors |= {f"layers.{later}.{key}.weight": torch.randn(HIDDEN, HIDDEN) for key in LAYER_KEYS}
    write_model(folder, config, tensors)


def write_feature_draft(folder: Path, recipe: Recipe) -> None:
    """An EAGLE-1 draft of a recipe."""
    config = {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
              "tie_word_embeddings": False, "num_hidden_layers": 1, "rope_theta": 10000.0}  # fmt: skip
    norms = ("hidden_norm", "input_layernorm")
    tensors = {f"layers.0.{key}.weight": torch.randn(HIDDEN, HIDDEN) for key in LAYER_KEYS if key not in norms}
    tensors["fc.weight"] = torch.randn(HIDDEN, 2 * HIDDEN)
    if recipe.fc_bias:
        tensors["fc.bias"] = torch.randn(HIDDEN)
    write_model(folder, config, tensors)


def write_whole_model(folder: Path, recipe: Recipe) -> None:
    """A layer of multi-token prediction, or a draft model of its own."""
    keys = (*LATENT_KEYS, "enorm", "hnorm", "eh_proj", "shared_head.norm") if recipe.nextn else TARGET_KEYS
    named, layers = (
        ("DeepseekV3ForCausalLMNextN", 1) if recipe.nextn else ("LlamaForCausalLM", recipe.standalone_layers)
    )
    tensors = {f"model.layers.{n}.{key}.weight": torch.randn(HIDDEN, HIDDEN) for n in range(layers) for key in keys}
    config = {"architectures": [named], "num_hidden_layers": layers, "num_nextn_predict_layers": int(recipe.nextn)}
    write_model(folder, config, tensors)


@pytest.fixture
def tiny_pair(tmp_path: Path) -> Path:
    """A pair folder with all variants; nothing can be served from it."""
    return write_pair(tmp_path / "pair", "llama")


@pytest.fixture
def tiny_pairs(tmp_path: Path, tiny_pair: Path) -> dict[str, Path]:
    """One of each kind."""
    return {"llama": tiny_pair, "kimi": write_pair(tmp_path / "kimi", "kimi")}


def write_pair(pair: Path, kind: str) -> Path:
    torch.manual_seed(0)
    target = {key: torch.randn(VOCAB, HIDDEN) for key in ("model.embed_tokens.weight", "lm_head.weight")}
    target["model.norm.weight"] = torch.rand(HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        target |= {f"{prefix}.{key}.weight": torch.randn(HIDDEN, HIDDEN) for key in TARGET_KEYS}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            target[f"{prefix}.{norm}.weight"] = torch.rand(HIDDEN)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "head_dim": 4,
        "num_attention_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0,
    }  # fmt: skip
    if kind == "kimi":
        target = {f"language_model.{key}": value for key, value in target.items()}
        config = {"text_config": config}
    write_model(pair / "target", config, target)
    (pair / "target" / "tokenizer.json").write_text("{}")
    for variant, recipe in (KIMI_RECIPES if kind == "kimi" else RECIPES).items():
        write_draft(pair / "drafts" / variant, recipe, outputs=0 if kind == "kimi" else 1)
    return pair
