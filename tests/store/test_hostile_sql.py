"""SQL that a user, or somebody else through a user, gives: it reads the run and nothing else, and ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from eagletrace.cli.main import main
from eagletrace.store import QueryError, open_run
from eagletrace.store import files as store_files
from tests.store.runs import small_run

Capture = pytest.CaptureFixture[str]
NEEDS_NO_FILE = [
    "INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.duckdb_extension'", "SET enable_external_access = true",
    "SET allowed_paths = ['/']", "SET memory_limit = '1TB'", "RESET lock_configuration", "PRAGMA enable_profiling",
    "PRAGMA enable_logging", "CALL enable_logging()", "SELECT * FROM enable_logging()", "SELECT getenv('HOME')",
    "CREATE SECRET s (TYPE S3)", "SELECT * FROM duckdb_secrets()", "SELECT * FROM glob('*')",
    "SELECT * FROM read_csv('https://example.org/a.csv')", "SELECT * FROM 'https://example.org/a.parquet'",
    "SELECT * FROM read_parquet('s3://b/a.parquet')", "IMPORT DATABASE '/tmp'", "EXPORT DATABASE '/tmp/no'",
    "ATTACH ':memory:' AS m", "DETACH memory", "USE main", "SELECT * FROM pandas_scan(1)", "CREATE TABLE t (a INT)",
    "SELECT * FROM arrow_scan(1, 2, 3)", "SELECT * FROM python_arrow_scan(1, 2, 3)", "CREATE TEMP TABLE t (a INT)",
    "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p", "VACUUM", "CHECKPOINT", "BEGIN", "COMMIT",
    "CREATE OR REPLACE VIEW rounds AS SELECT 1",
    "COMMENT ON TABLE rounds IS 'x'", "UPDATE all_ranks.rounds SET row = 1",
]  # fmt: skip
WITH_FILE = [
    "SELECT * FROM read_text('{}')", "SELECT * FROM read_blob('{}')", "SELECT * FROM read_csv('{}')", "FROM '{}'",
    "SELECT * FROM read_json('{}')", "SELECT * FROM read_parquet('{}')", "SELECT * FROM parquet_metadata('{}')",
    "SELECT * FROM glob('{}')", "SELECT * FROM sniff_csv('{}')", "COPY (SELECT 1) TO '{}'", "COPY rounds FROM '{}'",
    "ATTACH '{}' AS a", "SELECT * FROM query('FROM read_text(''{}'')')", "EXPLAIN ANALYZE COPY (SELECT 1) TO '{}'",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{}'')'))",
    "SELECT (SELECT content FROM read_text('{}'))", "WITH a AS (FROM read_text('{}')) FROM a",
    "SELECT * FROM query_table('{}')",
]  # fmt: skip


@pytest.mark.parametrize("sql", NEEDS_NO_FILE)
def test_refused(sql: str, tmp_path: Path) -> None:
    with open_run(small_run(tmp_path / "run")) as run, pytest.raises(QueryError):
        run.query(sql)


@pytest.mark.parametrize("large", [False, True], ids=["in memory", "in place"])
@pytest.mark.parametrize("sql", WITH_FILE)
def test_no_other_file(sql: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither beside the run, nor in it, nor under a name in /proc."""
    if large:
        monkeypatch.setattr(store_files, "LARGE_FILE_BYTES", 1)
    path = small_run(tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_text("a,b\nsecret,1\n")
    (path / "rounds" / "link.parquet").symlink_to(secret)
    (path / "note").write_text("secret")
    with secret.open("rb") as inherited, open_run(path) as run:
        run.open(["rounds"])
        places = [secret, path / "note", path / "run.json", path / "rounds" / "link.parquet", path / ".." / "secret",
                  f"/proc/self/fd/{inherited.fileno()}", "/proc/self/environ", "/dev/stdin"]  # fmt: skip
        for place in places:
            with pytest.raises(QueryError) as error:
                run.query(sql.format(place))
            assert "secret,1" not in str(error.value)
    assert secret.read_text() == "a,b\nsecret,1\n"


def test_the_slots_lead_to_the_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "LARGE_FILE_BYTES", 1)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with open_run(small_run(tmp_path / "run")) as run:
        run.open(["rounds"])
        file = os.open(secret, os.O_RDONLY)
        for number in map(int, [p.name for p in Path("/proc/self/fd").iterdir()]):
            try:
                content = run.query(f"SELECT content FROM read_blob('/proc/self/fd/{number}')").rows()[0]["content"]
            except QueryError:
                continue
            assert content in (b"", None) or content[:4] == b"PAR1"
        os.close(file)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    "sql",
    ["SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b", "SELECT pg_sleep(100)",
     "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t"],
)  # fmt: skip
def test_a_query_ends_when_its_time_is_up(sql: str, tmp_path: Path, capsys: Capture) -> None:
    path = small_run(tmp_path / "run")
    with open_run(path) as run:
        with pytest.raises(QueryError, match="stopped after"):
            run.query(sql, timeout_s=0.3)
        time.sleep(0.3)
        assert run.query("SELECT count(*) AS n FROM rounds", timeout_s=60).rows() == [{"n": 3}]
    assert main(["query", str(path), "--sql", sql, "--timeout", "0.3"]) == 2
    assert "stopped after 0.3 s" in capsys.readouterr().err


def test_memory_is_bounded(tmp_path: Path, capsys: Capture) -> None:
    path = small_run(tmp_path / "run")
    with open_run(path, memory="100MB") as run:
        with pytest.raises(QueryError, match="memory"):
            run.query("SELECT list(range) AS l FROM range(100_000_000)")
        with pytest.raises(QueryError, match="larger than 1 MiB"):
            run.query("SELECT * FROM range(10_000_000)", max_bytes=1 << 20)
        assert run.query("SELECT 1 AS n").rows() == [{"n": 1}]
    assert main(["query", str(path), "--memory", "20", "--sql", "SELECT * FROM range(10_000_000)"]) == 2
    assert "larger than 20 MiB" in capsys.readouterr().err
    for wrong in ("--memory=0", "--memory=x", "--timeout=-1", "--timeout=nan"):
        assert main(["query", str(path), "--sql", "SELECT 1", wrong]) == 2
