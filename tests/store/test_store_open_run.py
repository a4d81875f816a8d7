"""Opening runs: which one, what is wrong with the others, and what a live server does meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagletrace.errors import EagletraceError, NewerSchemaError, NotARunError
from eagletrace.store import files as store_files
from eagletrace.store import open_run
from eagletrace.store.files import without_merged
from tests.store.runs import make_folder, small_run, writer


def test_newest_run_by_start_time(tmp_path: Path) -> None:
    make_folder(tmp_path / "z-old", start=1)
    make_folder(tmp_path / "a-new", start=2)
    with open_run(tmp_path) as run:
        assert run.info.id == "a-new"


def test_paths_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotARunError, match="no such folder"):
        open_run(tmp_path / "absent")
    with pytest.raises(NotARunError, match=r"is empty.*EAGLETRACE=1"):
        open_run(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(NotARunError, match="holds no run"):
        open_run(tmp_path)
    with pytest.raises(NotARunError, match="is a file"):
        open_run(tmp_path / "notes.txt")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": "x"}', "\x00\xff"])
def test_unreadable_run_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NotARunError, match=r"run\.json") as error:
        open_run(tmp_path)
    assert error.value.exit_code == 2


def test_newer_schema_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    make_folder(tmp_path / "old", start=1)
    make_folder(tmp_path / "new", start=2, schema_version=99)
    with pytest.raises(NewerSchemaError, match=r"version 99.*newer eagletrace") as error:
        open_run(tmp_path / "new")
    assert error.value.exit_code == 2
    with open_run(tmp_path) as run:
        assert run.info.id == "old"
        assert any("new" in w and "version 99" in w for w in run.warnings)


def test_cut_and_foreign_files_are_skipped_and_named(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    whole = next((path / "rounds").glob("*.parquet")).read_bytes()
    for name, data in {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not parquet at all"}.items():
        (path / "rounds" / f"{name}.parquet").write_bytes(data)
    pq.write_table(pa.table({"colour": ["red"]}), path / "rounds" / "foreign.parquet")
    pq.write_table(pa.table({"round": ["one"]}), path / "rounds" / "wrong-type.parquet")
    (path / "rounds" / "half.tmp").write_bytes(b"x")
    with open_run(path) as run:
        assert run.rows("SELECT count(*) n FROM rounds") == [{"n": 3}]
        assert len(run.warnings) == 5
        for name in ("cut", "empty", "text", "foreign", "wrong-type"):
            assert any(f"{name}.parquet" in w for w in run.warnings)


def test_damaged_pages_are_skipped(tmp_path: Path) -> None:
    """The footer is whole, what it points to is not."""
    path = small_run(tmp_path / "run")
    file = next((path / "verifies").glob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[4:400] = bytes(396)
    file.write_bytes(data)
    with open_run(path) as run:
        assert any(file.name in w for w in run.warnings)
        assert run.rows("SELECT count(*) n FROM rounds") == [{"n": 3}]


def test_merged_file_and_its_sources_count_once() -> None:
    names = [
        "node-7-00000000-00000003.parquet", "node-7-00000001-00000001.parquet", "node-7-00000004-00000004.parquet",
        "node-7-00000000-00000000.parquet", "node-8-00000001-00000001.parquet", "copied.parquet",
    ]  # fmt: skip
    assert without_merged(names) == [
        "copied.parquet", "node-7-00000000-00000003.parquet", "node-7-00000004-00000004.parquet",
        "node-8-00000001-00000001.parquet",
    ]  # fmt: skip


def test_merge_seen_half_way(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    for number in range(10):
        w.write("events", [{"time_unix_nano": number, "kind": "control"}])
    sources = {f.name: f.read_bytes() for f in (path / "events").iterdir()}
    assert w.merge() == 9
    for name, data in list(sources.items())[:4]:  # the writer died between rename and unlink
        (path / "events" / name).write_bytes(data)
    with open_run(path) as run:
        assert run.rows("SELECT count(*) n, count(DISTINCT time_unix_nano) d FROM events") == [{"n": 10, "d": 10}]


def test_reading_while_a_server_writes_and_merges(tmp_path: Path) -> None:
    """Every row written before opening is read exactly once, whatever the writer does meanwhile."""
    path = make_folder(tmp_path / "run")
    w = writer(path)
    written = 0
    stop = threading.Event()

    def serve() -> None:
        nonlocal written
        while not stop.is_set():
            w.write("events", [{"time_unix_nano": written, "kind": "control"}])
            written += 1
            if written % 9 == 0:
                w.merge()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for _ in range(15):
            before = written
            with open_run(path) as run:
                (row,) = run.rows("SELECT count(*) n, count(DISTINCT time_unix_nano) d FROM events")
                assert run.warnings == []
            assert row["n"] == row["d"] >= before
    finally:
        stop.set()
        thread.join()
    assert written > 15


def test_large_files_are_held_and_outlive_their_unlinking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "LARGE_FILE_BYTES", 1)
    path = small_run(tmp_path / "run")
    with open_run(path) as run:
        run.open(["acceptance", "rounds"])
        for file in path.glob("*/*.parquet"):
            file.unlink()
        for _ in range(2):
            assert run.rows("SELECT rounds, accepted FROM acceptance") == [{"rounds": 3, "accepted": 5}]
            assert run.query("SELECT count(*) AS n FROM rounds").rows() == [{"n": 3}]
        with pytest.raises(EagletraceError):
            run.query("SELECT * FROM read_text('/etc/hostname')")


def test_older_and_newer_columns(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    (path / "verifies").mkdir()
    old = pa.table({"host": ["n"], "pid": pa.array([1], pa.int32()), "round": [1], "draft_token": [2**60]})
    new = pa.table({"host": ["n"], "pid": pa.array([1], pa.int32()), "round": [2], "brand_new": [1.5]})
    pq.write_table(old, path / "verifies" / "n-1-00000000-00000000.parquet")
    pq.write_table(new, path / "verifies" / "n-1-00000001-00000001.parquet")
    with open_run(path) as run:
        rows = run.rows("SELECT round, draft_token, brand_new, accepted FROM all_ranks.verifies ORDER BY round")
        assert [tuple(r.values()) for r in rows] == [(1, 2**60, None, None), (2, None, 1.5, None)]
        assert run.warnings == []


def test_user_sql_reads_the_run_and_nothing_else(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    target = tmp_path / "out.csv"
    refused = [
        f"SELECT * FROM read_csv('{secret}')", f"SELECT * FROM '{secret}'", "SELECT * FROM glob('/*')",
        f"COPY rounds TO '{target}'", f"ATTACH '{tmp_path / 'x.db'}'", "INSTALL httpfs", "LOAD httpfs",
        "SET enable_external_access = true", "RESET lock_configuration", "DROP TABLE all_ranks.rounds",
        "INSERT INTO all_ranks.rounds (round) VALUES (1)", "DELETE FROM all_ranks.rounds", "CHECKPOINT",
        "WITH x AS (INSERT INTO all_ranks.rounds (round) VALUES (1) RETURNING *) SELECT * FROM x",
        f"EXPLAIN ANALYZE COPY rounds TO '{target}'", "SELECT 1; SELECT 2", "", "SELEC 1", "SELECT * FROM nothing",
        "SELECT * FROM secret_rows", "SELECT $a",
    ]  # fmt: skip
    secret_rows = [1]
    before = set(tmp_path.rglob("*"))
    with open_run(path) as run:
        for sql in refused:
            with pytest.raises(EagletraceError) as error:
                run.query(sql)
            assert error.value.exit_code == 2, sql
        assert run.query("SELECT count(*) AS n FROM all_ranks.rounds").rows() == [{"n": 5}]
        assert run.query("SHOW TABLES").table.num_rows > 20
        assert run.query("SELECT $n::INT AS n", {"n": 3}).rows() == [{"n": 3}]
    assert set(tmp_path.rglob("*")) == before and secret_rows


def test_nothing_on_disk_changes(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with open_run(path) as run:
        run.rows("FROM outputs")
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    assert json.loads((path / "run.json").read_text())["run_id"] == "run"
