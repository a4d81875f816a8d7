"""Drafts of other shapes than the lab's: MLA against transformers' DeepSeek-V3, flags against speculators."""
# The packages compared with are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from eagletrace.checkpoint import describe, open_checkpoint  # noqa: E402
from eagletrace.lab.pair import shipped_pair  # noqa: E402
from eagletrace.replay.architecture import Architecture  # noqa: E402
from eagletrace.replay.material import values  # noqa: E402
from eagletrace.replay.recipe import Recipe  # noqa: E402
from eagletrace.replay.recorded import Sequence  # noqa: E402
from eagletrace.replay.reference import Reference  # noqa: E402
from eagletrace.replay.result import ReplayError  # noqa: E402
from tests.replay import offline  # noqa: E402

HIDDEN, VOCAB, N = 32, 64, 40
MLA: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_size": HIDDEN, "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "intermediate_size": 48, "vocab_size": VOCAB, "draft_vocab_size": VOCAB, "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "max_position_embeddings": 4096,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0,
        "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}  # fmt: skip


def random(*shape: int) -> Any:
    return torch.randn(*shape) * shape[-1] ** -0.5


def mla_tensors() -> dict[str, Any]:
    heads, nope, rope, value = 4, 12, 8, 10
    attention = {
        "q_a_proj": random(24, 2 * HIDDEN), "q_b_proj": random(heads * (nope + rope), 24),
        "kv_a_proj_with_mqa": random(16 + rope, 2 * HIDDEN), "kv_b_proj": random(heads * (nope + value), 16),
        "o_proj": random(HIDDEN, heads * value), "q_a_layernorm": torch.rand(24) + 0.5,
        "kv_a_layernorm": torch.rand(16) + 0.5,
    }  # fmt: skip
    mlp = {"gate_proj": random(48, HIDDEN), "up_proj": random(48, HIDDEN), "down_proj": random(HIDDEN, 48)}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return {
        "fc.weight": random(HIDDEN, 3 * HIDDEN), "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(VOCAB, HIDDEN),
        **{f"midlayer.self_attn.{k}.weight": v for k, v in attention.items()},
        **{f"midlayer.mlp.{k}.weight": v for k, v in mlp.items()},
        **{f"midlayer.{name}.weight": torch.rand(HIDDEN) + 0.5 for name in norms},
    }  # fmt: skip


def recipe_of(folder: Path, embedding: Any) -> Recipe:
    files = open_checkpoint(folder)
    draft = describe(files)
    tensors = {name: values(files, key) for name, key in draft.names.items()}
    return Recipe(Architecture.of(draft), tensors, embedding, tensors["lm_head.weight"], None)


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def sequence(width: int) -> Sequence:
    return Sequence(0, torch.randint(0, VOCAB, (N + 1,)), 4, 0, torch.randn(N, width), {}, [])


