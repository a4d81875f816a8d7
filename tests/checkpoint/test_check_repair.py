"""`--fix`: a repaired copy where the repair is certain, beside the draft and never in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_drafts import (
    DRAFT_VOCAB,
    HIDDEN,
    LLAMA,
    MLA,
    TARGET,
    Config,
    Tensors,
    target_tensors,
    tensors,
    write,
    write_sharded,
)

from eagletrace.check import FileCheck, check
from eagletrace.checkpoint import CheckpointError, open_checkpoint


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write(tmp_path / "target", TARGET, target_tensors())


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def fixed(tmp_path: Path, target: Path, config: Config, values: Tensors, engine: str = "0.5.23") -> FileCheck:
    """Check with --fix; the draft itself must not change."""
    draft = write(tmp_path / "draft", config, values)
    before = content(draft)
    result = check(draft, target, engine, fix=tmp_path / "out")
    assert content(draft) == before
    return result


def repaired(tmp_path: Path, target: Path, config: Config, values: Tensors, engine: str = "0.5.23") -> dict[str, Any]:
    """The configuration of the repaired copy, which must pass the check by itself."""
    result = fixed(tmp_path, target, config, values, engine)
    assert result.verdict == "fault" and result.repair is not None
    assert result.repair.folder == tmp_path / "out" and result.repair.changed and not result.repair.left
    assert result.repair.verdict == check(tmp_path / "out", target, engine).verdict == "healthy"
    return json.loads((tmp_path / "out" / "config.json").read_text())


RIGHT = tensors(LLAMA)


@pytest.mark.parametrize("engine", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("prefix", ["draft_model.decoder.0.", "model.model.midlayer.", "eagle_module.midlayer."])
def test_keys_are_renamed_to_what_every_release_reads(tmp_path: Path, target: Path, engine: str, prefix: str) -> None:
    repaired(tmp_path, target, LLAMA, {k.replace("midlayer.", prefix): v for k, v in RIGHT.items()}, engine)
    out = open_checkpoint(tmp_path / "out")
    assert set(out) == set(RIGHT)
    assert all(np.array_equal(out.read(key), array) for key, array in RIGHT.items())


def test_a_renamed_module_is_found_by_its_last_words(tmp_path: Path, target: Path) -> None:
    repaired(tmp_path, target, LLAMA, {k.replace("self_attn", "attention"): v for k, v in RIGHT.items()})
    assert set(open_checkpoint(tmp_path / "out")) == set(RIGHT)


def test_mla_norms_get_the_names_of_their_class(tmp_path: Path, target: Path) -> None:
    config = {**MLA, "fc_norm": True}
    values = tensors(config)
    repaired(tmp_path, target, config, {k.replace("fc_norm.0", "aux_norm_low"): v for k, v in values.items()})
    assert set(open_checkpoint(tmp_path / "out")) == set(values)


def test_absolute_ids_become_offsets(tmp_path: Path, target: Path) -> None:
    ids = RIGHT["d2t"] + np.arange(DRAFT_VOCAB)
    repaired(tmp_path, target, LLAMA, {**RIGHT, "d2t": ids.astype(np.int32)})
    assert np.array_equal(open_checkpoint(tmp_path / "out").read("d2t"), RIGHT["d2t"])


@pytest.mark.parametrize("broken", ["missing", "zero", "duplicates", "short"])
def test_a_map_is_rebuilt_from_t2d(tmp_path: Path, target: Path, broken: str) -> None:
    values = dict(RIGHT)
    twice = np.concatenate([RIGHT["d2t"][:1], RIGHT["d2t"][:-1] - 1])
    made = {"zero": np.zeros_like(RIGHT["d2t"]), "duplicates": twice, "short": RIGHT["d2t"][:-1]}
    del values["d2t"]
    repaired(tmp_path, target, LLAMA, {**values, "d2t": made[broken]} if broken in made else values)
    assert np.array_equal(open_checkpoint(tmp_path / "out").read("d2t"), RIGHT["d2t"])


def test_a_map_that_t2d_contradicts_is_left_alone(tmp_path: Path, target: Path) -> None:
    """One of the two is wrong, and nobody can say which."""
    mask = RIGHT["t2d"].copy()
    mask[np.flatnonzero(mask)[:5]], mask[np.flatnonzero(~mask)[:5]] = False, True
    result = fixed(tmp_path, target, LLAMA, {**RIGHT, "t2d": mask})
    assert result.repair is not None and result.repair.folder is None
    assert "vocab.d2t_mismatch" in result.repair.left[0]
    assert not (tmp_path / "out").exists()


def test_settings_are_set(tmp_path: Path, target: Path) -> None:
    config = {**LLAMA, "tie_word_embeddings": True, "eagle_config": {"use_aux_hidden_state": False, "x": 1}}
    values = {**RIGHT, "input_norm.weight": np.ones(3 * HIDDEN, dtype=np.float32)}
    made = repaired(tmp_path, target, config, values)
    assert made["tie_word_embeddings"] is False and made["norm_before_fc"] is True
    assert made["eagle_config"] == {"use_aux_hidden_state": True, "x": 1}


def test_the_size_of_the_head_is_set(tmp_path: Path, target: Path) -> None:
    made = repaired(tmp_path, target, {**LLAMA, "draft_vocab_size": None}, RIGHT)
    assert made["draft_vocab_size"] == DRAFT_VOCAB


def test_what_cannot_be_repaired_is_said(tmp_path: Path, target: Path) -> None:
    """Of two faults one is repaired; the copy is written and does not pass."""
    values = {k.replace("midlayer.", "decoder."): v for k, v in RIGHT.items() if k != "fc.weight"}
    config = {**LLAMA, "hidden_size": HIDDEN}
    result = fixed(tmp_path, target, config, values)
    assert result.repair is not None and result.repair.verdict == "fault"
    assert len(result.repair.left) == 1 and "fc.weight" in result.repair.left[0]


def test_nothing_is_written_for_a_right_draft(tmp_path: Path, target: Path) -> None:
    result = fixed(tmp_path, target, LLAMA, RIGHT)
    assert result.verdict == "healthy" and result.repair is not None and result.repair.folder is None
    assert not (tmp_path / "out").exists()


def test_other_files_come_along_and_shards_become_one_file(tmp_path: Path, target: Path) -> None:
    values = {k.replace("midlayer.", "decoder."): v for k, v in RIGHT.items()}
    draft = write_sharded(tmp_path / "draft", LLAMA, values)
    (draft / "tokenizer.json").write_text("{}")
    (draft / "old.bin").write_text("x")
    check(draft, target, "0.5.23", fix=tmp_path / "deep" / "out")
    assert sorted(content(tmp_path / "deep" / "out")) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["out"]


def test_an_empty_folder_is_taken(tmp_path: Path, target: Path) -> None:
    (tmp_path / "out").mkdir()
    repaired(tmp_path, target, {**LLAMA, "draft_vocab_size": None}, RIGHT)


def test_an_occupied_place_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    draft = write(tmp_path / "draft", LLAMA, RIGHT)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in (tmp_path / "full", tmp_path / "full" / "x", tmp_path / "link", draft, draft / "out"):
        with pytest.raises(CheckpointError, match="give"):
            check(draft, fix=out)
    assert content(tmp_path / "full") == {"x": b""} and sorted(content(draft)) == ["config.json", "model.safetensors"]
