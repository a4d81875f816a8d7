"""What only older releases need: verdicts from compiled kernels, a result that is copied, a tree that comes as lists.

Read from the sources of 0.5.3 to 0.5.13; the hooks stand where their targets resolve, by no version.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from eagletrace.instrumentations.sglang.launch import DraftForward, SessionHook
from eagletrace.instrumentations.sglang.verdict import Sample


class SamplingKernel(Sample):
    """`tree_speculative_sampling_target_only(...)` as the first worker calls it, with keywords; it writes in place.

    `EagleVerifyInput.verify` (eagle_info.py, 0.5.3 to 0.5.12) has no function of its own for batches that sample. What
    it drew is in `predicts`, what the target would choose the likeliest token of `target_probs` [bs, D, V].
    """

    def after(self, token: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stage the facts that `eagle_sample` gives in newer releases."""
        verify_input = SimpleNamespace(
            draft_token=kwargs["candidates"], retrieve_next_token=kwargs["retrive_next_token"],
            retrieve_next_sibling=kwargs["retrive_next_sibling"],
        )  # fmt: skip
        output = SimpleNamespace(next_token_logits=kwargs["target_probs"].flatten(0, 1))
        predicts = kwargs["predicts"][: kwargs["candidates"].numel()]  # it has an element more
        sampled = predicts, None, kwargs["accept_index"]
        super().after(token, sampled, (verify_input, None, output), {})


class CarriedResult(SessionHook):
    """`GenerationBatchResult.from_forward_batch_output(forward_batch_output=...)` of 0.5.3's scheduler.

    The worker's result, to which a launch is tied, becomes another object before the scheduler processes it.
    """

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tie the launch to the new result."""
        launch = getattr(kwargs["forward_batch_output"], "_eagletrace", None)
        if launch is not None:
            result._eagletrace = launch


class DraftForwardOfLists(DraftForward):
    """`draft_forward(forward_batch)` of the first worker, which returns lists of each step's tensors to 0.5.3.post1."""

    def after(self, token: Any, result: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the topology, chosen from the lists as the engine chooses it."""
        if self.session.launch is not None and isinstance(result[0], list):
            lists = cast("tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]", result)
            result = organized(lists[0], lists[2], int(instance.speculative_num_draft_tokens))
        super().after(token, result, instance, args, kwargs)


def organized(
    scores: Sequence[torch.Tensor], parents: Sequence[torch.Tensor], nodes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(parent_list [bs, K + 1 + (S - 2) K], selected [bs, D - 1]) of S steps' scores [bs, K or 1, K] and parents.

    As build_eagle_tree.py of 0.5.3 (`build_tree_kernel_efficient_preprocess`): the best D - 1 candidates, in order.
    """
    flat = torch.cat(list(scores), dim=1).flatten(1)
    selected = flat.topk(nodes - 1, dim=-1).indices.sort().values
    if len(parents) > 1:
        return torch.cat(list(parents[:-1]), dim=1), selected
    return torch.empty(flat.shape[0], 0, dtype=torch.int64, device=flat.device), selected
