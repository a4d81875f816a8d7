"""A repaired copy is served: with the healthy draft's accept length, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from eagletrace.check import check
from eagletrace.lab.engines import EngineMissingError, engine_python
from eagletrace.lab.faults.case import draft_folder
from eagletrace.lab.faults.changes import DropKeys, PairFiles, RenameKeys, SetConfig
from eagletrace.lab.faults.checkpoint import Checkpoint
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
PAIR = Path(__file__).resolve().parents[2] / "eagletrace" / "lab" / "pair" / "data" / "llama"
PROMPTS = ("def parse(self, text):\n    ", "import re\n\nclass ", "for name in ", "    return self.")
LOAD = LoadOptions(prompts=PROMPTS, max_new_tokens=48, concurrency=1)
FAULTS = (
    RenameKeys("midlayer.", "draft_model.decoder.0."),
    DropKeys("d2t"),
    SetConfig("eagle_config.use_aux_hidden_state", False),
    SetConfig("tie_word_embeddings", True),
)


def served(draft: Path, folder: Path) -> LabResult:
    try:
        engine_python("0.5.23")
    except EngineMissingError as error:
        pytest.skip(str(error))
    return lab_run(replace(ServeOptions(tracing="off"), draft=draft, dir=folder), LOAD)


def test_a_draft_of_four_faults_serves_as_the_healthy_one_after_repair(tmp_path: Path) -> None:
    healthy, target = draft_folder(PAIR, "default"), PAIR / "target"
    pair = PairFiles(Checkpoint.read(healthy), Checkpoint.read(target))
    for change in FAULTS:
        change.apply(pair)
    broken = pair.draft.write(tmp_path, "draft")
    result = check(broken, target, "sglang==0.5.23", fix=tmp_path / "repaired")
    assert {c.id for c in result.causes} >= {"aux.not_captured", "weights.not_loaded", "lm_head.replaced"}
    assert result.repair is not None and result.repair.verdict == "healthy", result.repair
    right, mended = served(healthy, tmp_path / "a"), served(tmp_path / "repaired", tmp_path / "b")
    assert not mended.engine_died, mended.reason
    assert [a.output_ids for a in mended.answers] == [a.output_ids for a in right.answers]
    assert mended.accept_length == right.accept_length
    assert right.accept_length is not None and right.accept_length > 1.5
