"""Accept length of a draft without an engine: what greedy chains of a given length would be accepted.

All anchors of a text are drafted at once (see ``draft.py``); the engine's rounds are then walked through them.
"""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from eagletrace.lab.pair.draft import AnchorCache, Draft
from eagletrace.lab.pair.rollout import states_of
from eagletrace.lab.pair.settings import PairSettings


@dataclass(frozen=True)
class LoadedDraft:
    """A draft folder as it would be served."""

    module: Draft
    token_of: Tensor
    """Draft-vocabulary id -> target id."""
    layers: tuple[int, ...]
    """Layers of the target whose inputs are captured, as the engine reads the config."""


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


def load_target(folder: Path) -> LlamaForCausalLM:
    """The target in float32, weights as stored."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)


def load_draft(folder: Path, target_layers: int) -> LoadedDraft:
    """Reads a draft folder; layers as SGLang 0.5.9 and 0.5.23 would choose them for a Llama target."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    settings = PairSettings(
        layers=target_layers,
        hidden_size=config["hidden_size"],
        draft_intermediate_size=config["intermediate_size"],
        heads=config["num_attention_heads"],
        key_value_heads=config["num_key_value_heads"],
        vocab_size=config["vocab_size"],
        norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
    )
    offsets = tensors.pop("d2t", torch.zeros(config["vocab_size"], dtype=torch.int64))
    tensors.pop("t2d", None)
    draft = Draft(
        settings,
        config["draft_vocab_size"],
        "embed_tokens.weight" in tensors,
        config.get("norm_before_fc", False),
        config.get("norm_output", False),
    )
    draft.load_state_dict({name: value.float() for name, value in tensors.items()})
    ids = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    layers = tuple(layer + 1 for layer in ids) if ids else settings.default_layers
    return LoadedDraft(draft.eval().requires_grad_(False), offsets + torch.arange(offsets.numel()), layers)


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
    target: LlamaForCausalLM, draft: LoadedDraft, texts: Tensor, prompt_length: int, wiring: Wiring = Wiring()
) -> Acceptance:
    """Accept counts on greedy texts [batch, time] whose first ``prompt_length`` tokens are given."""
    inputs, final = states_of(target, texts)
    module, anchors = draft.module, texts.shape[1] - 1 - wiring.steps
    if wiring.ignore_norms:
        module = copy.deepcopy(module)
        module.input_norm, module.norm_output = None, False
    states = torch.cat([inputs[layer] for layer in wiring.layers or draft.layers], -1)
    hidden = final[:, :anchors] if wiring.skip_fc else module.fuse(states[:, :anchors])
    own = None if wiring.target_embeddings else module.embed_tokens
    embed = target.model.embed_tokens.weight if own is None else own.weight
    tokens, cache = texts[:, 1 : 1 + anchors], AnchorCache()
    right = torch.ones(texts.shape[0], anchors, dtype=torch.bool)
    correct = torch.zeros(texts.shape[0], anchors, dtype=torch.int64)
    for depth in range(wiring.steps):
        hidden, logits = module.step(F.embedding(tokens, embed), hidden, cache)
        if wiring.target_head:
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
