"""Each fault edits exactly what it says and leaves the rest as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagletrace.lab.faults import case, draft_folder, materialize
from eagletrace.lab.faults.changes import RoomForAbsoluteIds
from eagletrace.lab.faults.checkpoint import Checkpoint

torch = pytest.importorskip("torch")


def before_and_after(name: str, pair: Path, out: Path) -> tuple[Checkpoint, Checkpoint]:
    entry = case(name)
    return (
        Checkpoint.read(draft_folder(pair, entry.variant)),
        Checkpoint.read(materialize(entry, pair, out).draft),
    )


def assert_same_tensors(before: Checkpoint, after: Checkpoint, *except_keys: str) -> None:
    for key in before.tensors.keys() - set(except_keys):
        assert torch.equal(before.tensors[key], after.tensors[key]), key


@pytest.mark.parametrize(
    ("name", "prefix"), [("layer-keys-0.5.9", "layers.0."), ("unknown-prefix", "draft_model.decoder.0.")]
)
def test_layer_keys_are_renamed(name: str, prefix: str, tiny_pair: Path, tmp_path: Path) -> None:
    before, after = before_and_after(name, tiny_pair, tmp_path)
    assert before.config == after.config
    assert len(before.tensors) == len(after.tensors)
    for key, tensor in before.tensors.items():
        assert torch.equal(tensor, after.tensors[key.replace("midlayer.", prefix)])


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("no-lm-head", {"lm_head.weight"}),
        ("no-v-proj", {"midlayer.self_attn.v_proj.weight"}),
        ("d2t-missing", {"d2t"}),
        ("no-final-norm", {"norm.weight"}),
    ],
)
def test_keys_are_dropped(name: str, gone: set[str], tiny_pair: Path, tmp_path: Path) -> None:
    before, after = before_and_after(name, tiny_pair, tmp_path)
    assert before.tensors.keys() - after.tensors.keys() == gone
    assert not after.tensors.keys() - before.tensors.keys()
    assert_same_tensors(before, after, *gone)
    assert before.config == after.config


def test_absolute_d2t_leaves_few_ids_out_of_range(tiny_pair: Path, tmp_path: Path) -> None:
    right = materialize(case("padded-vocabulary"), tiny_pair, tmp_path)
    wrong = materialize(case("d2t-absolute"), tiny_pair, tmp_path)
    assert right.target == wrong.target
    target = Checkpoint.read(wrong.target)
    vocabulary = target.config["vocab_size"]
    assert vocabulary % 64 == 0
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        before = Checkpoint.read(tiny_pair / "target").tensors[key]
        assert torch.equal(target.tensors[key][: len(before)], before)
        assert torch.equal(target.tensors[key][len(before) :], before[:1].expand(vocabulary - len(before), -1))

    offsets, absolute = Checkpoint.read(right.draft), Checkpoint.read(wrong.draft)
    ids = torch.arange(len(offsets.tensors["d2t"]))
    kept = offsets.tensors["d2t"] + ids
    assert torch.equal(absolute.tensors["d2t"], kept)
    assert 10 <= int((absolute.tensors["d2t"] + ids >= vocabulary).sum()) <= RoomForAbsoluteIds().out_of_range
    assert_same_tensors(offsets, absolute, "d2t")

    before = Checkpoint.read(tiny_pair / "drafts" / "default")
    old_ids = (before.tensors["d2t"] + torch.arange(len(before.tensors["d2t"]))).tolist()
    rows = [old_ids.index(int(token)) for token in kept]
    assert torch.equal(offsets.tensors["lm_head.weight"], before.tensors["lm_head.weight"][rows])
    assert torch.equal(offsets.tensors["t2d"].nonzero().flatten(), kept)
    assert offsets.config["draft_vocab_size"] == len(kept)
    assert_same_tensors(before, offsets, "d2t", "t2d", "lm_head.weight")


def test_d2t_edits(tiny_pair: Path, tmp_path: Path) -> None:
    before, zero = before_and_after("d2t-zero", tiny_pair, tmp_path)
    ids = torch.arange(len(before.tensors["d2t"]))
    assert zero.tensors["d2t"].count_nonzero() == 0
    assert zero.tensors["d2t"].dtype == before.tensors["d2t"].dtype

    _, partly = before_and_after("d2t-partly-wrong", tiny_pair, tmp_path)
    start = len(ids) // 3
    assert torch.equal(partly.tensors["d2t"][:start], before.tensors["d2t"][:start])
    assert torch.equal(partly.tensors["d2t"][start:], before.tensors["d2t"][start:] - 1)


def test_config_edits(tiny_pair: Path, tmp_path: Path) -> None:
    before, after = before_and_after("use-aux-false", tiny_pair, tmp_path)
    assert after.config == {**before.config, "eagle_config": {"use_aux_hidden_state": False}}
    assert_same_tensors(before, after)

    _, after = before_and_after("tied-embeddings", tiny_pair, tmp_path)
    assert after.config["tie_word_embeddings"] is True

    _, after = before_and_after("head-overwritten", tiny_pair, tmp_path)
    assert after.config["draft_vocab_size"] is None
    assert "d2t" not in after.tensors


def test_layer_id_edits(tiny_pair: Path, tmp_path: Path) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    _, shifted = before_and_after("layer-ids-shifted", tiny_pair, tmp_path)
    assert shifted.config["eagle_config"][key] == [0, 4, 6]
    assert shifted.config[key] == [4, 8, 10]

    _, unread = before_and_after("layer-ids-unread-key", tiny_pair, tmp_path)
    assert unread.config[key] == [4, 8, 10]
    assert "eagle_config" not in unread.config

    _, defaults = before_and_after("unread-ids-equal-defaults", tiny_pair, tmp_path)
    assert defaults.config[key] == [2, 6, 9]  # [2, n // 2, n - 3] of 12 layers
    assert "eagle_config" not in defaults.config


def test_the_shallow_target_keeps_its_weights(tiny_pair: Path, tmp_path: Path) -> None:
    prepared = materialize(case("target-too-shallow"), tiny_pair, tmp_path)
    before, after = Checkpoint.read(tiny_pair / "target"), Checkpoint.read(prepared.target)
    assert after.config["num_hidden_layers"] == 6
    assert_same_tensors(before, after)
    assert (prepared.target / "tokenizer.json").read_text() == "{}"


def test_the_same_content_is_written_once(tiny_pair: Path, tmp_path: Path) -> None:
    first = materialize(case("healthy"), tiny_pair, tmp_path / "out")
    again = materialize(case("healthy"), tiny_pair, tmp_path / "out")
    other = materialize(case("d2t-zero"), tiny_pair, tmp_path / "out")
    assert first == again
    assert first.draft != other.draft
    assert sorted(folder.name for folder in (tmp_path / "out").iterdir()) == sorted(
        [first.draft.name, other.draft.name]
    )
