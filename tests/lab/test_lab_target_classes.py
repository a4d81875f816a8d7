"""The pair's Llama rewritten as a target of another class says the same, layer by layer, as transformers runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM

from eagletrace.lab.faults import case, materialize
from eagletrace.lab.faults.changes import NoEffectError, PairFiles
from eagletrace.lab.faults.checkpoint import Checkpoint
from eagletrace.lab.faults.target_classes import AsGptOss, AsQwen2, AsQwen3
from eagletrace.lab.pair import shipped_pair

TOKENS = torch.randint(2, 512, (1, 64), generator=torch.Generator().manual_seed(0))


def states(folder: Path) -> tuple[str, list[Any], Any]:
    """Class, hidden states between layers and logits on some tokens, in float32."""
    made: Any = AutoModelForCausalLM
    model = made.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        found = model(input_ids=TOKENS, output_hidden_states=True)
    return type(model).__name__, list(found.hidden_states), found.logits


@pytest.mark.parametrize("change", [AsQwen2(), AsQwen3(), AsGptOss()], ids=lambda change: type(change).__name__)
def test_it_says_the_same(change: AsQwen2 | AsQwen3 | AsGptOss, tmp_path: Path) -> None:
    prepared = materialize(replace(case("healthy"), changes=(change,)), shipped_pair(), tmp_path)
    name, hidden, logits = states(prepared.target)
    llama, expected, due = states(shipped_pair() / "target")
    assert (name, llama) == (f"{type(change).__name__.removeprefix('As')}ForCausalLM", "LlamaForCausalLM")
    for mine, theirs in zip(hidden, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-5
    assert torch.equal(logits.argmax(-1), due.argmax(-1))


def test_another_target_is_refused() -> None:
    pair = PairFiles(*(Checkpoint.read(shipped_pair() / part) for part in ("drafts/default", "target")))
    AsQwen2().apply(pair)
    with pytest.raises(NoEffectError, match="no Llama"):
        AsGptOss().apply(pair)
