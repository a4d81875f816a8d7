"""A server's run of an exported draft: its tensors with their checksums, and the facts of a healthy server."""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from eagletrace.diff.facts import EXPECTED, Facts
from eagletrace.instrumentations.tensor_stats import checksum
from eagletrace.instrumentations.vocabulary_map import map_facts
from tests.diagnose.synthetic import Synthetic, key, param
from tests.training.trained import LAYERS, target_folder

HIDDEN, VOCAB = 128, 512
CONSUMED = {"d2t": "consumed_as_attribute", "t2d": "ignored_by_engine"}


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def served(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any], rates: tuple[float, ...]) -> Synthetic:
    """The run: nothing is wrong in it, whatever the tensors are."""
    run = Synthetic(rates=rates, rounds=400, requests=20)
    run.keys = {
        name: key(name, list(t.shape), checksum=checksum(t), dtype=str(t.dtype).removeprefix("torch."),
                  fate=CONSUMED.get(name, "loaded"))
        for name, t in tensors.items()
    }  # fmt: skip
    ids = tensors["d2t"] + torch.arange(tensors["d2t"].numel())
    width = len(LAYERS) * HIDDEN
    rope = {"theta": 10000.0, "scaling": "none", "head_dim": 32, "partial": None, "max_position": 1024}
    facts: dict[str, Any] = {
        "draft.config": dict(config), "draft.rope": rope, "hot_token_id": map_facts(ids, VOCAB, tensors["t2d"]),
        "draft.fc": {"in_features": width, "out_features": HIDDEN, "name": "model.fc"},
        "aux.layers_captured": list(LAYERS), "draft.hidden_size": HIDDEN, "draft.draft_vocab_size": ids.numel(),
    }  # fmt: skip
    for name, value in facts.items():
        run.facts[name] = (value, None, "test")
    for name in ("forward.target_hidden_width", "forward.draft_input_width"):
        run.facts[name] = (width, width, "test")
    run.params = {"model.embed_tokens.weight": param(
        "model.embed_tokens.weight", [VOCAB, HIDDEN], [], elements_loaded=0,
        shared_with="target:model.embed_tokens.weight",
    )}  # fmt: skip
    target = load_file(target_folder() / "model.safetensors")["model.embed_tokens.weight"]
    run.params["target"] = param(
        "model.embed_tokens.weight", [VOCAB, HIDDEN], [], side="target", checksum=checksum(target)
    )
    return run


def served_export(folder: Path, rates: tuple[float, ...] = (0.6, 0.6, 0.6)) -> Synthetic:
    """The run of an exported folder."""
    return served(tensors_of(folder), json.loads((folder / "config.json").read_text()), rates)


def facts_of(run: Synthetic) -> Facts:
    """What `read_facts` reads of the run, without its files."""
    values: dict[str, Any] = {name: actual for name, (actual, _, _) in run.facts.items()}
    values |= {f"{name}{EXPECTED}": want for name, (_, want, _) in run.facts.items() if want is not None}
    values |= {f"checkpoint_keys/{name}": row for name, row in run.keys.items()}
    values |= {f"params/{row['side']}/{row['name']}": row for row in run.params.values()}
    return Facts(values, frozenset({"checkpoint_keys", "params"}))
