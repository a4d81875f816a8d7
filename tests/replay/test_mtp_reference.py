"""Multi-token prediction: the reference against the lab's trainer and transformers, and what the search finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

from eagletrace.checkpoint import describe, open_checkpoint
from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.pair.evaluate import load_draft, load_target
from eagletrace.replay.architecture import Architecture, needed_tensors
from eagletrace.replay.changes.edits import FinalNorm
from eagletrace.replay.changes.intended import intended
from eagletrace.replay.experts import Experts
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording
from eagletrace.replay.reference import Reference
from eagletrace.replay.result import REPRODUCES, ReplayError
from eagletrace.replay.search import Found, search
from tests.replay import offline

HIDDEN, LAYERS = 128, 10
FOLDER = shipped_pair("kimi") / "drafts" / "multi_token"
SERVED = {"aux.layers_captured": None, "hot_token_id": None}
NORMS = ("layers.0.enorm.weight", "layers.0.hnorm.weight")


@cache
def final_norm() -> FinalNorm:
    """The target's own, as transformers has it."""
    norm = load_target(shipped_pair("kimi") / "target").model.norm
    return FinalNorm(norm.weight, norm.variance_epsilon)


def material() -> Material:
    return replace(offline.material("multi_token", SERVED, "kimi"), target_norm=final_norm().weight)


def normed(count: int = 2) -> Recording:
    """Sequences whose draft was given the target's last hidden state after its final norm."""
    recording = offline.empty(layers=(LAYERS,), count=count, pair="kimi")
    sequences = [replace(s, captured=final_norm().inputs(s, s.captured)) for s in recording.sequences]
    return replace(recording, sequences=sequences)


def searched(of: Material, recording: Recording, served_by: Recipe) -> Found:
    return search(of, offline.served(recording, served_by), lambda _: None)


def exchanged(recipe: Recipe) -> Recipe:
    one, other = NORMS
    return recipe.with_tensors({one: recipe.tensors[other], other: recipe.tensors[one]})


def test_chains_are_those_of_the_trainer() -> None:
    """The trainer runs all anchors of a text at once, and every expert for every state."""
    recording = normed(2)
    recipe = intended(material(), recording)
    draft = load_draft(FOLDER, LAYERS, target_head=recipe.head)
    offline.assert_chains_are_the_trainers(recording, recipe, draft, atol=2e-3)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2)])
@pytest.mark.parametrize("normalised", [True, False])
def test_experts_are_those_of_transformers(groups: int, kept: int, normalised: bool) -> None:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=16, moe_intermediate_size=8, n_routed_experts=16, num_experts_per_tok=3, n_shared_experts=2,
        n_group=groups, topk_group=kept, norm_topk_prob=normalised, routed_scaling_factor=1.5,
    )  # fmt: skip
    module, states = DeepseekV3MoE(config).eval().requires_grad_(False), torch.randn(40, 16)
    stacked: Any = module.experts
    for parameter in module.parameters():
        parameter.normal_(std=0.5)
    module.gate.e_score_correction_bias.uniform_(-0.5, 0.5)
    experts = Experts.of({**config.to_dict(), "scoring_func": "sigmoid", "topk_method": "noaux_tc"})
    tensors = {f"mlp.{name}": value for name, value in module.state_dict().items() if "experts" not in name}
    tensors |= {f"mlp.{name}": value for name, value in module.shared_experts.named_parameters("shared_experts")}
    for name, part in (("w13_weight", stacked.gate_up_proj), ("w2_weight", stacked.down_proj)):
        apart = experts.apart(f"mlp.experts.{name}", part)
        assert apart is not None
        tensors |= apart
    assert {name: tuple(tensors[name].shape) for name in tensors if "bias" not in name} == experts.needed("mlp", 16)
    made = experts.run(tensors, "mlp", states.view(4, 10, 16))
    torch.testing.assert_close(made.view(40, 16), module(states[None])[0], atol=1e-5, rtol=1e-5)


