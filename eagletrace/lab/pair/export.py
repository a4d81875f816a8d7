"""Writes a pair as the files that SGLang and transformers (4 and 5) load."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from eagletrace.lab.pair.draft import Draft
from eagletrace.lab.pair.draft_training import DraftTask
from eagletrace.lab.pair.settings import PairSettings
from eagletrace.lab.pair.tokenizer import BOS_ID, EOS_ID, save_tokenizer


def save_target(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path, settings: PairSettings) -> None:
    """``config.json``, ``model.safetensors`` in bfloat16, and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: as_bfloat16(value) for name, value in model.state_dict().items()}
    save_tensors(tensors, folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": settings.layers,
        "intermediate_size": settings.target_intermediate_size,
        **shared_config(settings),
    }
    write_json(folder / "config.json", config)
    save_tokenizer(tokenizer, folder, settings.max_positions)


def save_draft(
    draft: Draft, task: DraftTask, folder: Path, settings: PairSettings, frozen_embeddings: Tensor | None = None
) -> None:
    """One draft in the format of SGLang's ``LlamaForCausalLMEagle3``.

    ``d2t`` (int64, offsets: target id minus draft id) and ``t2d`` (bool) are written where the draft vocabulary is
    smaller than the target's; the layer ids where they are not the default (id ``X`` is the input of layer ``X+1``);
    the norm flags where the draft was trained with them; ``frozen_embeddings`` [vocabulary, hidden] as its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: as_bfloat16(value) for name, value in draft.state_dict().items()}
    if frozen_embeddings is not None:
        tensors["embed_tokens.weight"] = as_bfloat16(frozen_embeddings)
    kept = task.kept_tokens
    if kept.numel() < settings.vocab_size:
        tensors["d2t"] = kept - torch.arange(kept.numel())
        tensors["t2d"] = torch.zeros(settings.vocab_size, dtype=torch.bool).index_fill(0, kept, True)
    save_tensors(tensors, folder)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": settings.draft_intermediate_size,
        "draft_vocab_size": kept.numel(),
        **shared_config(settings),
    }
    if task.layers != settings.default_layers:
        # As inputs of layers, where training libraries write them and SGLang does not look,
        config["eagle_aux_hidden_state_layer_ids"] = list(task.layers)
        # and as outputs of layers, as SGLang reads them.
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in task.layers],
            "use_aux_hidden_state": True,
        }
    for flag in ("norm_before_fc", "norm_output"):
        if getattr(task.recipe, flag):
            config[flag] = True
    write_json(folder / "config.json", config)


def shared_config(settings: PairSettings) -> dict[str, object]:
    """What target and draft have in common, in the spelling that transformers 4 and 5 both read."""
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": settings.hidden_size,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.key_value_heads,
        "head_dim": settings.head_dim,
        "vocab_size": settings.vocab_size,
        "max_position_embeddings": settings.max_positions,
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "bfloat16",
    }


def save_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """``model.safetensors``, readable by all (safetensors gives it to the owner alone)."""
    file = folder / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)


def as_bfloat16(value: Tensor) -> Tensor:
    """What the files hold."""
    return value.detach().bfloat16().contiguous()


def write_json(path: Path, value: object) -> None:
    """Writes readable JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n")
