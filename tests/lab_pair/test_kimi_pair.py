"""The Kimi-K2.5 pair: what ships is sound, and what `build_pair` makes has the engine's format."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file

from eagletrace.errors import EagletraceError
from eagletrace.lab.pair import build_pair, shipped_pair
from eagletrace.lab.pair.draft import Draft
from eagletrace.lab.pair.evaluate import Wiring, load_draft, load_target, simulate
from eagletrace.lab.pair.measure import PROMPT_LENGTH, held_out_continuations
from eagletrace.lab.pair.settings import KimiSettings, PairSettings
from eagletrace.lab.pair.target import TargetModel
from eagletrace.lab.pair.variants import KIMI_RECIPES

SHIPPED = shipped_pair("kimi")
EXPERTS, FIRST_DENSE = KimiSettings().experts, KimiSettings().dense_layers


@pytest.fixture(scope="module")
def greedy() -> tuple[TargetModel, torch.Tensor]:
    """The shipped target and 8 of its greedy continuations, [texts, time]."""
    target = load_target(SHIPPED / "target")
    return target, held_out_continuations(target, SHIPPED / "target" / "tokenizer.json", 8)


@pytest.mark.parametrize("variant", KIMI_RECIPES)
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


@pytest.mark.parametrize("variant", KIMI_RECIPES)
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


@pytest.mark.slow
def test_a_pair_can_be_built_again(tmp_path: Path) -> None:
    said: list[str] = []
    build_pair(tmp_path, seed=3, size="small", progress=said.append, variants=("latent",), pair="kimi")
    assert_format(tmp_path / "drafts" / "latent", "latent")
    report = json.loads((tmp_path / "pair.json").read_text())
    assert report["command"].startswith("python -m eagletrace.lab.pair.build OUT --pair kimi --seed 3")
    assert report["measured"]["drafts"]["latent"]["accept_length"] > 1.3
    assert json.loads((tmp_path / "target" / "config.json").read_text())["text_config"]["num_hidden_layers"] == 8


def test_latent_attention_needs_its_sizes() -> None:
    with pytest.raises(EagletraceError, match="--pair kimi"):
        Draft(PairSettings(), 384, latent=True)
