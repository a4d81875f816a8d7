"""A draft model of its own: a Llama of a few layers that takes tokens alone (SGLang's ``StandaloneWorkerV2``).

The engine runs it on the tokens from the second on, so that its row of an anchor ``t`` is that of the token ``t + 1``
at position ``t``, as in the other drafts.
"""
# torch's own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from dataclasses import replace

from torch import Tensor, nn

from eagletrace.lab.pair.draft import AnchorCache, llama_layer
from eagletrace.lab.pair.settings import PairSettings

STANDALONE_CLASS = "LlamaForCausalLM"
"""SGLang's class of such drafts: any language model."""
HEAD = "lm_head.weight"
HIDDEN, INNER = 64, 192
"""Its sizes: half as wide as the target, so that nothing of the target's fits."""


def standalone_settings(settings: PairSettings) -> PairSettings:
    """The pair's settings with the sizes of the draft."""
    return replace(settings, hidden_size=HIDDEN, draft_intermediate_size=INNER)


class StandaloneDraft(nn.Module):
    """Embeddings, layers, norm and head; parameter names are the checkpoint's without ``model.``."""

    def __init__(self, settings: PairSettings, layers: int) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.embed_tokens = nn.Embedding(settings.vocab_size, hidden)
        self.layers = nn.ModuleList([llama_layer(settings) for _ in range(layers)])
        self.norm = nn.RMSNorm(hidden, settings.norm_eps)
        self.lm_head = nn.Linear(hidden, settings.vocab_size, bias=False)

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states are handed on, and never looked at."""
        return states

    def step(self, embeddings: Tensor, hidden: Tensor, cache: AnchorCache) -> tuple[Tensor, Tensor]:
        """One depth for all anchors: ``hidden`` as it was, and logits of the vocabulary."""
        made = embeddings
        for number, layer in enumerate(self.layers):
            made = layer(made, cache.later.setdefault(str(number), AnchorCache()))
        return hidden, self.lm_head(self.norm(made))

    def matrices(self) -> list[nn.Parameter]:
        """What Muon trains: the matrices of the layers."""
        return [value for value in self.layers.parameters() if value.ndim == 2]


def standalone_tensors(draft: StandaloneDraft) -> dict[str, Tensor]:
    """The tensors under the names of a Llama's checkpoint."""
    return {name if name == HEAD else f"model.{name}": value for name, value in draft.state_dict().items()}


def load_standalone(tensors: dict[str, Tensor], settings: PairSettings, layers: int) -> StandaloneDraft:
    """The draft of a folder, in float32."""
    draft = StandaloneDraft(settings, layers)
    draft.load_state_dict({name.removeprefix("model."): value.float() for name, value in tensors.items()})
    return draft
