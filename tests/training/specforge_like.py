"""A draft and its step as SpecForge 0.2 has them (`modeling/draft/llama3_eagle.py`, `algorithms/eagle3/model.py`).

The names of modules, buffers, methods and arguments, the unrolled depths, the padding and the accuracy are SpecForge's;
the decoder layer is the lab's, which computes the same.
"""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.pair.draft import AnchorCache, DraftLayer
from eagletrace.lab.pair.rollout import states_of
from eagletrace.lab.pair.settings import PairSettings
from tests.training.trained import LAYERS, PROMPT, target_folder


class LlamaForCausalLMEagle3(nn.Module):
    """Only what is called in training."""

    t2d: Tensor
    d2t: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        hidden, vocab, drafts = config.hidden_size, config.vocab_size, config.draft_vocab_size
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.midlayer = DraftLayer(PairSettings())
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, drafts, bias=False)
        self.register_buffer("t2d", torch.ones(vocab, dtype=torch.bool))
        self.register_buffer("d2t", torch.zeros(drafts, dtype=torch.int64))

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.embed_tokens(input_ids)

    def project_hidden_states(self, hidden_states: Tensor) -> Tensor:
        return self.fc(hidden_states)

    def backbone(self, input_embeds: Tensor, hidden_states: Tensor, cache_hidden: AnchorCache) -> Tensor:
        return self.midlayer(input_embeds, hidden_states, cache_hidden)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.lm_head(self.norm(hidden_states))


def padding(tensor: Tensor) -> Tensor:
    return torch.cat((tensor[:, 1:], torch.zeros_like(tensor[:, -1:])), dim=1)


class OnlineEagle3Model(nn.Module):
    """One step of training: all depths, loss and accuracy of each."""

    def __init__(self, draft_model: LlamaForCausalLMEagle3, length: int = 3) -> None:
        super().__init__()
        self.draft_model, self.length = draft_model, length

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        target: Tensor | None,
        loss_mask: Tensor,
        hidden_states: Tensor,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        target_hidden_for_compact: Tensor | None = None,
        target_head_weight: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        draft, length = self.draft_model, input_ids.shape[1]
        if target_hidden_for_compact is not None and target_head_weight is not None:
            target = F.linear(target_hidden_for_compact, target_head_weight)
        assert target is not None
        token_ids = F.pad(target.argmax(-1), (0, self.length))
        target_p = F.pad(target[..., draft.t2d].softmax(-1), (0, 0, 0, self.length))
        position_mask = draft.t2d[target.argmax(-1)][..., None].int() * loss_mask
        hidden_states = draft.project_hidden_states(hidden_states)
        cache = AnchorCache()
        losses, corrects, counts = list[Tensor](), list[Tensor](), list[Tensor]()
        for idx in range(self.length):
            embeds = draft.embed_input_ids(input_ids)
            hidden_states = draft.backbone(embeds, hidden_states, cache)
            logits = draft.compute_logits(hidden_states)
            ids = logits.argmax(-1)
            right = (ids + draft.d2t[ids] == token_ids[:, idx : idx + length]) * loss_mask.squeeze(-1)
            losses.append(-(target_p[:, idx : idx + length] * logits.log_softmax(-1) * position_mask).sum(-1).mean())
            corrects.append(right.sum())
            counts.append(loss_mask.sum())
            input_ids, loss_mask, position_mask = (padding(t) for t in (input_ids, loss_mask, position_mask))
        return losses, corrects, counts


def shipped_draft() -> OnlineEagle3Model:
    """The lab's trained draft in that model, its embedding frozen and the target's."""
    folder = shipped_pair() / "drafts" / "default"
    draft = LlamaForCausalLMEagle3(LlamaConfig.from_pretrained(folder))
    tensors = load_file(folder / "model.safetensors")
    target = load_file(target_folder() / "model.safetensors")
    tensors["embed_tokens.weight"] = target["model.embed_tokens.weight"]
    draft.load_state_dict(tensors)
    draft.embed_tokens.weight.requires_grad_(False)
    return OnlineEagle3Model(draft.float())


def step_of(target: LlamaForCausalLM, tokens: Tensor) -> dict[str, Any]:
    """Arguments of a step over texts [B, S], shifted as SpecForge's `TargetHead.preprocess` does."""
    with torch.no_grad():
        inputs, normed = states_of(target, tokens)
        logits = target.lm_head(normed)
    counted = (torch.arange(tokens.shape[1]) >= PROMPT).long().expand(tokens.shape)[..., None]
    return {
        "input_ids": padding(tokens), "attention_mask": None, "target": padding(logits), "loss_mask": counted,
        "hidden_states": torch.cat([inputs[layer] for layer in LAYERS], -1),
    }  # fmt: skip
