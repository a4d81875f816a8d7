"""Tensors on their way to files: copies are theirs alone, files hold so much each, and what no file took is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eagletrace.record import recorder as module  # noqa: E402
from eagletrace.record.device import copy_out  # noqa: E402
from eagletrace.record.recorder import Recorder  # noqa: E402
from eagletrace.record.tensor_rows import Stored, of_integers, slices  # noqa: E402
from eagletrace.settings import Settings  # noqa: E402
from tests.record.packets import PROCESS, rows  # noqa: E402


def recorder(folder: Path) -> Recorder:
    made = Recorder(folder, Settings(flush_s=600), PROCESS, {})
    made.start()
    return made


def stored(seq: int, position: int, count: int, width: int = 4) -> Stored:
    copy = copy_out(torch.arange(count * width, dtype=torch.float32).reshape(count, width) + position)
    return Stored(seq, position, "target_aux", copy, 0, count, round=position)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32])
def test_a_copy_is_of_the_moment_and_keeps_the_bits(dtype: Any) -> None:
    with torch.inference_mode():
        tensor = (torch.arange(24).reshape(4, 6) - 7).to(dtype)
        expected, copy = tensor.clone(), copy_out(tensor[1:, ::2])
        tensor.fill_(1)
    assert (copy.rows, copy.shape, copy.dtype) == (3, (3,), str(dtype).removeprefix("torch."))
    assert copy.read().tobytes() == expected[1:, ::2].contiguous().view(torch.uint8).numpy().tobytes()


def test_a_row_is_a_part_of_a_copy() -> None:
    copy = copy_out(torch.arange(12).reshape(6, 2))
    row = Stored(3, 40, "target_layer", copy, 2, 3, round=None, layer=5)
    assert row.bytes == 48 and row.row()["shape"] == [3, 2]
    assert np.frombuffer(row.row()["data"], dtype=np.int64).tolist() == [4, 5, 6, 7, 8, 9]
    assert of_integers([5, 6]).shape == () and of_integers([5, 6]).rows == 2


def test_slices_hold_all_rows_in_order_and_no_more_than_they_may() -> None:
    many = [stored(1, p, 1 << 14, 16) for p in range(5)]  # a MiB each
    parts = list(slices(many))
    assert [row for part in parts for row in part] == many
    assert [len(part) for part in parts] == [2, 2, 1]
    assert list(slices([])) == [] and [len(p) for p in slices([stored(1, 0, 1 << 18, 16)])] == [1]


def test_rows_are_in_files_after_a_flush_and_counted(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.tensors([stored(1, 0, 3), stored(2, 7, 2)])
    assert made.tensor_bytes == made.tensor_bytes_waiting == 80
    assert made.flush(30) and made.tensor_bytes_waiting == 0 and made.tensor_bytes == 80
    one, two = rows(tmp_path, "tensors")
    assert (one["request_seq"], one["shape"], one["round"], one["layer"]) == (1, [3, 4], 0, None)
    assert np.frombuffer(two["data"], dtype=np.float32).tolist() == [7.0 + n for n in range(8)]
    made.stop()


def test_many_bytes_become_several_files_and_a_stop_writes_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TENSOR_BYTES", 100)
    made = recorder(tmp_path)
    made.tensors([stored(1, position, 3) for position in range(20)])
    assert made.flush(30)
    for _ in range(40):
        if not made.tensor_bytes_waiting:
            break
        made.flush(30)
    assert len(list((tmp_path / "tensors").glob("*.parquet"))) > 5
    made.tensors([stored(1, position, 3) for position in range(20, 30)])
    made.stop(30)
    assert sorted(row["position"] for row in rows(tmp_path, "tensors")) == list(range(30))


def test_requests_whose_rows_no_file_took_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorder(tmp_path)

    def full(*_: Any) -> Path:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(made.writer, "_publish", full)
        made.tensors([stored(1, 0, 3), stored(4, 0, 3)])
        made.flush(30)
    assert made.tensors_lost == {1, 4}
    made.stop()


def test_what_is_not_begun_is_counted(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.not_recorded("tensors", "A BOUND")
    made.stop(30)
    assert "A BOUND: tensors" in rows(tmp_path, "totals")[0]["dropped_rows_by_reason"]
