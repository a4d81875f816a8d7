"""Accept length of a draft without an engine: what greedy chains of a given length would be accepted.

All anchors of a text are drafted at once (see ``draft.py``); the engine's rounds are then walked through them.
"""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DeepseekV3ForCausalLM, LlamaForCausalLM

from eagletrace.errors import EagletraceError
from eagletrace.lab.pair.draft import AnchorCache, Draft, FeatureDraft
from eagletrace.lab.pair.kinds import AnyDraft
from eagletrace.lab.pair.nextn import NEXTN_CLASS, load_nextn
from eagletrace.lab.pair.rollout import states_of
from eagletrace.lab.pair.settings import KimiSettings, LatentSizes, PairSettings
from eagletrace.lab.pair.standalone import STANDALONE_CLASS, load_standalone
from eagletrace.lab.pair.target import TargetModel

WRAPPED = "language_model."
"""Prefix of the language model's tensors in a Kimi-K2.5."""
FEATURE_CLASS = "LlamaForCausalLMEagle"
"""SGLang's class of EAGLE-1 and EAGLE-2 drafts."""


@dataclass(frozen=True)
class LoadedDraft:
    """A draft folder as it would be served."""

    module: AnyDraft
    token_of: Tensor
    """Draft-vocabulary id -> target id."""
    layers: tuple[int, ...]
    """Layers of the target whose inputs are captured, as the engine reads the config; none where it captures none."""


@dataclass(frozen=True)
class Acceptance:
    """Rounds by number of correct drafts (index 0 to the chain's length)."""

    histogram: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """How many verify rounds the texts took."""
        return sum(self.histogram)

    @property
    def accept_length(self) -> float:
        """1 + accepted drafts / rounds."""
        return 1 + sum(count * rounds for count, rounds in enumerate(self.histogram)) / self.rounds


def load_target(folder: Path) -> TargetModel:
    """The target's language model in float32, weights as stored, as transformers loads it."""
    config = json.loads((folder / "config.json").read_text())
    if "text_config" not in config:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as alone:
        tensors = load_file(folder / "model.safetensors")
        text = {name.removeprefix(WRAPPED): value for name, value in tensors.items() if name.startswith(WRAPPED)}
        save_file(text, Path(alone) / "model.safetensors", metadata={"format": "pt"})
        (Path(alone) / "config.json").write_text(json.dumps(config["text_config"]))
        return DeepseekV3ForCausalLM.from_pretrained(alone, dtype=torch.float32).eval().requires_grad_(False)


def load_draft(
    folder: Path, target_layers: int, *, kimi: bool = False, target_head: Tensor | None = None
) -> LoadedDraft:
    """Reads a draft folder; layers as SGLang would choose them for a Llama target, or 0.5.23 for a Kimi-K2.5.

    A draft of EAGLE-1 or multi-token prediction needs ``target_head`` [vocabulary, H]; EagletraceError without it.
    """
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    latent = "kv_lora_rank" in config
    settings = (_latent_settings if latent else PairSettings)(
        layers=target_layers,
        hidden_size=config["hidden_size"],
        draft_intermediate_size=config["intermediate_size"],
        heads=config["num_attention_heads"],
        key_value_heads=config["num_key_value_heads"],
        vocab_size=config["vocab_size"],
        norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        **({"config": config} if latent else {}),
    )
    offsets = tensors.pop("d2t", torch.zeros(config["vocab_size"], dtype=torch.int64))
    tensors.pop("t2d", None)
    layer = {name.replace("layers.0.", "midlayer."): value.float() for name, value in tensors.items()}
    named = config["architectures"][0]
    if named == STANDALONE_CLASS:
        return _without_aux(load_standalone(tensors, settings, config["num_hidden_layers"]), settings)
    if named in (FEATURE_CLASS, NEXTN_CLASS):
        if target_head is None:
            raise EagletraceError(f"{folder} is a {named}, which drafts with the target's head: give it")
        if named == NEXTN_CLASS:
            return _without_aux(load_nextn(tensors, settings, target_head), settings)
        feature = FeatureDraft(settings, target_head, "fc.bias" in tensors)
        feature.load_state_dict(layer)
        return _without_aux(feature, settings)
    draft = Draft(
        settings,
        config["draft_vocab_size"],
        "embed_tokens.weight" in tensors,
        config.get("norm_before_fc", False),
        config.get("norm_output", False),
        latent,
        fc_norm=config.get("fc_norm", False),
        states=config.get("num_aux_hidden_states", 3),
        decoder_layers=config["num_hidden_layers"],
    )
    draft.load_state_dict(layer)
    ids = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    shift = 0 if kimi and ids and ids[0] != 1 else 1
    layers = tuple(layer + shift for layer in ids) if ids else settings.default_layers
    return LoadedDraft(draft.eval().requires_grad_(False), offsets + torch.arange(offsets.numel()), layers)


