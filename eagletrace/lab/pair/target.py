"""The target: a small Llama trained to predict text while its layers are kept unlike each other.

A hidden state of an ordinary small Llama resembles its neighbours', because each layer adds a little to the
residual stream; an EAGLE-3 draft then hardly notices that it is fed from a wrong layer. Here a penalty on the
squared cosine between the hidden states of nearby layers makes every layer rewrite the stream. The cosine is taken
after whitening by the layer that a reader such as ``fc`` was trained on: a plain cosine sees only the directions
of large variance, and a reader finds what persists in the small ones.
"""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from eagletrace.lab.pair.settings import PairSettings
from eagletrace.lab.pair.tokenizer import BOS_ID, EOS_ID

Progress = Callable[[str], None]
SEPARATION_LAGS = (1, -1, 2, -2, 3, -3)
"""Distances in layers that the penalty looks at, one each step."""
ALLOWED_SIMILARITY = 0.04
"""Mean squared cosine below which two layers count as unlike; pressing on only costs the text."""


def target_config(settings: PairSettings) -> LlamaConfig:
    """The architecture as transformers describes it."""
    return LlamaConfig(
        hidden_size=settings.hidden_size,
        intermediate_size=settings.target_intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        head_dim=settings.head_dim,
        vocab_size=settings.vocab_size,
        max_position_embeddings=settings.max_positions,
        rms_norm_eps=settings.norm_eps,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        tie_word_embeddings=False,
        initializer_range=settings.hidden_size**-0.5,
    )


def train_target(
    ids: Tensor, settings: PairSettings, generator: torch.Generator, progress: Progress
) -> LlamaForCausalLM:
    """Trains on the token stream ``ids`` [tokens] and returns the model rounded to bfloat16, held in float32."""
    model = LlamaForCausalLM(target_config(settings)).float().train()
    optimizers = make_optimizers(model, settings)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, settings.target_steps))
        for optimizer in optimizers
    ]
    for step in range(settings.target_steps):
        batch = sample_windows(ids, settings.target_batch, settings.target_length + 1, generator)
        output = model(input_ids=batch[:, :-1], output_hidden_states=True, use_cache=False)
        text_loss = F.cross_entropy(output.logits.flatten(0, 1), batch[:, 1:].flatten())
        lag = SEPARATION_LAGS[step % len(SEPARATION_LAGS)]
        similarity = layer_similarity(output.hidden_states, lag)
        loss = text_loss + separation_weight(step, settings) * similarity
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 50 == 0 or step == settings.target_steps - 1:
            progress(f"target step {step}: text loss {text_loss.item():.3f}, similarity {similarity.item():.3f}")
    return round_to_bfloat16(model).eval().requires_grad_(False)


def make_optimizers(model: LlamaForCausalLM, settings: PairSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, head and norms."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    taken = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_factor(step: int, steps: int) -> float:
    """Learning rate over its peak: a short warm-up, level, then down to nothing over the last half."""
    return min((step + 1) / 20, 1.0, 2 * (1 - step / steps) + 0.02)


def separation_weight(step: int, settings: PairSettings) -> float:
    """Half at the start, while the model learns its first words, full from the middle on."""
    done = step / settings.target_steps
    return settings.separation_weight * min(done + 0.5, 1.0)


def sample_windows(ids: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """``count`` random windows of the stream, [count, length]."""
    starts = torch.randint(0, ids.numel() - length, (count,), generator=generator)
    return ids[starts[:, None] + torch.arange(length)]


def layer_similarity(hidden_states: tuple[Tensor, ...], lag: int) -> Tensor:
    """By how much hidden states [batch, time, hidden] ``lag`` layers apart look alike to a reader of the first."""
    states = [(state - state.mean((0, 1))).flatten(0, 1)[::2] for state in hidden_states]
    terms: list[Tensor] = []
    for index, state in enumerate(states):
        if 0 <= index + lag < len(states):
            factor = whitening_factor(state.detach())
            read, misread = (
                F.normalize(torch.linalg.solve_triangular(factor, value.T, upper=False), dim=0)
                for value in (state, states[index + lag])
            )
            terms.append(F.relu((read * misread).sum(0).square().mean() - ALLOWED_SIMILARITY))
    return torch.stack(terms).mean()


def whitening_factor(states: Tensor) -> Tensor:
    """Cholesky factor of the states' covariance; solving by it makes every direction count alike."""
    covariance = states.T @ states / states.shape[0]
    shrinkage = 0.02 * covariance.diagonal().mean()
    return torch.linalg.cholesky(covariance + shrinkage * torch.eye(covariance.shape[0]))


def round_to_bfloat16(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Rounds every weight to what bfloat16 holds, so that trained, stored and served weights are one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model
