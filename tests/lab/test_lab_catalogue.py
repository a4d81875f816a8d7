"""The catalogue is valid data, complete, and each entry's change is what its title says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eagletrace.errors import UnknownNameError
from eagletrace.lab.engines import engine
from eagletrace.lab.faults import CASES, CONTROLS, FAULTS, case, materialize
from eagletrace.lab.faults.checkpoint import Checkpoint

FAULT_NAMES = {
    "layer-keys-0.5.9", "unknown-prefix", "no-lm-head", "no-v-proj", "d2t-absolute", "d2t-zero", "d2t-missing",
    "d2t-partly-wrong", "eagle3-served-as-eagle", "use-aux-false", "layer-ids-shifted", "layer-ids-unread-key",
    "target-too-shallow", "tied-embeddings", "head-overwritten", "own-embeddings-replaced", "simulated-acceptance",
}  # fmt: skip
CONTROL_NAMES = {
    "healthy", "layer-keys-0.5.23", "t2d-disagrees", "random-embed", "extra-key", "full-vocab", "no-final-norm",
    "unread-ids-equal-defaults",
}  # fmt: skip


def test_every_fault_and_control_is_there() -> None:
    assert {entry.name for entry in FAULTS} >= FAULT_NAMES
    assert {entry.name for entry in CONTROLS} >= CONTROL_NAMES
    assert len(CASES) == len(FAULTS) + len(CONTROLS)


@pytest.mark.parametrize("entry", CASES.values(), ids=lambda entry: entry.name)
def test_an_entry_is_complete(entry: object) -> None:
    from eagletrace.lab.faults import Case

    assert isinstance(entry, Case)
    assert re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", entry.name)
    assert entry.title
    assert entry.worker in engine(entry.engine).workers
    if entry.kind == "fault":
        assert 1 <= len(entry.expected) <= 2
        assert entry.case
    else:
        assert entry.expected == ()
    assert set(entry.public()) == {"name", "kind", "pair", "engine", "worker", "expected", "case", "title"}
    json.dumps(entry.public())


def test_expected_causes_exist() -> None:
    causes = pytest.importorskip("eagletrace.diagnose.causes")
    known = set(causes.CAUSES)
    assert {cause for entry in FAULTS for cause in entry.expected} <= known


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="d2t-absolute"):
        case("d2t-absolut")


@pytest.mark.parametrize("name", CASES)
def test_nothing_written_names_the_fault(name: str, tiny_pairs: dict[str, Path], tmp_path: Path) -> None:
    entry = case(name)
    tiny_pair = tiny_pairs[entry.pair]
    prepared = materialize(entry, tiny_pair, tmp_path / "out")
    folders = [prepared.draft] + ([] if prepared.target == tiny_pair / "target" else [prepared.target])
    for folder in folders:
        assert re.fullmatch(r"(draft|target)-[0-9a-f]{12}", folder.name)
        for file in folder.rglob("*"):
            content = file.read_bytes()
            for telltale in (name, entry.variant, entry.title):
                if telltale in ("default",):
                    continue
                assert telltale.encode() not in content, f"{telltale!r} stands in {file}"
                assert telltale not in str(file.relative_to(tmp_path / "out"))
    assert (prepared.token_map is not None) == (entry.token_map is not None)
    if prepared.token_map is not None:
        assert re.fullmatch(r"map-[0-9a-f]{12}\.pt", prepared.token_map.name)
        assert name.encode() not in prepared.token_map.read_bytes()
    for value in (*entry.env.items(), *entry.flags.items()):
        assert name not in str(value)


def test_a_fault_changes_something_and_the_healthy_pair_nothing(tiny_pairs: dict[str, Path], tmp_path: Path) -> None:
    for entry in CASES.values():
        tiny_pair = tiny_pairs[entry.pair]
        prepared = materialize(entry, tiny_pair, tmp_path / "out")
        original = Checkpoint.read(tiny_pair / "drafts" / entry.variant).digest()
        changed = Checkpoint.read(prepared.draft).digest() != original
        target_changed = prepared.target != tiny_pair / "target"
        assert (changed or target_changed) == bool(entry.changes), entry.name


def test_a_token_map_is_the_list_that_the_engine_reads(tiny_pair: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    prepared = materialize(case("eagle1-token-map"), tiny_pair, tmp_path / "out")
    marked = load_file(tiny_pair / "drafts" / "default" / "model.safetensors")["t2d"]
    assert prepared.token_map is not None
    assert torch.load(prepared.token_map, weights_only=True) == marked.nonzero().flatten().tolist()


def test_a_change_that_does_not_fit_the_pair_is_refused(tiny_pair: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from eagletrace.lab.faults.changes import DropKeys, NoEffectError

    wrong = replace(case("healthy"), changes=(DropKeys("no_such_key"),))
    with pytest.raises(NoEffectError, match="no_such_key"):
        materialize(wrong, tiny_pair, tmp_path / "out")
