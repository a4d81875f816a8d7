"""The pair: what ships is sound, and what `build_pair` makes is sound, useful and repeatable."""
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
from transformers import AutoTokenizer, LlamaForCausalLM

from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.lab.pair import VARIANTS, build_pair, prompts, shipped_pair
from eagletrace.lab.pair.draft import AnchorCache
from eagletrace.lab.pair.evaluate import Wiring, load_draft, load_target, simulate
from eagletrace.lab.pair.measure import PROMPT_LENGTH, held_out_continuations, measure_draft, shifted
from eagletrace.lab.pair.rollout import states_of
from eagletrace.lab.pair.settings import SIZES
from eagletrace.lab.pair.target import TargetModel
from eagletrace.lab.pair.tokenizer import BYTE_TOKENS
from eagletrace.lab.pair.variants import RECIPES

SHIPPED = shipped_pair()
FEATURE = [name for name in VARIANTS if RECIPES[name].feature]
EAGLE3 = [name for name in VARIANTS if RECIPES[name].aux_states]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_pair(tmp_path_factory.mktemp("pair"), seed=3, size="small", variants=("default",))


@pytest.mark.slow
def test_a_rebuilt_pair_drafts_what_its_target_says(small: Path) -> None:
    target = load_target(small / "target")
    texts = held_out_continuations(target, small / "target" / "tokenizer.json", 16)
    draft = load_draft(small / "drafts" / "default", target.config.num_hidden_layers)
    healthy = simulate(target, draft, texts, PROMPT_LENGTH).accept_length
    assert healthy > 1.5
    assert simulate(target, draft, texts, PROMPT_LENGTH, Wiring(layers=(7, 7, 7))).accept_length < healthy


