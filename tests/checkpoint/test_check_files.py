"""Checkpoint files that are missing, damaged or lying: a message that says which and what to do, never a traceback."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from check_drafts import LLAMA, TARGET, shapes, target_tensors, tensors, write, write_sharded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagletrace.check import check
from eagletrace.checkpoint import CheckpointError, describe, open_checkpoint
from eagletrace.checkpoint.write import write_safetensors
from eagletrace.errors import EagletraceError


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write(tmp_path / "draft", LLAMA, tensors(LLAMA))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_sharded(tmp_path / "draft", LLAMA, tensors(LLAMA))


def message(action: Callable[[], object]) -> str:
    """What a user reads."""
    with pytest.raises(EagletraceError) as caught:
        action()
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_values_are_read_as_they_were_written(draft: Path) -> None:
    opened, values = open_checkpoint(draft), tensors(LLAMA)
    assert set(opened) == set(values)
    for key, array in values.items():
        assert opened.info(key).shape == array.shape
        assert opened.read(key).dtype == array.dtype
        assert np.array_equal(opened.read(key), array), key
    assert opened.info("fc.weight").dtype == "bfloat16"
    assert not opened.read("fc.weight").flags.writeable


def test_every_dtype_that_has_a_numpy_type_is_read(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "a": np.arange(4, dtype=np.float16), "b": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
        "c": np.array([True, False]), "d": np.arange(3, dtype=np.int32), "e": np.array(2.0), "f": np.zeros((0, 3)),
        "g": np.arange(4).astype(ml_dtypes.float8_e5m2), "h": np.arange(4, dtype=np.uint8),
    }  # fmt: skip
    opened = open_checkpoint(write(tmp_path / "x", {}, values))
    for key, array in values.items():
        assert opened.read(key).dtype == array.dtype and np.array_equal(opened.read(key), array), key


def test_what_the_safetensors_library_writes_is_read(tmp_path: Path) -> None:
    numpy_io = pytest.importorskip("safetensors.numpy")
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    values = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.array(3, dtype=np.int64)}
    numpy_io.save_file(values, folder / "model.safetensors")
    opened = open_checkpoint(folder)
    assert all(np.array_equal(opened.read(key), array) for key, array in values.items())


def test_what_is_written_the_safetensors_library_reads(draft: Path) -> None:
    numpy_io = pytest.importorskip("safetensors")
    with numpy_io.safe_open(draft / "model.safetensors", "np") as stream:
        assert set(stream.keys()) == set(shapes(LLAMA))


def test_shards_are_one_checkpoint(sharded: Path) -> None:
    opened = open_checkpoint(sharded)
    assert set(opened) == set(shapes(LLAMA)) and not opened.notes
    assert len({opened.info(key).file for key in opened}) == 3


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    text = message(lambda: open_checkpoint(sharded))
    assert "1 of 3 shards" in text and "model-00002-of-00003.safetensors" in text and "download" in text


def test_shards_without_an_index_are_counted(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert len(open_checkpoint(sharded)) == len(shapes(LLAMA))
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert "2 of 3 shards" in message(lambda: open_checkpoint(sharded))


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))


def test_an_index_that_names_a_tensor_which_is_nowhere(sharded: Path) -> None:
    edit_index(sharded, lambda i: i["weight_map"].update({"ghost.weight": "model-00001-of-00003.safetensors"}))
    text = message(lambda: open_checkpoint(sharded))
    assert "ghost.weight" in text and "lies" in text


def test_an_index_that_places_a_tensor_wrongly_is_noted(sharded: Path) -> None:
    edit_index(sharded, lambda i: i["weight_map"].update({"fc.weight": "model-00003-of-00003.safetensors"}))
    assert any("fc.weight" in note for note in open_checkpoint(sharded).notes)


def test_an_index_that_leaves_tensors_out_is_noted(sharded: Path) -> None:
    edit_index(sharded, lambda i: i["weight_map"].pop("fc.weight"))
    assert any("fc.weight" in note for note in open_checkpoint(sharded).notes)


@pytest.mark.parametrize(
    "index", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../x"}}']
)
def test_an_index_of_another_form(sharded: Path, index: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in message(lambda: open_checkpoint(sharded))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickled_weights_are_refused_with_the_way_to_convert(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / name).write_bytes(b"\x80\x02}q\x00.")  # a pickle: must not be opened
    text = message(lambda: open_checkpoint(folder))
    assert name in text and "weights_only=True" in text and "model.safetensors" in text


def test_what_is_no_checkpoint(tmp_path: Path, draft: Path) -> None:
    assert "hf download org/name" in message(lambda: open_checkpoint("org/name"))
    assert "no folder" in message(lambda: open_checkpoint(tmp_path / "nothing"))
    assert "give the folder" in message(lambda: open_checkpoint(draft / "model.safetensors"))
    (tmp_path / "empty").mkdir()
    assert "config.json" in message(lambda: open_checkpoint(tmp_path / "empty"))
    (draft / "model.safetensors").unlink()
    assert "*.safetensors" in message(lambda: open_checkpoint(draft))


@pytest.mark.parametrize("config", ["", "{", "[1]", "null", "\x00\x01", '{"a": NaN'])
def test_a_config_that_is_no_json_object(draft: Path, config: str) -> None:
    (draft / "config.json").write_text(config)
    assert "config.json" in message(lambda: open_checkpoint(draft))


def with_header(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    size = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + text + data)
    return folder


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES = {
    "length past the end": (F32, b"", 10_000, "cut off in its header"),
    "absurd length": (F32, b"", 1 << 62, "header would be"),
    "no json": (b"{not json", b"", None, "damaged header"),
    "no object": ([1], b"", None, "damaged header"),
    "data cut off": ({"w": F32}, b"\0" * 7, None, "w ends at byte"),
    "bytes left over": ({"w": F32}, b"\0" * 9, None, "after its last tensor"),
    "wrong size": ({"w": {**F32, "shape": [3]}}, b"\0" * 8, None, "takes 12 bytes, not 8"),
    "negative size": ({"w": {**F32, "shape": [-2]}}, b"\0" * 8, None, "shape or offsets"),
    "offsets swapped": ({"w": {**F32, "data_offsets": [8, 0]}}, b"\0" * 8, None, "shape or offsets"),
    "unknown dtype": ({"w": {**F32, "dtype": "Q7"}}, b"\0" * 8, None, "'Q7'"),
    "entry of another form": ({"w": 3}, b"", None, "entry for w"),
    "overlap": ({"v": F32, "w": {**F32, "data_offsets": [4, 12]}}, b"\0" * 12, None, "overlaps"),
    "hole": ({"v": F32, "w": {**F32, "data_offsets": [9, 17]}}, b"\0" * 17, None, "hole"),
    "bool sizes": ({"w": {**F32, "shape": [True]}}, b"\0" * 8, None, "shape or offsets"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_headers_that_lie(tmp_path: Path, lie: tuple[Any, bytes, int | None, str]) -> None:
    header, data, length, said = lie
    text = message(lambda: open_checkpoint(with_header(tmp_path / "x", header, data, length)))
    assert said in text and "model.safetensors" in text


@pytest.mark.parametrize(
    "start, said", [(b"version https://git-lfs", "git lfs pull"), (b"PK\x03\x04abcdefgh", "PyTorch")]
)
def test_files_of_another_kind(draft: Path, start: bytes, said: str) -> None:
    (draft / "model.safetensors").write_bytes(start)
    assert said in message(lambda: open_checkpoint(draft))


def test_packed_tensors_are_described_and_not_read(tmp_path: Path) -> None:
    folder = with_header(tmp_path / "x", {"w": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, b"\0\0")
    opened = open_checkpoint(folder)
    assert opened.info("w").dtype == "float4_e2m1fn"
    assert "packed" in message(lambda: opened.read("w"))
    assert "no tensor 'v'" in message(lambda: opened.read("v"))


def test_a_target_is_no_draft(tmp_path: Path, draft: Path) -> None:
    target = write(tmp_path / "target", TARGET, target_tensors())
    assert "no EAGLE draft" in message(lambda: describe(open_checkpoint(target)))
    assert "no EAGLE draft" in message(lambda: check(target, draft))


SMALL = {"fc.weight": np.zeros((4, 12), dtype=np.float32), "norm.weight": np.ones(4, dtype=np.float16)}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000), at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_file_cut_anywhere_or_with_a_byte_changed_gives_a_message(
    tmp_path: Path, cut: int, at: int, byte: int
) -> None:
    """Either it is read, or a CheckpointError says what is wrong; nothing else is raised."""
    folder = tmp_path / "fuzzed"
    file = folder / "model.safetensors"
    if not folder.exists():
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA))
        write_safetensors(tmp_path / "whole", SMALL)
    whole = bytearray((tmp_path / "whole").read_bytes())
    whole[at % len(whole)] = byte
    file.write_bytes(bytes(whole[: cut % (len(whole) + 1)]))
    try:
        opened = open_checkpoint(folder)
        for key in opened:
            opened.read(key)
    except CheckpointError as error:
        assert str(error)
    else:
        assert cut % (len(whole) + 1) == len(whole)


def test_every_truncation_of_a_checked_draft_is_a_message(tmp_path: Path) -> None:
    folder = write(tmp_path / "draft", LLAMA, tensors(LLAMA))
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in [*range(64), *range(64, len(whole), len(whole) // 97)]:
        file.write_bytes(whole[:length])
        assert "model.safetensors" in message(lambda: check(folder))
