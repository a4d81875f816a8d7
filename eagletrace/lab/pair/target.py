"""The target: a small Llama or DeepSeek-V3, trained to predict text while its layers are kept unlike each other.

A hidden state of an ordinary small model resembles its neighbours', because each layer adds a little to the
residual stream; an EAGLE-3 draft then hardly notices that it is fed from a wrong layer. Here a penalty on the
squared cosine between the hidden states of nearby layers makes every layer rewrite the stream. The cosine is taken
after whitening by the layer that a reader such as ``fc`` was trained on: a plain cosine sees only the directions
of large variance, and a reader finds what persists in the small ones.
"""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

from eagletrace.lab.pair.settings import KimiSettings, PairSettings
from eagletrace.lab.pair.tokenizer import BOS_ID, EOS_ID

Progress = Callable[[str], None]
TargetModel: TypeAlias = LlamaForCausalLM | DeepseekV3ForCausalLM
"""The language model of a target; a Kimi-K2.5's is a DeepSeek-V3."""
SEPARATION_LAGS = (1, -1, 2, -2, 3, -3)
"""Distances in layers that the penalty looks at, one each step."""
ALLOWED_SIMILARITY = 0.04
"""Mean squared cosine below which two layers count as unlike; pressing on only costs the text."""


def target_config(settings: PairSettings) -> LlamaConfig:
    """A Llama's architecture as transformers describes it."""
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


def text_config(settings: KimiSettings) -> dict[str, Any]:
    """``text_config`` of a Kimi-K2.5, in the spelling that SGLang and transformers 4 and 5 read."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_act": "silu",
        "hidden_size": settings.hidden_size,
        "intermediate_size": settings.target_intermediate_size,
        "moe_intermediate_size": settings.expert_intermediate_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        **settings.latent_attention,
        "n_routed_experts": settings.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": settings.experts_per_token,
        "first_k_dense_replace": settings.dense_layers,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": settings.routed_scaling,
        "num_nextn_predict_layers": 0,
        "vocab_size": settings.vocab_size,
        "max_position_embeddings": settings.max_positions,
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rope_theta,
        "rope_scaling": settings.rope_scaling,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "bfloat16",
    }


def untrained_target(settings: PairSettings) -> TargetModel:
    """A language model of the pair's architecture with random weights, in float32."""
    if isinstance(settings, KimiSettings):
        config = DeepseekV3Config(**text_config(settings), initializer_range=settings.hidden_size**-0.5)
        return DeepseekV3ForCausalLM(config).float()
    return LlamaForCausalLM(target_config(settings)).float()


def train_target(ids: Tensor, settings: PairSettings, generator: torch.Generator, progress: Progress) -> TargetModel:
    """Trains on the token stream ``ids`` [tokens] and returns the model rounded to bfloat16, held in float32."""
    model = untrained_target(settings).train()
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


def make_optimizers(model: TargetModel, settings: PairSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, head, norms, routers and stacked experts."""
    layers = dict(model.model.layers.named_parameters())
    matrices = [value for name, value in layers.items() if value.ndim == 2 and not name.endswith("mlp.gate.weight")]
    experts = [value for value in layers.values() if value.ndim == 3]
    taken = {id(parameter) for parameter in (*matrices, *experts)}
    others = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups: list[dict[str, Any]] = [{"params": others}]
    if isinstance(settings, KimiSettings):
        groups.append({"params": experts, "lr": settings.expert_rate})
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0),
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


def round_to_bfloat16(model: TargetModel) -> TargetModel:
    """Rounds every weight to what bfloat16 holds, so that trained, stored and served weights are one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model
