"""A repaired copy of the pair's own draft holds what the healthy one holds, under the same names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from eagletrace.check import check
from eagletrace.checkpoint import open_checkpoint
from eagletrace.lab.faults.case import draft_folder
from eagletrace.lab.faults.changes import DropKeys, PairFiles, RenameKeys, SetConfig
from eagletrace.lab.faults.checkpoint import Checkpoint
from eagletrace.lab.pair import shipped_pair

FAULTS = (
    RenameKeys("midlayer.", "draft_model.decoder.0."),
    DropKeys("d2t"),
    SetConfig("eagle_config.use_aux_hidden_state", False),
    SetConfig("tie_word_embeddings", True),
)


def test_a_draft_of_four_faults_is_the_healthy_one_after_repair(tmp_path: Path) -> None:
    """What is served is a function of these: `tests/training` serves a repaired copy."""
    healthy, target = draft_folder(shipped_pair(), "default"), shipped_pair() / "target"
    pair = PairFiles(Checkpoint.read(healthy), Checkpoint.read(target))
    for change in FAULTS:
        change.apply(pair)
    broken = pair.draft.write(tmp_path, "draft")
    result = check(broken, target, "sglang==0.5.23", fix=tmp_path / "repaired")
    assert {c.id for c in result.causes} >= {"aux.not_captured", "weights.not_loaded", "lm_head.replaced"}
    assert result.repair is not None and result.repair.verdict == "healthy", result.repair
    right, mended = open_checkpoint(healthy), open_checkpoint(tmp_path / "repaired")
    assert set(mended) == set(right)
    for key in right:
        assert mended.info(key).dtype == right.info(key).dtype
        assert np.array_equal(mended.read(key), right.read(key), equal_nan=True), key
    configs = [json.loads((folder / "config.json").read_text()) for folder in (healthy, tmp_path / "repaired")]
    for config in configs:
        config.setdefault("eagle_config", {}).setdefault("use_aux_hidden_state", True)
        config.setdefault("tie_word_embeddings", False)
    assert configs[0] == configs[1]