def _without_aux(module: AnyDraft, settings: PairSettings) -> LoadedDraft:
    """A draft of the target's vocabulary, for which no layers are captured."""
    return LoadedDraft(module.eval().requires_grad_(False), torch.arange(settings.vocab_size), ())


def _latent_settings(*, config: dict[str, Any], **sizes: Any) -> KimiSettings:
    """The settings of a latent draft, from its configuration."""
    scaling = config["rope_scaling"]
    return KimiSettings(
        latent=LatentSizes(
            q_rank=config["q_lora_rank"], kv_rank=config["kv_lora_rank"], nope=config["qk_nope_head_dim"],
            rope=config["qk_rope_head_dim"], value=config["v_head_dim"],
        ),
        max_positions=config["max_position_embeddings"], yarn_factor=scaling["factor"],
        yarn_original_positions=scaling["original_max_position_embeddings"], **_expert_sizes(config), **sizes,
    )  # fmt: skip


def _expert_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of experts, from the configuration of a draft that has some."""
    names = {
        "experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
        "expert_intermediate_size": "moe_intermediate_size", "routed_scaling": "routed_scaling_factor",
    }  # fmt: skip
    return {name: config[key] for name, key in names.items() if key in config}


@dataclass(frozen=True)
class Wiring:
    """How a draft is served; the defaults are the healthy way."""

    steps: int = 3
    """Length of the chain."""
    layers: tuple[int, ...] | None = None
    """Layers captured instead of the draft's."""
    skip_fc: bool = False
    """Feed the target's normed output instead of the fused states (no aux states captured)."""
    target_embeddings: bool = False
    """Replace trained embeddings by the target's, as the engine does."""
    target_head: bool = False
    """Replace the draft's head by the target's."""
    ignore_norms: bool = False
    """Take no notice of the norm flags that the draft was trained with."""


@torch.no_grad()
def simulate(
    target: TargetModel, draft: LoadedDraft, texts: Tensor, prompt_length: int, wiring: Wiring = Wiring()
) -> Acceptance:
    """Accept counts on greedy texts [batch, time] whose first ``prompt_length`` tokens are given."""
    inputs, final = states_of(target, texts)
    module, anchors = draft.module, texts.shape[1] - 1 - wiring.steps
    if wiring.ignore_norms and isinstance(module, Draft):
        module = copy.deepcopy(module)
        module.input_norm, module.fc_norm, module.norm_output = None, None, False
    layers = wiring.layers or draft.layers
    states = torch.cat([inputs[layer] for layer in layers], -1) if layers else final
    hidden = final[:, :anchors] if wiring.skip_fc else module.fuse(states[:, :anchors])
    own = None if wiring.target_embeddings else module.embed_tokens
    embed = target.model.embed_tokens.weight if own is None else own.weight
    tokens, cache = texts[:, 1 : 1 + anchors], AnchorCache()
    right = torch.ones(texts.shape[0], anchors, dtype=torch.bool)
    correct = torch.zeros(texts.shape[0], anchors, dtype=torch.int64)
    for depth in range(wiring.steps):
        hidden, logits = module.step(F.embedding(tokens, embed), hidden, cache)
        if wiring.target_head and isinstance(module, Draft):
            logits = F.linear(module.norm(hidden), target.lm_head.weight)
        tokens = draft.token_of[logits.argmax(-1)]
        right = right & (tokens == texts[:, 2 + depth : 2 + depth + anchors])
        correct += right
    return walk_rounds(correct, prompt_length, wiring.steps)


def walk_rounds(correct: Tensor, prompt_length: int, steps: int) -> Acceptance:
    """Turns correct drafts per anchor [batch, anchors] into the rounds that an engine would run.

    The first round starts at the last prompt token: the token after the prompt is the prefill's.
    """
    histogram = [0] * (steps + 1)
    rows: list[list[int]] = correct.tolist()
    for row in rows:
        anchor = prompt_length - 1
        while anchor < len(row):
            histogram[row[anchor]] += 1
            anchor += row[anchor] + 1
    return Acceptance(tuple(histogram))
