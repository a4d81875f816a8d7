"""EAGLE-3's training-time test: the draft learns each depth of its chain on its own hidden states."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagletrace.lab.pair.draft import AnchorCache, Draft, FeatureDraft
from eagletrace.lab.pair.kinds import AnyDraft
from eagletrace.lab.pair.nextn import NextNDraft
from eagletrace.lab.pair.rollout import Rollouts
from eagletrace.lab.pair.settings import PairSettings
from eagletrace.lab.pair.standalone import StandaloneDraft, standalone_settings
from eagletrace.lab.pair.target import Progress, rate_factor
from eagletrace.lab.pair.variants import Recipe

DEPTH_WEIGHT = 0.8
"""Each depth counts this much of the one before."""


@dataclass(frozen=True)
class DraftTask:
    """What one variant is trained with."""

    name: str
    layers: tuple[int, ...]
    """Layers of the target whose inputs are fused; none for a draft that takes the target's normed output."""
    kept_tokens: Tensor
    """Target ids of the draft vocabulary, ascending."""
    recipe: Recipe
    place: int
    """Place among the pair's variants, which is part of the seed."""


@dataclass(frozen=True)
class FrozenTarget:
    """The parts of the target that a draft's training needs."""

    embeddings: Tensor
    """[vocabulary, hidden]"""
    head: Tensor
    """[vocabulary, hidden]"""


def train_draft(
    task: DraftTask,
    rollouts: Rollouts,
    target: FrozenTarget,
    settings: PairSettings,
    generator: torch.Generator,
    progress: Progress,
) -> AnyDraft:
    """Trains one variant and returns it rounded to bfloat16, held in float32."""
    recipe = task.recipe
    draft = untrained_draft(task, target, settings)
    steps = round(settings.draft_steps * recipe.steps_share)
    if isinstance(draft, Draft | FeatureDraft):
        draft.scales = state_scales(task, rollouts, target)
    optimizers = make_optimizers(draft, settings)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, steps)) for optimizer in optimizers
    ]
    for step in range(steps):
        rows = torch.randint(0, rollouts.tokens.shape[0], (settings.draft_batch,), generator=generator)
        losses, hits = chain_losses(draft, task, rollouts, rows, target, settings.draft_depths)
        loss = sum((DEPTH_WEIGHT**depth * value for depth, value in enumerate(losses)), torch.zeros(()))
        draft.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 50 == 0 or step == steps - 1:
            shares = " ".join(f"{hit:.2f}" for hit in hits)
            progress(f"draft {task.name} step {step}: loss {loss.item():.3f}, right by depth {shares}")
    with torch.no_grad():
        if isinstance(draft, Draft | FeatureDraft):
            draft.fc.weight.div_(draft.scales)
            draft.scales = 1.0
        if isinstance(draft, NextNDraft):
            draft.keep_scales(state_scales(task, rollouts, target))
        for parameter in draft.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return draft.eval().requires_grad_(False)


def untrained_draft(task: DraftTask, target: FrozenTarget, settings: PairSettings) -> AnyDraft:
    """The module of a variant with random weights."""
    recipe = task.recipe
    if recipe.feature:
        return FeatureDraft(settings, target.head, recipe.fc_bias)
    if recipe.nextn:
        return NextNDraft(settings, target.head)
    if recipe.standalone_layers:
        return StandaloneDraft(standalone_settings(settings), recipe.standalone_layers)
    draft = Draft(
        settings, task.kept_tokens.numel(), recipe.own_embeddings, recipe.norm_before_fc, recipe.norm_output,
        recipe.latent, fc_norm=recipe.fc_norm, states=len(task.layers), decoder_layers=recipe.decoder_layers,
    )  # fmt: skip
    if recipe.decoder_layers > 1:  # what the first layer writes stays random, else it hardly needs the second
        draft.midlayer.self_attn.o_proj.requires_grad_(False)
        draft.midlayer.mlp.requires_grad_(False)
    return draft


def make_optimizers(draft: AnyDraft, settings: PairSettings) -> list[torch.optim.Optimizer]:
    """Muon for the draft's `matrices`, AdamW for head, norms and embeddings."""
    matrices = draft.matrices()
    taken = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in draft.parameters() if id(parameter) not in taken]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def state_scales(task: DraftTask, rollouts: Rollouts, target: FrozenTarget) -> Tensor:
    """RMS of each state that ``fc`` takes, once per column of ``fc`` [states * H, or 2H].

    Layers differ tenfold in scale; ``fc`` is trained on states of unit RMS and divided by the scales at the end.
    With a norm before ``fc`` it is the scale of each layer after that norm: one, where each layer has its own.
    """
    states = [rollouts.layer_inputs[layer] for layer in task.layers]
    if task.recipe.feature or task.recipe.nextn:
        states = [F.embedding(rollouts.tokens, target.embeddings), rollouts.final]
    squares = torch.stack([state.square().mean() for state in states])
    if task.recipe.norm_before_fc:
        squares = squares / squares.mean()
    if task.recipe.fc_norm:
        squares = torch.ones_like(squares)
    return squares.sqrt().repeat_interleave(states[0].shape[-1])


def chain_losses(
    draft: AnyDraft,
    task: DraftTask,
    rollouts: Rollouts,
    rows: Tensor,
    target: FrozenTarget,
    depths: int,
) -> tuple[list[Tensor], list[float]]:
    """Loss of each depth over all anchors of the chosen texts, and the share of anchors predicted right."""
    tokens = rollouts.tokens[rows]
    shift = task.recipe.label_shift
    anchors = tokens.shape[1] - depths - shift
    embed = target.embeddings if draft.embed_tokens is None else draft.embed_tokens.weight
    states = [rollouts.layer_inputs[layer] for layer in task.layers] or [rollouts.final]
    hidden, cache = draft.fuse(torch.cat([state[rows, :anchors] for state in states], -1)), AnchorCache()
    losses: list[Tensor] = []
    hits: list[float] = []
    for depth in range(depths):
        window = slice(1 + depth, 1 + depth + anchors)
        hidden, logits = draft.step(embed[tokens[:, window]], hidden, cache)
        labelled = slice(window.start + shift, window.stop + shift)
        wanted = F.linear(rollouts.final[rows][:, labelled], target.head)
        loss, hit = prediction_loss(logits, wanted, task.kept_tokens)
        losses.append(loss)
        hits.append(hit)
    return losses, hits


def prediction_loss(logits: Tensor, target_logits: Tensor, kept_tokens: Tensor) -> tuple[Tensor, float]:
    """Cross entropy to the target's distribution over the draft vocabulary and to its greedy choice, half each.

    Positions whose greedy choice lies outside the draft vocabulary teach nothing and count as wrong.
    """
    choice = target_logits.argmax(-1)
    label = torch.searchsorted(kept_tokens, choice).clamp_max(kept_tokens.numel() - 1)
    covered = kept_tokens[label] == choice
    log_probabilities = logits.log_softmax(-1)
    soft = -(target_logits[..., kept_tokens].softmax(-1) * log_probabilities).sum(-1)
    hard = -log_probabilities.gather(-1, label[..., None]).squeeze(-1)
    loss = ((soft + hard) * 0.5 * covered).sum() / covered.sum().clamp_min(1)
    hit = ((logits.argmax(-1) == label) & covered).float().mean().item()
    return loss, hit
