"""Families of drafts, and a head that a token map makes of the target's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from eagletrace.instrumentations.sglang import facts, file_parts, load, sharing  # noqa: E402
from eagletrace.instrumentations.sglang.families import (  # noqa: E402
    EAGLE,
    EAGLE3,
    NEXTN,
    STANDALONE,
    Family,
    family_of,
)

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
        ("DeepseekV3ForCausalLMNextN", True, False, NEXTN),
        ("Qwen3NextForCausalLMMTP", True, False, NEXTN),
        ("DeepseekV3ForCausalLMNextN", False, False, None),  # its fusion layer has a name that is not known
        ("LlamaForCausalLM", False, False, STANDALONE),
        ("Qwen3VLForConditionalGeneration", False, False, STANDALONE),
        ("LlamaForCausalLM", True, False, None),
        ("LlamaForCausalLMEagle", False, False, None),
        ("SomethingElse", True, False, None),
    ],
)
def test_a_class_has_a_family(architecture: str, fuses: bool, maps: bool, family: Family | None) -> None:
    assert family_of(architecture, fuses=fuses, maps=maps) is family


def test_families_say_what_serves_them_and_what_they_are_fed() -> None:
    assert (EAGLE3.algorithm, EAGLE3.aux_states) == ("EAGLE3", True)
    assert (EAGLE.algorithm, EAGLE.aux_states) == ("EAGLE", False)
    assert (NEXTN.algorithm, NEXTN.aux_states, NEXTN.alone) == ("EAGLE", False, False)
    assert (STANDALONE.algorithm, STANDALONE.aux_states, STANDALONE.alone) == ("STANDALONE", False, True)


def test_a_language_model_is_not_held_against_an_algorithm_that_is_not_known() -> None:
    asked = ("STANDALONE", "EAGLE", "EAGLE3", "SOMETHING", None)
    assert [STANDALONE.fitting(algorithm) for algorithm in asked] == ["STANDALONE"] * 3 + [None] * 2
    assert [EAGLE3.fitting(algorithm) for algorithm in asked] == ["EAGLE3"] * 5


def test_eh_proj_plays_the_part_of_fc() -> None:
    draft = nn.ModuleDict({"model": nn.ModuleDict({"enorm": nn.Identity(), "eh_proj": nn.Linear(2 * H, H)})})
    found = facts.fusion_layer(draft)
    assert found is not None and found[0] == "model.eh_proj"
    assert facts.fusion_layer(nn.ModuleDict({"lm_head": nn.Linear(H, V)})) is None


class DeepseekV3ForCausalLMNextN(nn.Module):
    """A class of the engine's name."""


@pytest.mark.parametrize("draft", ["/models/target", "/models/./target", None])
def test_in_the_target_s_own_checkpoint_all_but_the_layer_behind_its_layers_is_the_target_s(draft: str | None) -> None:
    passed_over = file_parts.of_the_target(serving(draft), DeepseekV3ForCausalLMNextN())
    target = ("model.embed_tokens.weight", "model.layers.9.mlp.gate.weight", "model.norm.weight", "lm_head.weight")
    own = ("model.layers.10.eh_proj.weight", "model.layers.10.embed_tokens.weight", "mtp.layers.0.enorm.weight")
    assert [passed_over(key) for key in target] == [True] * 4
    assert [passed_over(key) for key in own] == [False] * 3


def test_in_a_file_of_its_own_nothing_is_the_target_s() -> None:
    assert not file_parts.of_the_target(serving("/models/draft"), DeepseekV3ForCausalLMNextN())("model.norm.weight")
    assert not file_parts.of_the_target(serving("/models/target"), Model())("model.norm.weight")  # a target as draft


def serving(draft: str | None) -> Any:
    """A session whose target has ten layers."""
    paths = SimpleNamespace(model_path="/models/target", speculative_draft_model_path=draft)
    config = SimpleNamespace(hf_text_config=SimpleNamespace(num_hidden_layers=10))
    return SimpleNamespace(server_args=paths, target_runner=SimpleNamespace(model_config=config), loading=None)


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
