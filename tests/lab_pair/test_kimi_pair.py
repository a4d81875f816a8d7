"""The Kimi-K2.5 pair: what ships is sound, and what `build_pair` makes has the engine's format."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file

from eagletrace.errors import EagletraceError
from eagletrace.lab.pair import build_pair, shipped_pair
from eagletrace.lab.pair.draft import Draft
from eagletrace.lab.pair.evaluate import LoadedDraft, Wiring, load_draft, load_target, simulate
from eagletrace.lab.pair.measure import PROMPT_LENGTH, held_out_continuations
from eagletrace.lab.pair.nextn import NextNDraft
from eagletrace.lab.pair.settings import KIMI_SIZES, KimiSettings, PairSettings
from eagletrace.lab.pair.target import TargetModel
from eagletrace.lab.pair.variants import KIMI_RECIPES

SHIPPED = shipped_pair("kimi")
AUX = [name for name, recipe in KIMI_RECIPES.items() if recipe.aux_states]
EXPERTS, FIRST_DENSE = KimiSettings().experts, KimiSettings().dense_layers


@pytest.fixture(scope="module")
def greedy() -> tuple[TargetModel, torch.Tensor]:
    """The shipped target and 8 of its greedy continuations, [texts, time]."""
    target = load_target(SHIPPED / "target")
    return target, held_out_continuations(target, SHIPPED / "target" / "tokenizer.json", 8)


@pytest.mark.parametrize("variant", AUX)
def test_the_shipped_drafts_are_accepted_and_miswiring_costs(
    variant: str, greedy: tuple[TargetModel, torch.Tensor]
) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / variant, target.config.num_hidden_layers, kimi=True)
    layers = (4, 6, 8) if variant == "other_layers" else (2, 5, 7)
    assert draft.layers == layers

    def served(wiring: Wiring) -> float:
        return simulate(target, draft, texts, PROMPT_LENGTH, wiring).accept_length

    healthy = served(Wiring())
    assert 2.5 < healthy < 3.9
    assert served(Wiring(skip_fc=True)) < 0.75 * healthy
    assert served(Wiring(layers=tuple(layer - 1 for layer in layers))) < 0.95 * healthy
    if variant == "latent_full_vocab":
        assert served(Wiring(target_head=True)) < 0.6 * healthy


def test_the_layer_of_multi_token_prediction_is_accepted_and_needs_its_norms_and_order(
    greedy: tuple[TargetModel, torch.Tensor],
) -> None:
    target, texts = greedy

    def served(draft: LoadedDraft) -> float:
        return simulate(target, draft, texts, PROMPT_LENGTH).accept_length

    head = target.lm_head.weight
    assert served(load_draft(SHIPPED / "drafts" / "multi_token", 10, target_head=head)) > 2.5
    exchanged, turned = (load_draft(SHIPPED / "drafts" / "multi_token", 10, target_head=head) for _ in range(2))
    module: Any = exchanged.module
    module.enorm, module.hnorm = module.hnorm, module.enorm
    assert served(exchanged) < 2
    module = turned.module
    module.eh_proj.weight.copy_(module.eh_proj.weight.roll(target.config.hidden_size, 1))  # hidden state first
    assert served(turned) < 1.3
    with pytest.raises(EagletraceError, match="drafts with the target's head"):
        load_draft(SHIPPED / "drafts" / "multi_token", 10)


def test_the_layer_of_multi_token_prediction_has_the_engine_s_format() -> None:
    folder = SHIPPED / "drafts" / "multi_token"
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    hidden = config["hidden_size"]
    assert config["architectures"] == ["DeepseekV3ForCausalLMNextN"]
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (1, 1)
    assert all(name.startswith("model.layers.0.") for name in tensors)
    assert tensors["model.layers.0.eh_proj.weight"].shape == (hidden, 2 * hidden)
    assert tensors["model.layers.0.self_attn.q_a_proj.weight"].shape == (config["q_lora_rank"], hidden)
    assert {f"model.layers.0.{name}.weight" for name in ("enorm", "hnorm", "shared_head.norm")} <= set(tensors)
    assert f"model.layers.0.mlp.experts.{EXPERTS - 1}.down_proj.weight" in tensors
    assert not any("embed_tokens" in name or "head.head" in name for name in tensors)


@pytest.mark.parametrize("variant", AUX)
def test_a_shipped_draft_has_the_engine_s_format(variant: str) -> None:
    assert_format(SHIPPED / "drafts" / variant, variant)


def assert_format(folder: Path, variant: str) -> None:
    recipe = KIMI_RECIPES[variant]
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    hidden, vocabulary, draft_vocabulary = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    assert tensors["fc.weight"].shape == (hidden, 3 * hidden)
    assert ("d2t" in tensors) == ("t2d" in tensors) == (draft_vocabulary < vocabulary) == (not recipe.full_vocabulary)
    if recipe.latent:
        rows = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        assert config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
        assert tensors["layers.0.self_attn.kv_a_proj_with_mqa.weight"].shape == (rows, 2 * hidden)
        assert config["rope_scaling"]["type"] == "yarn"
    else:
        assert config["architectures"] == ["LlamaForCausalLMEagle3"]
        assert tensors["midlayer.self_attn.q_proj.weight"].shape == (hidden, 2 * hidden)
    ids = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    assert (ids is not None) == recipe.other_layers
    assert ids is None or (ids == config["eagle_aux_hidden_state_layer_ids"] and ids[0] != 1)  # read as they are


def test_the_shipped_target_is_wrapped_and_has_experts() -> None:
    config = json.loads((SHIPPED / "target" / "config.json").read_text())
    names = load_file(SHIPPED / "target" / "model.safetensors")
    assert config["architectures"] == ["KimiK25ForConditionalGeneration"] and config["language_model_only"] is True
    assert all(name.startswith("language_model.") for name in names)
    for layer in range(config["text_config"]["num_hidden_layers"]):
        part = f"language_model.model.layers.{layer}.mlp.experts.{EXPERTS - 1}.down_proj.weight"
        assert (part in names) == (layer >= FIRST_DENSE)
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 8e6


def test_a_pair_can_be_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained so shortly it only has its format; that the training works is seen of the one that ships."""
    short = replace(KIMI_SIZES["small"], target_steps=10, draft_steps=5, rollouts=16)
    monkeypatch.setitem(KIMI_SIZES, "short", short)
    said: list[str] = []
    build_pair(tmp_path, seed=3, size="short", progress=said.append, variants=("latent",), pair="kimi")  # pyright: ignore[reportArgumentType]
    assert_format(tmp_path / "drafts" / "latent", "latent")
    report = json.loads((tmp_path / "pair.json").read_text())
    assert report["command"].startswith("python -m eagletrace.lab.pair.build OUT --pair kimi --seed 3")
    assert report["measured"]["drafts"]["latent"]["accept_length"] >= 1
    assert json.loads((tmp_path / "target" / "config.json").read_text())["text_config"]["num_hidden_layers"] == 8


def test_latent_attention_needs_its_sizes() -> None:
    with pytest.raises(EagletraceError, match="--pair kimi"):
        Draft(PairSettings(), 384, latent=True)
    with pytest.raises(EagletraceError, match="--pair kimi"):
        NextNDraft(PairSettings(), torch.zeros(512, 128))
