"""Patches of what the draft is fed: hidden states, embeddings, and whether `fc` sees them."""

from __future__ import annotations

from functools import wraps
from typing import Any

from eagletrace.lab.runtime import Patch

RUNNER = "sglang.srt.model_executor.model_runner"
WORKER = "sglang.srt.speculative.eagle_worker_v2"
MODEL = "sglang.srt.models.llama_eagle3"
TARGET = "sglang.srt.models.llama"
SHIFTED_ROWS = 1


def feed_back_the_input(module: Any) -> None:
    """The draft hands on the hidden state that it was given (after `fc`), not the one that its layer made of it."""
    _hand_on(module, of_given=1.0, of_made=0.0)


def feed_back_the_difference(module: Any) -> None:
    """The draft hands on what its layer added to the hidden state, without the residual."""
    _hand_on(module, of_given=-1.0, of_made=1.0)


def _hand_on(module: Any, of_given: float, of_made: float) -> None:
    """At every depth the draft hands on so much of the hidden state given and of the one made, both [rows, H]."""
    original = module.LlamaModel.forward

    @wraps(original)
    def forward(self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        given = forward_batch.spec_info.hidden_states
        normed, (made,) = original(self, input_ids, positions, forward_batch, *args, **kwargs)
        fused = given if given.shape[-1] == self.config.hidden_size else given @ self.fc.weight.T
        return normed, [of_given * fused + of_made * made]

    module.LlamaModel.forward = forward


def skip_fc(module: Any) -> None:
    """The last of the three aux states goes into the decoder layer as it is; `fc` is never called."""
    original = module.LlamaModel.forward

    @wraps(original)
    def forward(self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        given = forward_batch.spec_info.hidden_states
        forward_batch.spec_info.hidden_states = given[..., -self.config.hidden_size :]
        try:
            return original(self, input_ids, positions, forward_batch, *args, **kwargs)
        finally:
            forward_batch.spec_info.hidden_states = given

    module.LlamaModel.forward = forward


def extend_on_stale_states(module: Any) -> None:
    """The draft's extend over accepted tokens computes on the hidden states of the launch before, if it had their
    shape: as a captured graph does whose input buffer was not refreshed. Other shapes run as they should."""
    original, buffers = module.ModelRunner.forward, {}

    @wraps(original)
    def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_draft_worker or not forward_batch.forward_mode.is_draft_extend_v2():
            return original(self, forward_batch, *args, **kwargs)
        given = forward_batch.spec_info.hidden_states
        forward_batch.spec_info.hidden_states = buffers.get(given.shape, given)
        buffers[given.shape] = given.clone()
        try:
            return original(self, forward_batch, *args, **kwargs)
        finally:
            forward_batch.spec_info.hidden_states = given

    module.ModelRunner.forward = forward


def overwrite_embeddings(module: Any) -> None:
    """After the target's embeddings were shared, the draft gets a copy whose rows are one too far."""
    original = module.EagleDraftWorker.init_lm_head

    @wraps(original)
    def init_lm_head(self: Any) -> None:
        import torch

        original(self)
        layer = self.draft_runner.model.model.embed_tokens
        layer.weight = torch.nn.Parameter(layer.weight.data.roll(SHIFTED_ROWS, 0), requires_grad=False)

    module.EagleDraftWorker.init_lm_head = init_lm_head


def hand_over_before_norm(module: Any) -> None:
    """The target gives its logits processor the states before its final norm too, as a class of another family does;
    the processor hands these on to the draft in place of the normed ones (`hidden_states_before_norm`)."""
    original = module.LlamaForCausalLM.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - a patch of one
        original(self, *args, **kwargs)
        if type(self) is not module.LlamaForCausalLM:
            return  # a draft's class inherits from it
        before: list[Any] = []

        def keep(_module: Any, _args: Any, output: Any) -> None:
            before[:] = [output[1].clone()]

        def give(_module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            return args, {**kwargs, "hidden_states_before_norm": before.pop()}

        self.model.norm.register_forward_hook(keep)
        self.logits_processor.register_forward_pre_hook(give, with_kwargs=True)

    module.LlamaForCausalLM.__init__ = __init__


PATCHES = (
    Patch("input-fed-back", MODEL, feed_back_the_input),
    Patch("difference-fed-back", MODEL, feed_back_the_difference),
    Patch("fc-skipped", MODEL, skip_fc),
    Patch("stale-extend", RUNNER, extend_on_stale_states),
    Patch("embeddings-overwritten", WORKER, overwrite_embeddings),
    Patch("handed-over-before-norm", TARGET, hand_over_before_norm),
)
