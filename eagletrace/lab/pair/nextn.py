"""A layer of multi-token prediction, as DeepSeek-V3 has it and SGLang serves it (``deepseek_nextn.py``).

At every depth ``eh_proj`` takes the normed embedding and the normed hidden state, one decoder layer with latent
attention and experts follows, and the target's head reads its normed output, which is fed back.
"""
# torch's own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagletrace.errors import EagletraceError
from eagletrace.lab.pair.draft import AnchorCache, DecoderLayer, DraftMlp, LatentDraftAttention
from eagletrace.lab.pair.settings import KimiSettings, PairSettings
from eagletrace.lab.pair.target import text_config

NEXTN_CLASS = "DeepseekV3ForCausalLMNextN"
"""SGLang's class of such layers."""
NEXTN_PREFIX = "model.layers.0."
"""Of a layer that is exported alone; in a whole checkpoint its number is that of the model's layers."""


class Router(nn.Module):
    """Which experts a state goes to, and how much each counts: sigmoid scores, the best of them normalised."""

    def __init__(self, settings: KimiSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(settings.experts, settings.hidden_size) * settings.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(settings.experts))
        self.chosen, self.scaling = settings.experts_per_token, settings.routed_scaling

    def forward(self, states: Tensor) -> Tensor:
        """States [..., H] to the weight of every expert [..., experts], zero for those not chosen."""
        scores = F.linear(states, self.weight).sigmoid()
        best = scores.topk(self.chosen, -1).indices
        kept = torch.zeros_like(scores).scatter(-1, best, scores.gather(-1, best))
        return self.scaling * kept / kept.sum(-1, keepdim=True)


class Experts(nn.Module):
    """The chosen experts' sum, and one expert that all states pass; every expert is run, for there are few."""

    def __init__(self, settings: KimiSettings) -> None:
        super().__init__()
        hidden, inner = settings.hidden_size, settings.expert_intermediate_size
        self.gate = Router(settings)
        self.experts = nn.ModuleList([DraftMlp(hidden, inner) for _ in range(settings.experts)])
        self.shared_experts = DraftMlp(hidden, inner)

    def forward(self, states: Tensor) -> Tensor:
        """[..., H] to [..., H]."""
        made = torch.stack([expert(states) for expert in self.experts], -1)
        return (made * self.gate(states).unsqueeze(-2)).sum(-1) + self.shared_experts(states)


class NextNDraft(nn.Module):
    """DeepSeek-V3's layer with experts between `eh_proj` and the target's ``head`` [vocabulary, H].

    Names are the checkpoint's but for the layer's prefix. EagletraceError in a pair that has no sizes of latent
    attention and experts.
    """

    embed_tokens: None = None

    def __init__(self, settings: PairSettings, head: Tensor) -> None:
        super().__init__()
        if not isinstance(settings, KimiSettings):
            raise EagletraceError("multi-token prediction needs a pair with latent attention and experts: --pair kimi")
        hidden = settings.hidden_size
        self.head = head.detach()  # no parameter of the draft
        self.enorm = nn.RMSNorm(hidden, settings.norm_eps)
        self.hnorm = nn.RMSNorm(hidden, settings.norm_eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.decoder = DecoderLayer(settings, LatentDraftAttention(settings, hidden), Experts(settings))
        self.shared_head = nn.ModuleDict({"norm": nn.RMSNorm(hidden, settings.norm_eps)})

    def fuse(self, states: Tensor) -> Tensor:
        """The target's normed states [..., H] are taken as they are."""
        return states

    def step(self, embeddings: Tensor, hidden: Tensor, cache: AnchorCache) -> tuple[Tensor, Tensor]:
        """One depth for all anchors: the hidden state fed back [batch, anchors, H] and logits of the vocabulary."""
        joined = torch.cat([self.enorm(embeddings), self.hnorm(hidden)], -1)
        normed = self.shared_head["norm"](self.decoder(self.eh_proj(joined), cache))
        return normed, F.linear(normed, self.head)

    def keep_scales(self, scales: Tensor) -> None:
        """Let the norms before ``eh_proj`` keep the ``scales`` [2H] of what they norm, and ``eh_proj`` take them back:
        the same function, in which each norm has its place."""
        embeddings, hidden = scales.chunk(2)
        self.enorm.weight.mul_(embeddings)
        self.hnorm.weight.mul_(hidden)
        self.eh_proj.weight.div_(scales)

    def matrices(self) -> list[nn.Parameter]:
        """What Muon trains: all matrices but the router's."""
        return [
            value for name, value in self.named_parameters() if value.ndim == 2 and not name.endswith("gate.weight")
        ]


def nextn_tensors(draft: NextNDraft) -> dict[str, Tensor]:
    """The tensors under the names of a layer that is exported alone."""
    return {NEXTN_PREFIX + name.removeprefix("decoder."): value for name, value in draft.state_dict().items()}


def nextn_config(settings: KimiSettings) -> dict[str, Any]:
    """Its ``config.json``: the target's, of one layer."""
    return {
        **text_config(settings), "architectures": [NEXTN_CLASS], "num_hidden_layers": 1, "num_nextn_predict_layers": 1,
    }  # fmt: skip


def load_nextn(tensors: dict[str, Tensor], settings: PairSettings, head: Tensor) -> NextNDraft:
    """The layer of an exported folder, in float32."""
    draft = NextNDraft(settings, head)
    own = {f"{name}." for name, _ in draft.named_children()}
    found: dict[str, Tensor] = {}
    for key, value in tensors.items():
        name = key.removeprefix(NEXTN_PREFIX)
        found[name if any(name.startswith(part) for part in own) else f"decoder.{name}"] = value.float()
    draft.load_state_dict(found)
    return draft
