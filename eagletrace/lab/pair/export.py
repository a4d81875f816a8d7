"""Writes a pair as the files that SGLang and transformers (4 and 5) load."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from eagletrace.lab.pair.draft import rotary_config
from eagletrace.lab.pair.draft_training import DraftTask
from eagletrace.lab.pair.evaluate import FEATURE_CLASS, WRAPPED
from eagletrace.lab.pair.kinds import AnyDraft
from eagletrace.lab.pair.nextn import NextNDraft, nextn_config, nextn_tensors
from eagletrace.lab.pair.settings import KimiSettings, PairSettings
from eagletrace.lab.pair.standalone import (
    STANDALONE_CLASS,
    StandaloneDraft,
    standalone_settings,
    standalone_tensors,
)
from eagletrace.lab.pair.target import TargetModel, text_config
from eagletrace.lab.pair.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID, save_tokenizer

VISION_WIDTH = 32


def save_target(model: TargetModel, tokenizer: Tokenizer, folder: Path, settings: PairSettings) -> None:
    """``config.json``, ``model.safetensors`` in bfloat16, and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(settings, KimiSettings):
        save_tensors({WRAPPED + name: as_bfloat16(value) for name, value in checkpoint_tensors(model).items()}, folder)
        config = kimi_config(settings)
    else:
        save_tensors({name: as_bfloat16(value) for name, value in model.state_dict().items()}, folder)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": settings.layers,
            "intermediate_size": settings.target_intermediate_size,
            **shared_config(settings),
        }
    write_json(folder / "config.json", config)
    save_tokenizer(tokenizer, folder, settings.max_positions)


def checkpoint_tensors(model: TargetModel) -> dict[str, Tensor]:
    """The tensors under the names that checkpoints have: transformers takes its stacked experts apart when it saves."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def kimi_config(settings: KimiSettings) -> dict[str, object]:
    """Kimi-K2.5's ``config.json``. The vision tower is as small as it gets, and the file has no weights for it.

    With ``language_model_only`` SGLang (from 0.5.16 on) takes text alone, and asks for no image processor.
    """
    width = VISION_WIDTH
    vision = {
        "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1, "num_attention_heads": 2,
        "patch_size": 14, "init_pos_emb_height": 8, "init_pos_emb_width": 8, "init_pos_emb_time": 4,
        "vt_hidden_size": width, "mm_hidden_size": width, "text_hidden_size": settings.hidden_size,
    }  # fmt: skip
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "media_placeholder_token_id": UNKNOWN_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": BOS_ID,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "language_model_only": True,
        "text_config": text_config(settings),
        "vision_config": vision,
    }


def save_draft(
    draft: AnyDraft, task: DraftTask, folder: Path, settings: PairSettings, frozen_embeddings: Tensor | None = None
) -> None:
    """One draft in the format of SGLang's ``LlamaForCausalLMEagle3``, ``Eagle3DeepseekV2ForCausalLM``,
    ``LlamaForCausalLMEagle``, ``DeepseekV3ForCausalLMNextN``, or as a model of its own.

    ``d2t`` (int64, offsets: target id minus draft id) and ``t2d`` (bool) are written where the draft vocabulary is
    smaller than the target's; the layer ids where they are not the default (see `PairSettings.layer_ids`); the layer
    as ``midlayer.*``, a latent or EAGLE-1 one, and one of several, as ``layers.0.*``, as the published ones are; the
    number of aux states where it is not three; the norm flags where the draft was trained with them;
    ``frozen_embeddings`` [vocabulary, hidden] as its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = whole_model(draft, settings)
    if whole is not None:
        tensors, config = whole
        save_tensors({name: as_bfloat16(value) for name, value in tensors.items()}, folder)
        write_json(folder / "config.json", config)
        return
    tensors = {name: as_bfloat16(value) for name, value in draft.state_dict().items()}
    if task.recipe.latent or task.recipe.feature or task.recipe.decoder_layers > 1:
        tensors = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    if frozen_embeddings is not None:
        tensors["embed_tokens.weight"] = as_bfloat16(frozen_embeddings)
    kept = task.kept_tokens
    if kept.numel() < settings.vocab_size:
        tensors["d2t"] = kept - torch.arange(kept.numel())
        tensors["t2d"] = torch.zeros(settings.vocab_size, dtype=torch.bool).index_fill(0, kept, True)
    save_tensors(tensors, folder)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": task.recipe.decoder_layers,
        "intermediate_size": settings.draft_intermediate_size,
        "draft_vocab_size": kept.numel(),
        **shared_config(settings),
    }
    if task.recipe.latent and isinstance(settings, KimiSettings):
        config["architectures"] = ["Eagle3DeepseekV2ForCausalLM"]
        config |= latent_config(settings)
        del config["head_dim"], config["mlp_bias"]
    if task.recipe.feature:
        config["architectures"] = [FEATURE_CLASS]
        del config["draft_vocab_size"]
    elif task.layers != settings.default_layers:
        # As inputs of layers, where training libraries write them and SGLang does not look,
        config["eagle_aux_hidden_state_layer_ids"] = list(task.layers)
        # and as SGLang reads them for this target.
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": settings.layer_ids(task.layers),
            "use_aux_hidden_state": True,
        }
    if task.recipe.four_states:
        config["num_aux_hidden_states"] = len(task.layers)
    for flag in ("norm_before_fc", "norm_output", "fc_norm"):
        if getattr(task.recipe, flag):
            config[flag] = True
    write_json(folder / "config.json", config)


def whole_model(draft: AnyDraft, settings: PairSettings) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and ``config.json`` of a draft that is made like a target: of its layers, or of one more of them; None
    for the others."""
    if isinstance(draft, NextNDraft) and isinstance(settings, KimiSettings):
        return nextn_tensors(draft), nextn_config(settings)
    if isinstance(draft, StandaloneDraft):
        settings = standalone_settings(settings)
        sizes = {"num_hidden_layers": len(draft.layers), "intermediate_size": settings.draft_intermediate_size}
        return standalone_tensors(draft), {"architectures": [STANDALONE_CLASS], **sizes, **shared_config(settings)}
    return None


def latent_config(settings: KimiSettings) -> dict[str, object]:
    """What a draft with latent attention has besides."""
    return {"model_type": "deepseek_v3", **settings.latent_attention, **rotary_config(settings)}


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
