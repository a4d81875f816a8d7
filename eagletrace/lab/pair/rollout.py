"""What the drafts learn from: texts that the target writes greedily, and its states on them."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from dataclasses import dataclass

import torch
from torch import Tensor

from eagletrace.lab.pair.settings import PairSettings
from eagletrace.lab.pair.target import TargetModel, sample_windows

BATCH = 64


@dataclass(frozen=True)
class Rollouts:
    """Texts and the target's states on them, for all texts at once."""

    tokens: Tensor
    """[texts, time] int64: a prompt from the corpus, then the target's greedy continuation."""
    layer_inputs: dict[int, Tensor]
    """Layer index -> input of that layer, [texts, time, hidden] float32."""
    final: Tensor
    """The target's normed output, [texts, time, hidden]; its head gives the logits."""


@torch.no_grad()
def write_texts(model: TargetModel, ids: Tensor, settings: PairSettings, generator: torch.Generator) -> Tensor:
    """Greedy continuations of random windows of ``ids``; [rollouts, rollout_length] int64."""
    lengths = settings.rollout_prompt_lengths
    texts: list[Tensor] = []
    for index in range(0, settings.rollouts, BATCH):
        prompt_length = lengths[(index // BATCH) % len(lengths)]
        count = min(BATCH, settings.rollouts - index)
        texts.append(
            continue_greedily(model, sample_windows(ids, count, prompt_length, generator), settings.rollout_length)
        )
    return torch.cat(texts)


@torch.no_grad()
def continue_greedily(model: TargetModel, prompts: Tensor, length: int) -> Tensor:
    """Extends prompts of one length [batch, prompt] to [batch, length]; the end token does not stop it."""
    tokens, cache, inputs = prompts, None, prompts
    while tokens.shape[1] < length:
        output = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, inputs = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, inputs], 1)
    return tokens


@torch.no_grad()
def observe(model: TargetModel, tokens: Tensor, layers: set[int]) -> Rollouts:
    """Runs the target over ``tokens`` and keeps the inputs of ``layers`` (``n`` means the last layer's output)."""
    kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    final: list[Tensor] = []
    for batch in tokens.split(BATCH // 2):
        inputs, normed = states_of(model, batch)
        for layer in layers:
            kept[layer].append(inputs[layer])
        final.append(normed)
    return Rollouts(tokens, {layer: torch.cat(parts) for layer, parts in kept.items()}, torch.cat(final))


@torch.no_grad()
def states_of(model: TargetModel, tokens: Tensor) -> tuple[list[Tensor], Tensor]:
    """Input of each layer and, last, the output of the last (before the norm); then the normed output."""
    inputs: list[Tensor] = []

    def keep(_module: object, arguments: tuple[Tensor, ...]) -> None:
        inputs.append(arguments[0])

    modules = [*model.model.layers, model.model.norm]
    handles = [module.register_forward_pre_hook(keep) for module in modules]
    try:
        normed = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    return inputs, normed
