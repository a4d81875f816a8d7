"""The writer of one process: closed files, merging, the disk bound, and a disk that fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eagletrace.record.files import safe_host
from eagletrace.record.merge import EVERYTHING, Policy
from eagletrace.record.writer import TraceWriter
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


def merge_all(writer: TraceWriter) -> int:
    return writer.merge(EVERYTHING)


def test_merging_keeps_every_row_once_and_covers_the_range(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, 20)
    assert writer.merge() == 19
    assert names(tmp_path, "events") == ["node-7-00000000-00000019.parquet"]
    assert events(tmp_path) == [f"n{k}" for k in range(20)]
    write(writer, 8, first=20)
    assert writer.merge() == 8
    assert names(tmp_path, "events") == ["node-7-00000000-00000027.parquet"]
    assert events(tmp_path) == [f"n{k}" for k in range(28)]
    assert writer.bytes_written == sum(p.stat().st_size for p in (tmp_path / "events").iterdir())


def test_few_files_are_left_alone(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, Policy.of(2 << 30, 1).fan_in - 1, "spans")
    assert writer.merge() == 0


def test_a_reader_that_sees_sources_and_merged_file_counts_no_row_twice(
    writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writer, 10)

    def killed(self: Path) -> None:
        raise OSError("the process died before it could unlink")

    monkeypatch.setattr(Path, "unlink", killed)
    merge_all(writer)
    assert len(names(tmp_path, "events")) == 11
    assert without_merged(names(tmp_path, "events")) == ["node-7-00000000-00000009.parquet"]
    assert read_table(tmp_path, "events").rows["kind"].to_pylist() == [f"n{k}" for k in range(10)]


def test_a_merge_that_fails_loses_nothing(writer: TraceWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(writer, 10)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", _no_space)
        with pytest.raises(OSError, match="No space"):
            merge_all(writer)
    assert len(events(tmp_path)) == 10 and not list((tmp_path / "events").glob("*.tmp"))
    assert merge_all(writer) == 9  # and they are still known
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
    assert merge_all(writer) == 12  # a number that no file has is no gap: nothing will ever have it
    assert sorted(events(tmp_path), key=lambda k: int(k[1:])) == [f"n{k}" for k in range(13)]


def test_large_files_are_not_merged_again(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, 10)
    merge_all(writer)
    large = (tmp_path / "events" / names(tmp_path, "events")[0]).stat().st_size
    write(writer, 10, first=10)
    assert writer.merge(Policy(large, 2, 2, (1,))) > 0
    assert names(tmp_path, "events")[0] == "node-7-00000000-00000009.parquet"
    assert sorted(events(tmp_path)) == sorted(f"n{k}" for k in range(20))


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


def age(run: Path, table: str, seconds: float) -> None:
    """Let the files of a table have been written that long ago."""
    for path in (run / table).iterdir():
        written = path.stat().st_mtime - seconds
        os.utime(path, (written, written))


def test_after_a_merge_the_oldest_still_goes_first(writer: TraceWriter, tmp_path: Path) -> None:
    write(writer, 10, "spans")
    age(tmp_path, "spans", 100)
    writer = TraceWriter(tmp_path, PROCESS)  # knows the files by their times
    writer.write("rounds", [{"round": 1}])
    age(tmp_path, "rounds", 50)
    writer.claim("spans")
    assert merge_all(writer) == 9
    assert writer.enforce(size(tmp_path) - 1) == {"spans": 10}  # a merged file is as old as its newest rows
    assert len(rows(tmp_path, "rounds")) == 1


def size(run: Path) -> int:
    return sum(p.stat().st_size for p in run.rglob("*") if p.is_file())


def test_the_oldest_of_all_tables_goes_first(writer: TraceWriter, tmp_path: Path) -> None:
    for seconds, table in ((30, "rounds"), (20, "spans"), (10, "drafts")):
        writer.write(table, [{}])
        age(tmp_path, table, seconds)
    assert writer.enforce(writer.bytes_written - 1) == {"rounds": 1}
    assert writer.enforce(writer.bytes_written - 1) == {"spans": 1}


@pytest.mark.parametrize("table", ["hooks", "params", "checkpoint_keys", "contract", "events", "requests", "totals"])
def test_facts_are_never_given_up_for_space(table: str, writer: TraceWriter) -> None:
    row: dict[str, Any] = {}
    writer.write(table, [row])
    assert writer.enforce(0) == {}