@pytest.mark.parametrize("scaling", [None, YARN])
def test_latent_attention_is_that_of_deepseek(tmp_path: Path, scaling: dict[str, Any] | None) -> None:
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    torch.manual_seed(3)
    rope = {"rope_type": "default", **(scaling or {}), "rope_theta": 50000.0}
    folder = write(tmp_path / "draft", {**MLA, "rope_parameters": rope}, mla_tensors())
    reference = Reference(recipe_of(folder, random(VOCAB, HIDDEN)))
    sizes = {k: MLA[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    config = DeepseekV3Config(
        **sizes, hidden_size=2 * HIDDEN, num_attention_heads=4, num_key_value_heads=4, rope_parameters=rope,
        max_position_embeddings=4096, rope_interleave=True,
    )  # fmt: skip
    eager: Any = config
    eager._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, 0).eval()
    own = {k.removeprefix("layers.0.self_attn."): v for k, v in reference.recipe.tensors.items() if "self_attn" in k}
    kept: list[Any] = []
    theirs.load_state_dict({k: v for k, v in own.items() if not k.startswith("o_proj")}, strict=False)
    theirs.o_proj.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    states, positions = torch.randn(N, 2 * HIDDEN), torch.arange(N) + 100
    with torch.inference_mode():
        query, key, value = reference._project(0, states, positions)  # pyright: ignore[reportPrivateUsage]
        mask = torch.ones(N, N, dtype=torch.bool).tril()
        mine = reference._attend(query, key, value, mask)  # pyright: ignore[reportPrivateUsage]
        cosine, sine = DeepseekV3RotaryEmbedding(config)(states[None], positions[None])
        theirs(states[None], (cosine, sine), torch.where(mask, 0.0, -torch.inf)[None, None])
    assert torch.allclose(mine, kept[0][0], atol=1e-5)


def test_a_latent_draft_drafts_chains_and_trees(tmp_path: Path) -> None:
    """The steps of a chain see what a longer sequence of the same tokens and states would see."""
    torch.manual_seed(4)
    reference = Reference(recipe_of(write(tmp_path / "draft", MLA, mla_tensors()), random(VOCAB, HIDDEN)))
    given = sequence(3 * HIDDEN)
    with torch.inference_mode():
        extended = reference.extend(given)
        drafted = reference.draft(given, extended, torch.tensor([20]), 2, 1, 2)
        fused = torch.cat([extended.fused[:21], extended.out[20:21]])
        tokens = torch.cat([given.tokens[1:22], drafted.tokens[0, :1]])
        residual, states = reference._enter(0, reference.embed(tokens), fused)  # pyright: ignore[reportPrivateUsage]
        query, key, value = reference._project(0, states, torch.arange(22))  # pyright: ignore[reportPrivateUsage]
        mixed = reference._attend(query[-1:], key, value, torch.ones(1, 22, dtype=torch.bool))  # pyright: ignore[reportPrivateUsage]
        second = reference.logits(reference._rest(0, residual[-1:], mixed)).argmax()  # pyright: ignore[reportPrivateUsage]
    assert drafted.tokens[0, 1] == second


def test_a_latent_draft_without_a_rank_is_refused(tmp_path: Path) -> None:
    config = {k: v for k, v in MLA.items() if k != "v_head_dim"}
    with pytest.raises(ReplayError, match="lacks v_head_dim"):
        recipe_of(write(tmp_path / "draft", config, mla_tensors()), random(VOCAB, HIDDEN))


FLAGS: list[dict[str, Any]] = [
    {}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"fc_norm": True}, {"norm_output": True},
    {"num_hidden_layers": 2},
]  # fmt: skip


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: next(iter(f), "plain"))
def test_first_drafts_are_those_of_speculators(tmp_path: Path, flags: dict[str, Any]) -> None:
    """The same random weights in speculators' own model, saved by it and read as its checkpoint."""
    core = pytest.importorskip("speculators.models.eagle3.core")
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    torch.manual_seed(5)
    flags = dict(flags)
    layer = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
        head_dim=8, num_hidden_layers=flags.pop("num_hidden_layers", 1), max_position_embeddings=512, rms_norm_eps=1e-6,
    )  # fmt: skip
    eager: Any = layer
    eager._attn_implementation = "eager"
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    settings = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig()], default_proposal_method="greedy",
        verifier=verifier,
    )  # fmt: skip
    config = core.Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=VOCAB, speculators_config=settings, **flags
    )
    model = core.Eagle3DraftModel(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.rand_like(value) + 0.5 if "norm" in name else random(*value.shape))
    folder = write(tmp_path / "draft", json.loads(config.to_json_string()), dict(model.state_dict()))
    given = sequence(3 * HIDDEN)
    with torch.inference_mode():
        tokens = given.tokens[None, 1 : N + 1]
        expected = model(given.captured[None], tokens, torch.zeros(1, N, dtype=torch.long), ttt_steps=1)[0][0]
        recipe = recipe_of(folder, model.embed_tokens.weight.detach())
        reference = Reference(with_speculators_norms(recipe))
        mine = reference.logits(reference.extend(given).out).argmax(-1)
    assert mine.tolist() == expected.tolist()


def with_speculators_norms(recipe: Recipe) -> Recipe:
    """Later layers of speculators call the norm of the hidden state `input_layernorm`."""
    names = {
        f"layers.{n}.hidden_norm.weight": f"layers.{n}.input_layernorm.weight"
        for n in range(1, recipe.architecture.layers)
    }
    return recipe.with_tensors({new: recipe.tensors[old] for new, old in names.items()})


def test_a_draft_of_the_lab_in_speculators_keys_is_the_same_draft(tmp_path: Path) -> None:
    source = shipped_pair() / "drafts" / "default"
    config = json.loads((source / "config.json").read_text())
    tensors = {k.replace("midlayer.", "layers.0."): v for k, v in load_file(source / "model.safetensors").items()}
    names = describe(open_checkpoint(write(tmp_path / "draft", config, tensors))).names
    assert set(names) == set(offline.material().filed)
