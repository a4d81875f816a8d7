"""The writer of one process: closed files, merging, the disk bound, and a disk that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eagletrace.record import writer as module
from eagletrace.record.writer import TraceWriter, safe_host
from eagletrace.store.files import read_table, without_merged
from tests.record.packets import PROCESS, rows


def events(run: Path) -> list[str]:
    return [row["kind"] for row in rows(run, "events")]


def names(run: Path, table: str) -> list[str]:
    return sorted(p.name for p in (run / table).iterdir())


@pytest.fixture
def writer(tmp_path: Path) -> TraceWriter:
    return TraceWriter(tmp_path, PROCESS)


def write(writer: TraceWriter, count: int, table: str = "events", first: int = 0) -> None:
    column = "kind" if table == "events" else "name"
    for number in range(first, first + count):
        writer.write(table, [{column: f"n{number}"}])


def test_a_file_is_closed_and_whole_before_it_has_its_name(
    writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], int]] = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        seen.append((names(tmp_path, "events"), pq.read_metadata(self).num_rows))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    path = writer.write("events", [{"kind": "a"}, {"kind": "b", "detail": "{}"}])
    assert seen == [(["node-7-00000000-00000000.tmp"], 2)]
    assert path is not None and names(tmp_path, "events") == [path.name] == ["node-7-00000000-00000000.parquet"]
    assert rows(tmp_path, "events")[0] == {**PROCESS, "kind": "a", "detail": None, "time_unix_nano": None}


def test_no_rows_no_file(writer: TraceWriter, tmp_path: Path) -> None:
    assert writer.write("events", []) is None and not (tmp_path / "events").exists()


def test_host_names_cannot_break_file_names(tmp_path: Path) -> None:
    assert safe_host("a/b-c") == "a_b_c" and safe_host("") == "host"
    TraceWriter(tmp_path, {**PROCESS, "host": "gpu-1/x"}).write("events", [{"kind": "a"}])
    assert names(tmp_path, "events") == ["gpu_1_x-7-00000000-00000000.parquet"]
    assert rows(tmp_path, "events")[0]["host"] == "gpu-1/x"


def test_merging_keeps_every_row_once_and_covers_the_range(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, 20)
    assert writer.merge(older_than_s=0) == 19
    assert names(tmp_path, "events") == ["node-7-00000000-00000019.parquet"]
    assert events(tmp_path) == [f"n{k}" for k in range(20)]
    write(writer, 8, first=20)
    assert writer.merge(older_than_s=0) == 8
    assert names(tmp_path, "events") == ["node-7-00000000-00000027.parquet"]
    assert events(tmp_path) == [f"n{k}" for k in range(28)]
    assert writer.bytes_written == sum(p.stat().st_size for p in (tmp_path / "events").iterdir())


def test_young_files_and_few_files_are_left_alone(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, 20)
    assert writer.merge() == 0 and len(names(tmp_path, "events")) == 20
    write(writer, module.MERGE_MIN_FILES - 1, "spans")
    writer.merge(older_than_s=0)
    assert len(names(tmp_path, "spans")) == module.MERGE_MIN_FILES - 1


def test_a_reader_that_sees_sources_and_merged_file_counts_no_row_twice(
    writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, 10)

    def killed(self: Path) -> None:
        raise OSError("the process died before it could unlink")

    monkeypatch.setattr(Path, "unlink", killed)
    writer.merge(older_than_s=0)
    assert len(names(tmp_path, "events")) == 11
    assert without_merged(names(tmp_path, "events")) == ["node-7-00000000-00000009.parquet"]
    assert read_table(tmp_path, "events").rows["kind"].to_pylist() == [f"n{k}" for k in range(10)]


def test_a_merge_that_fails_loses_nothing(writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(writer, 10)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", _no_space)
        with pytest.raises(OSError, match="No space"):
            writer.merge(older_than_s=0)
    assert len(events(tmp_path)) == 10 and not list((tmp_path / "events").glob("*.tmp"))
    assert writer.merge(older_than_s=0) == 9  # and they are still known
    assert len(events(tmp_path)) == 10


def _no_space(self: Path, target: Path) -> Path:
    raise OSError(28, "No space left on device")


def test_a_failed_write_leaves_no_temporary_and_no_block(
    writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, 3)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", _no_space)
        with pytest.raises(OSError, match="No space"):
            writer.write("events", [{"kind": "lost"}])
    assert not list((tmp_path / "events").glob("*.tmp"))
    write(writer, 10, first=3)
    assert writer.merge(older_than_s=0) == 9  # the ten after the gap; the three before it are too few
    assert sorted(events(tmp_path), key=lambda k: int(k[1:])) == [f"n{k}" for k in range(13)]


def test_large_files_are_not_merged_again(writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(writer, 10)
    writer.merge(older_than_s=0)
    monkeypatch.setattr(module, "MERGE_MAX_BYTES", (tmp_path / "events" / names(tmp_path, "events")[0]).stat().st_size)
    write(writer, 10, first=10)
    assert writer.merge(older_than_s=0) == 9
    assert names(tmp_path, "events") == ["node-7-00000000-00000009.parquet", "node-7-00000010-00000019.parquet"]


def test_the_disk_bound_takes_the_oldest_detail_and_counts_its_rows(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, 4)
    for number in range(6):
        writer.write("spans", [{"name": f"s{number}"}] * 5)
    size = (tmp_path / "spans" / names(tmp_path, "spans")[0]).stat().st_size
    assert writer.enforce(writer.bytes_written) == {}
    lost = writer.enforce(writer.bytes_written - size - 1)
    assert lost == {"spans": 10}
    assert {row["name"] for row in rows(tmp_path, "spans")} == {"s2", "s3", "s4", "s5"}
    assert writer.enforce(1) == {"spans": 20}  # all detail goes, and nothing else
    assert len(events(tmp_path)) == 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the writer; the test moves it."""
    now = [1000.0]

    def monotonic() -> float:
        return now[0]

    monkeypatch.setattr(module.time, "monotonic", monotonic)
    return now


def test_after_a_merge_the_oldest_still_goes_first(writer: TraceWriter, tmp_path: Path, clock: list[float]) -> None:
    write(writer, 10, "spans")
    clock[0] += 100
    write(writer, 3, "spans", first=10)
    assert writer.merge() == 9  # the ten old ones; the three others are too young
    assert writer.enforce(writer.bytes_written - 1) == {"spans": 10}
    assert [row["name"] for row in rows(tmp_path, "spans")] == ["n10", "n11", "n12"]


def test_the_oldest_of_all_tables_goes_first(writer: TraceWriter, tmp_path: Path, clock: list[float]) -> None:
    for table in ("rounds", "spans", "drafts"):
        clock[0] += 1
        writer.write(table, [{}])
    assert writer.enforce(writer.bytes_written - 1) == {"rounds": 1}
    assert writer.enforce(writer.bytes_written - 1) == {"spans": 1}


@pytest.mark.parametrize("table", ["hooks", "params", "checkpoint_keys", "contract", "events", "requests", "totals"])
def test_facts_are_never_given_up_for_space(table: str, writer: TraceWriter) -> None:
    row: dict[str, Any] = {}
    writer.write(table, [row])
    assert writer.enforce(0) == {}
