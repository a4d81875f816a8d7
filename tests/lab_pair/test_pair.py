"""The pair: what ships is sound, and what `build_pair` makes is sound, useful and repeatable."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from eagletrace.errors import UnknownNameError
from eagletrace.lab.pair import VARIANTS, build_pair, prompts, shipped_pair
from eagletrace.lab.pair.evaluate import Wiring, load_draft, load_target, simulate
from eagletrace.lab.pair.measure import PROMPT_LENGTH, held_out_continuations, measure_draft

SHIPPED = shipped_pair()


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


@pytest.mark.slow
def test_the_same_seed_gives_the_same_tensors(small: Path, tmp_path: Path) -> None:
    again = build_pair(tmp_path, seed=3, size="small", variants=("default",))
    for part in ("target", "drafts/default"):
        first, second = (load_file(folder / part / "model.safetensors") for folder in (small, again))
        assert first.keys() == second.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []
        assert (small / part / "config.json").read_text() == (again / part / "config.json").read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_shipped_draft_has_the_engine_s_format(variant: str) -> None:
    folder = SHIPPED / "drafts" / variant
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    hidden, vocabulary, draft_vocabulary = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    assert tensors["fc.weight"].shape == (hidden, 3 * hidden)
    assert tensors["lm_head.weight"].shape == (draft_vocabulary, hidden)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (hidden, 2 * hidden)
    assert all(value.dtype == torch.bfloat16 for name, value in tensors.items() if name not in ("d2t", "t2d"))
    assert ("embed_tokens.weight" in tensors) == (variant == "own_embeddings")
    assert ("eagle_config" in config) == (variant == "other_layers")
    assert ("d2t" in tensors) == ("t2d" in tensors) == (draft_vocabulary < vocabulary) == (variant != "full_vocab")


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "full_vocab"])
def test_d2t_holds_ascending_offsets_that_agree_with_t2d(variant: str) -> None:
    tensors = load_file(SHIPPED / "drafts" / variant / "model.safetensors")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert (ids.diff() > 0).all()
    assert torch.equal(ids, tensors["t2d"].nonzero().flatten())
    assert tensors["d2t"].count_nonzero() > len(ids) / 2


def test_the_shipped_drafts_are_accepted_and_miswiring_costs() -> None:
    target = load_target(SHIPPED / "target")
    texts = held_out_continuations(target, SHIPPED / "target" / "tokenizer.json", 16)
    for variant in VARIANTS:
        measured = measure_draft(target, SHIPPED / "drafts" / variant, texts)
        healthy, wrong, shifts = measured.accept_length, measured.served_wrongly, measured.layers_shifted_by
        assert 2.5 < healthy < 3.9, variant
        assert wrong["target's normed output instead of fc"] < 0.7 * healthy
        assert max(shifts["3"], shifts["-3"]) < 0.75 * healthy, variant
        if variant == "other_layers":
            assert wrong["default layers"] < 0.8 * healthy
        if variant == "own_embeddings":
            assert wrong["target's embeddings"] < 0.6 * healthy
        if variant == "full_vocab":
            assert wrong["target's head"] < 0.6 * healthy


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
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 6.5e6
