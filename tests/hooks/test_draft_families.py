"""Families of drafts, and a head that a token map makes of the target's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from eagletrace.instrumentations.sglang import load, sharing  # noqa: E402
from eagletrace.instrumentations.sglang.families import EAGLE, EAGLE3, Family, family_of  # noqa: E402

V, H = 12, 4


@pytest.mark.parametrize(
    ("architecture", "fuses", "maps", "family"),
    [
        ("LlamaForCausalLMEagle3", True, True, EAGLE3),
        ("LlamaForCausalLMEagle3", True, False, EAGLE3),
        ("Eagle3DeepseekV2ForCausalLM", True, False, EAGLE3),
        ("LlamaForCausalLMEagle", True, False, EAGLE),
        ("Qwen2ForCausalLMEagle", True, False, EAGLE),
        ("MistralForCausalLMEagle", True, False, EAGLE),
        ("LlamaForCausalLMEagle", True, True, EAGLE3),  # an EAGLE-3 draft whose config names the older class
        ("DeepseekV3ForCausalLMNextN", False, False, None),
        ("LlamaForCausalLM", False, False, None),
        ("SomethingElse", True, False, None),
    ],
)
def test_a_class_has_a_family(architecture: str, fuses: bool, maps: bool, family: Family | None) -> None:
    assert family_of(architecture, fuses=fuses, maps=maps) is family


def test_families_say_what_serves_them_and_what_they_are_fed() -> None:
    assert (EAGLE3.algorithm, EAGLE3.aux_states) == ("EAGLE3", True)
    assert (EAGLE.algorithm, EAGLE.aux_states) == ("EAGLE", False)


class Model(nn.Module):
    """Embedding and head as an engine's model has them."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = nn.Module()
        self.model.embed_tokens = nn.Embedding(V, H)
        self.lm_head = nn.Linear(H, V, bias=False)

    def get_embed_and_head(self) -> tuple[Any, Any]:
        return self.model.embed_tokens.weight, self.lm_head.weight


def mapped(ids: list[int] | None, rows: list[int]) -> tuple[Any, Model]:
    """A session and its draft, whose head is a plain copy of rows of the target's, as `init_lm_head` puts it there."""
    target, draft = Model(), Model()
    head = target.lm_head.weight.detach()[rows].clone()
    del draft.lm_head.weight
    draft.lm_head.weight = head  # type: ignore[assignment]
    worker = SimpleNamespace(hot_token_id=None if ids is None else torch.tensor(ids))
    return SimpleNamespace(worker=worker, target_runner=SimpleNamespace(model=target)), draft


def test_a_head_that_is_the_target_s_rows_of_a_token_map_is_found_though_it_is_no_parameter() -> None:
    session, draft = mapped([5, 2, 7], [5, 2, 7])
    assert "lm_head.weight" not in dict(draft.named_parameters())
    found = dict(load.named_tensors(draft))
    assert found["lm_head.weight"].shape == (3, H)
    places = load.shared_places(session, draft)
    assert places[load.place(found["lm_head.weight"])] == "target:lm_head.weight[hot_token_id]"


@pytest.mark.parametrize(("ids", "rows"), [(None, [5, 2, 7]), ([5, 2, 7], [5, 2, 8]), ([5, 2], [5, 2, 7]),
                                           ([5, 2, 99], [5, 2, 7]), ([5, -1, 7], [5, 2, 7])])  # fmt: skip
def test_another_head_is_not_called_the_target_s(ids: list[int] | None, rows: list[int]) -> None:
    session, draft = mapped(ids, rows)
    head = sharing.head(draft)
    assert head is not None
    assert load.place(head) not in load.shared_places(session, draft)