def test_the_same_seed_gives_the_same_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the trainings are."""
    short = {"target_steps": 12, "draft_steps": 6, "rollouts": 16}
    monkeypatch.setitem(SIZES, "short", replace(SIZES["small"], **short))
    one, again = (
        build_pair(tmp_path / name, seed=3, size="short", variants=("default",))  # pyright: ignore[reportArgumentType]
        for name in ("one", "again")
    )
    for part in ("target", "drafts/default"):
        first, second = (load_file(folder / part / "model.safetensors") for folder in (one, again))
        assert first.keys() == second.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []
        assert (one / part / "config.json").read_text() == (again / part / "config.json").read_text()


@pytest.mark.parametrize("variant", EAGLE3)
def test_a_shipped_draft_has_the_engine_s_format(variant: str) -> None:
    folder = SHIPPED / "drafts" / variant
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    hidden, vocabulary, draft_vocabulary = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    recipe = RECIPES[variant]
    states, first = (4 if recipe.four_states else 3), "midlayer" if recipe.decoder_layers == 1 else "layers.0"
    assert tensors["fc.weight"].shape == (hidden, states * hidden)
    assert config.get("num_aux_hidden_states", 3) == states
    assert tensors["lm_head.weight"].shape == (draft_vocabulary, hidden)
    assert tensors[f"{first}.self_attn.q_proj.weight"].shape == (hidden, 2 * hidden)
    assert config["num_hidden_layers"] == recipe.decoder_layers == sum("q_proj" in name for name in tensors)
    assert all(value.dtype == torch.bfloat16 for name, value in tensors.items() if name not in ("d2t", "t2d"))
    assert sum("fc_norm" in name for name in tensors) == (states if config.get("fc_norm", False) else 0)
    assert config.get("fc_norm", False) == recipe.fc_norm
    assert ("embed_tokens.weight" in tensors) == (recipe.own_embeddings or recipe.other_target)
    assert ("eagle_config" in config) == (recipe.other_layers or recipe.early_layers or recipe.four_states)
    assert ("input_norm.weight" in tensors) == config.get("norm_before_fc", False) == recipe.norm_before_fc
    assert config.get("norm_output", False) == recipe.norm_output
    assert config["rope_theta"] == (recipe.rope_theta or 10000.0)
    assert (folder / "model.safetensors").stat().st_size < 1e6
    assert ("d2t" in tensors) == ("t2d" in tensors) == (draft_vocabulary < vocabulary) == (variant != "full_vocab")


@pytest.mark.parametrize("variant", [name for name in EAGLE3 if name != "full_vocab"])
def test_d2t_holds_ascending_offsets_that_agree_with_t2d(variant: str) -> None:
    tensors = load_file(SHIPPED / "drafts" / variant / "model.safetensors")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert (ids.diff() > 0).all()
    assert torch.equal(ids, tensors["t2d"].nonzero().flatten())
    assert tensors["d2t"].count_nonzero() > len(ids) / 2


@pytest.mark.parametrize("variant", FEATURE)
def test_a_shipped_eagle_1_draft_has_the_engine_s_format(variant: str) -> None:
    folder = SHIPPED / "drafts" / variant
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    hidden = config["hidden_size"]
    assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert not {"draft_vocab_size", "bias", "eagle_config"} & set(config)  # SGLang takes `bias` for attention's
    assert tensors["fc.weight"].shape == (hidden, 2 * hidden)
    assert tensors["layers.0.self_attn.q_proj.weight"].shape == (hidden, hidden)
    assert ("fc.bias" in tensors) == RECIPES[variant].fc_bias
    assert not {"norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"} & set(tensors)
    assert "layers.0.input_layernorm.weight" not in tensors
    assert all(value.dtype == torch.bfloat16 for value in tensors.values())
    assert (folder / "model.safetensors").stat().st_size < 1e6


@pytest.fixture(scope="module")
def greedy() -> tuple[TargetModel, torch.Tensor]:
    """The shipped target and 16 of its greedy continuations, [texts, time]."""
    target = load_target(SHIPPED / "target")
    return target, held_out_continuations(target, SHIPPED / "target" / "tokenizer.json", 16)


@pytest.mark.parametrize(
    ("variant", "own"),
    [
        ("default", None),
        ("full_vocab", (Wiring(target_head=True), 0.6)),
        ("other_layers", (Wiring(layers=SIZES["full"].default_layers), 0.8)),
        ("own_embeddings", (Wiring(target_embeddings=True), 0.6)),
    ],
)
def test_the_shipped_drafts_are_accepted_and_miswiring_costs(
    variant: str, own: tuple[Wiring, float] | None, greedy: tuple[TargetModel, torch.Tensor]
) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / variant, target.config.num_hidden_layers)

    def served(wiring: Wiring) -> float:
        return simulate(target, draft, texts[:8], PROMPT_LENGTH, wiring).accept_length

    healthy = served(Wiring())
    assert 2.5 < healthy < 3.9
    assert served(Wiring(skip_fc=True)) < 0.7 * healthy
    for shift in (3, -3):
        assert served(Wiring(layers=shifted(draft.layers, shift, 12))) < 0.75 * healthy
    if own is not None:
        assert served(own[0]) < own[1] * healthy


@pytest.mark.parametrize("variant", FEATURE)
def test_an_eagle_1_draft_is_accepted_and_needs_the_normed_state_and_its_order(
    variant: str, greedy: tuple[TargetModel, torch.Tensor]
) -> None:
    target, texts = greedy
    measured = measure_draft(target, SHIPPED / "drafts" / variant, texts)
    assert 2.5 < measured.accept_length < 3.9
    assert measured.served_wrongly["target's states before its final norm"] < 1.3
    draft = load_draft(SHIPPED / "drafts" / variant, 12, target_head=target.lm_head.weight)
    module: Any = draft.module
    module.fc.weight.copy_(module.fc.weight.roll(target.config.hidden_size, 1))  # hidden state first
    assert simulate(target, draft, texts, PROMPT_LENGTH).accept_length < 1.3


def test_the_draft_model_of_its_own_is_accepted_and_is_a_whole_llama(greedy: tuple[TargetModel, torch.Tensor]) -> None:
    target, texts = greedy
    folder = SHIPPED / "drafts" / "standalone"
    draft, config = load_draft(folder, 12), json.loads((folder / "config.json").read_text())
    assert 1.8 < simulate(target, draft, texts, PROMPT_LENGTH).accept_length < 3.9
    assert (folder / "model.safetensors").stat().st_size < 1e6
    whole = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert whole.config.num_hidden_layers == config["num_hidden_layers"] == RECIPES["standalone"].standalone_layers
    with torch.no_grad():  # the engine's rows: the tokens from the second on, at positions from 0
        logits = whole(input_ids=texts[:2, 1:60]).logits
        own = draft.module.embed_tokens
        assert own is not None
        _, mine = draft.module.step(own.weight[texts[:2, 1:60]], torch.empty(0), AnchorCache())
    torch.testing.assert_close(mine, logits, atol=1e-3, rtol=1e-3)


def test_an_eagle_1_draft_is_not_read_without_the_target_s_head() -> None:
    with pytest.raises(EagletraceError, match="drafts with the target's head"):
        load_draft(SHIPPED / "drafts" / "eagle1", 12)


def test_the_draft_on_early_layers_needs_them_and_its_own_rotary_base(
    greedy: tuple[TargetModel, torch.Tensor],
) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / "early_layers", target.config.num_hidden_layers)
    healthy = simulate(target, draft, texts, PROMPT_LENGTH, Wiring(steps=5)).accept_length
    assert healthy > 3.5
    assert simulate(target, draft, texts, PROMPT_LENGTH, Wiring(steps=5, layers=(2, 6, 9))).accept_length < 2
    module: Any = draft.module
    attention: Any = module.midlayer.self_attn
    attention.settings = replace(attention.settings, rope_theta=10000.0)
    assert simulate(target, draft, texts, PROMPT_LENGTH, Wiring(steps=5)).accept_length < 0.95 * healthy


@pytest.mark.parametrize("variant", ["normed_states", "normed_feedback", "eagle31"])
def test_a_draft_trained_with_a_norm_needs_it(variant: str, greedy: tuple[TargetModel, torch.Tensor]) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / variant, target.config.num_hidden_layers)
    healthy = simulate(target, draft, texts, PROMPT_LENGTH).accept_length
    assert healthy > 2.8
    without = simulate(target, draft, texts, PROMPT_LENGTH, Wiring(ignore_norms=True)).accept_length
    assert without < 0.8 * healthy
    assert simulate(target, draft, texts, PROMPT_LENGTH).accept_length == healthy


def test_a_draft_of_two_layers_needs_the_second(greedy: tuple[TargetModel, torch.Tensor]) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / "eagle31", target.config.num_hidden_layers)
    healthy = simulate(target, draft, texts, PROMPT_LENGTH).accept_length
    module: Any = draft.module
    del module.layers["1"]
    assert simulate(target, draft, texts, PROMPT_LENGTH).accept_length < 0.8 * healthy


@pytest.mark.parametrize(
    ("variant", "low", "high"),
    [("few_steps", 1.1, 1.6), ("late_labels", 1.0, 1.4), ("no_bytes", 1.3, 1.9), ("other_target", 1.0, 1.1)],
)
def test_drafts_that_were_trained_wrongly_are_rejected(
    variant: str, low: float, high: float, greedy: tuple[TargetModel, torch.Tensor]
) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / variant, target.config.num_hidden_layers)
    served = simulate(target, draft, texts, PROMPT_LENGTH, Wiring(target_embeddings=True)).accept_length
    assert low < served < high


@torch.no_grad()
def first_drafts(target: TargetModel, variant: str, texts: torch.Tensor) -> torch.Tensor:
    """The token that the draft puts two positions after each anchor, [texts, time - 3]."""
    draft = load_draft(SHIPPED / "drafts" / variant, target.config.num_hidden_layers)
    states = torch.cat([states_of(target, texts)[0][layer] for layer in draft.layers], -1)[:, :-3]
    embeddings = target.model.embed_tokens.weight[texts[:, 1:-2]]
    _, logits = draft.module.step(embeddings, draft.module.fuse(states), AnchorCache())
    return draft.token_of[logits.argmax(-1)]


def test_late_labels_are_right_one_position_later(greedy: tuple[TargetModel, torch.Tensor]) -> None:
    target, texts = greedy
    drafted = first_drafts(target, "late_labels", texts)
    answer = slice(PROMPT_LENGTH, None)
    assert (drafted == texts[:, 2:-1])[:, answer].float().mean() < 0.2
    assert (drafted == texts[:, 3:])[:, answer].float().mean() > 0.5


def test_the_vocabulary_without_bytes_misses_many_tokens(greedy: tuple[TargetModel, torch.Tensor]) -> None:
    target, texts = greedy
    draft = load_draft(SHIPPED / "drafts" / "no_bytes", target.config.num_hidden_layers)
    assert draft.token_of.min() >= BYTE_TOKENS
    outside = ~torch.isin(texts[:, PROMPT_LENGTH:], draft.token_of)
    assert 0.3 < outside.float().mean() < 0.7


def test_the_draft_of_another_target_carries_that_target_s_embeddings() -> None:
    frozen = load_file(SHIPPED / "drafts" / "other_target" / "model.safetensors")["embed_tokens.weight"].float()
    own = load_file(SHIPPED / "target" / "model.safetensors")["model.embed_tokens.weight"].float()
    assert frozen.shape == own.shape
    # Two trainings: not the same values, and no rotation of them either, which would keep all inner products.
    assert torch.nn.functional.cosine_similarity(frozen, own).abs().mean() < 0.2
    assert torch.corrcoef(torch.stack([(frozen @ frozen.T).flatten(), (own @ own.T).flatten()]))[0, 1] < 0.9


def test_both_transformers_can_load_the_tokenizer() -> None:
    config = json.loads((SHIPPED / "target" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "target")
    source = "def parse(self, text):\n    return text  # naïve\n"
    assert tokenizer.decode(tokenizer(source).input_ids) == source


def test_prompts_are_deterministic_and_of_varied_length() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "target")
    texts = prompts(40, seed=5)
    assert texts == prompts(40, seed=5) != prompts(40, seed=6)
    lengths = [len(tokenizer(text).input_ids) for text in texts]
    assert min(lengths) >= 8 and max(lengths) <= 120
    assert len(set(lengths)) > 10


def test_an_unknown_variant_is_named_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean full_vocab"):
        build_pair(tmp_path, variants=("fullvocab",))
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_pair_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 13e6