def test_what_an_engine_widens_experts_by_is_cut_off_where_it_is_zero_and_computed_with_where_it_is_not() -> None:
    experts, states = Experts(2, 1, inner=3, shared=1, scaling=1.0), torch.randn(5, 4)
    narrow = {name: torch.randn(shape) for name, shape in experts.needed("mlp", 4).items()}
    alone = {name: value for name, value in narrow.items() if "gate.weight" in name}

    def served(widen: Callable[[Tensor, int], Tensor]) -> dict[str, Tensor]:
        """As parameters of an engine that makes three rows or columns four."""
        blocks = [[narrow[f"mlp.{block}.{part}.weight"] for part in ("gate_proj", "up_proj", "down_proj")]
                  for block in ("experts.0", "experts.1", "shared_experts")]  # fmt: skip
        fused = [torch.cat([widen(gate, 0), widen(up, 0)]) for gate, up, _ in blocks]
        down = [widen(value, 1) for _, _, value in blocks]
        of_engine = {
            "mlp.experts.w13_weight": torch.stack(fused[:2]), "mlp.experts.w2_weight": torch.stack(down[:2]),
            "mlp.shared_experts.gate_up_proj.weight": fused[2], "mlp.shared_experts.down_proj.weight": down[2],
        }  # fmt: skip
        found = [experts.apart(name, value) for name, value in of_engine.items()]
        return alone | {name: value for part in found if part is not None for name, value in part.items()}

    def widened(value: Tensor, dim: int, fill: float) -> Tensor:
        return torch.cat([value, torch.full_like(value.narrow(dim, 0, 1), fill)], dim)

    due = experts.run(narrow, "mlp", states)
    zeros = served(lambda value, dim: widened(value, dim, 0.0))
    assert {name: value.shape for name, value in zeros.items()} == {name: value.shape for name, value in narrow.items()}
    torch.testing.assert_close(experts.run(zeros, "mlp", states), due)
    one_side = served(lambda value, dim: widened(value, dim, 7.0 * dim))  # the down projections alone hold garbage
    torch.testing.assert_close(experts.run(one_side, "mlp", states), due)
    both = served(lambda value, dim: widened(value, dim, 7.0))
    assert not torch.allclose(experts.run(both, "mlp", states), due)


def test_another_routing_is_refused_by_name() -> None:
    sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    with pytest.raises(ReplayError, match="softmax scores"):
        Experts.of({**sizes, "scoring_func": "softmax", "topk_method": "greedy"})
    with pytest.raises(ReplayError, match="num_experts_per_tok"):
        Experts.of({"n_routed_experts": 4})


def test_a_draft_served_right_has_no_cause() -> None:
    found = searched(material(), normed(), intended(material(), normed()))
    assert (found.harmful, found.harmless, found.repaired, found.served.fidelity) == ([], [], [], 1.0)
    assert found.should is not None and found.should.accept_length > 2.5


def test_norms_under_each_other_s_name_are_told_and_what_the_right_ones_regain() -> None:
    of = material()
    for tensors in (of.filed, of.served):
        tensors |= dict(zip(NORMS, [tensors[name] for name in reversed(NORMS)], strict=True))
    found = searched(of, normed(3), intended(of, normed(3)))
    assert [t.change.cause for t in found.repaired] == ["fc.norm_mismatch"]
    assert found.served.fidelity >= REPRODUCES
    assert found.should is not None and found.best is not None
    assert found.best.accept_length > 1.2 * found.should.accept_length


def test_norms_that_the_engine_exchanges_are_told() -> None:
    found = searched(material(), normed(3), exchanged(intended(material(), normed(3))))
    assert [t.change.cause for t in found.harmful] == ["fc.norm_mismatch"]
    assert found.served.fidelity >= REPRODUCES


def test_a_layer_in_the_target_s_checkpoint_is_described_as_one_that_stands_alone(tmp_path: Path) -> None:
    alone = {
        name.replace("layers.0.", "layers.10."): value
        for name, value in load_file(FOLDER / "model.safetensors").items()
    }
    target = {"model.layers.9.mlp.gate.weight": torch.ones(2, 2), "model.norm.weight": torch.ones(2)}
    own = {"model.layers.10.embed_tokens.weight": torch.zeros(3, 2),
           "model.layers.10.shared_head.head.weight": torch.zeros(3, 2)}  # fmt: skip
    target |= {"model.embed_tokens.weight": torch.ones(3, 2), "lm_head.weight": torch.ones(3, 2)}
    save_file({**alone, **own, **target}, tmp_path / "model.safetensors")
    config = (FOLDER / "config.json").read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 10')
    (tmp_path / "config.json").write_text(config.replace("ForCausalLMNextN", "ForCausalLM"))
    described, exported = (describe(open_checkpoint(folder)) for folder in (tmp_path, FOLDER))
    assert (described.algorithm, described.layers) == (exported.algorithm, exported.layers) == ("NEXTN", 1)
    shared = {"embed_tokens.weight", "lm_head.weight"}
    assert set(described.names) - shared == set(exported.names)
    assert {name: described.names[name] for name in shared} == {
        "embed_tokens.weight": "model.layers.10.embed_tokens.weight",
        "lm_head.weight": "model.layers.10.shared_head.head.weight",
    }
    assert Architecture.of(described) == Architecture.of(exported)
    assert set(needed_tensors(Architecture.of(exported))) <= set(exported.names)


def test_states_of_the_wrong_width_are_refused_by_name() -> None:
    recording = offline.empty(layers=(2, 5, 7), count=1, pair="kimi")
    with pytest.raises(ReplayError, match="eh_proj takes 256 elements, embedding and hidden state have 512"):
        Reference(intended(material(), recording)).extend(recording.sequences[0])
