"""The bundled queries on Spark give what they give on DuckDB: every check, and every query for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnose"))
import outcomes  # pyright: ignore[reportMissingImports]

from eagletrace.cli.main import main
from eagletrace.diagnose import policy
from eagletrace.diagnose.checks import load_checks
from eagletrace.store import Run, open_run
from eagletrace.store.run import QueryError
from eagletrace.store.spark.run import LocalFiles, SparkRun, has_java, local_session
from eagletrace.store.spark.translate import to_spark
from eagletrace.store.sqlfile import load_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMO = Path(__file__).parents[2] / "eagletrace" / "data" / "demo-run"
RUNS = ("every kind of round", "recorded")
EVERYTHING = "SHOW TABLES"
needs_java = pytest.mark.skipif(not has_java(), reason="no Java: apt-get install openjdk-17-jre-headless")
SMALL = {
    "spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g", "spark.sql.leafNodeDefaultParallelism": "1", "spark.default.parallelism": "1",
}  # fmt: skip
"""Of these runs compiling takes longer than running."""


@pytest.fixture(scope="module")
def session() -> Generator[SparkSession]:
    made = local_session({**SMALL, "spark.master": "local[2]"})
    yield made
    made.stop()


@pytest.fixture(scope="module", params=["recorded"])
def both(
    request: pytest.FixtureRequest, session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[Run, SparkRun]]:
    folder = DEMO if request.param == "recorded" else outcomes.CASES[request.param].build().write(
        tmp_path_factory.mktemp("run")
    )  # fmt: skip
    with open_run(folder) as run, LocalFiles(run, EVERYTHING) as files:
        assert run.connection is not None  # every table and view
        yield run, SparkRun(session, files.paths)


def alike(a: Any, b: Any) -> bool:
    """Equal, floating numbers to nine digits: sums are formed in another order."""
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    if numbers and float in (type(a), type(b)):  # JSON has one kind of number
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


def findings(rows: list[dict[str, Any]]) -> list[Any]:
    """Rows of a check, with their evidence read, in one order."""
    read = [[r["status"], r["subject"], r["reason"], json.loads(r["evidence"] or "null")] for r in rows]
    return sorted(read, key=lambda row: json.dumps(row[:3]))


@needs_java
@pytest.mark.parametrize("both", RUNS, indirect=True)
@pytest.mark.parametrize("check", load_checks().values(), ids=lambda c: c.id)
def test_a_check_says_on_spark_what_it_says_on_duckdb(both: tuple[Run, SparkRun], check: Any) -> None:
    run, spark = both
    params = {name: policy.SQL_PARAMS[name] for name in check.file.params}
    expected = findings(run.rows(check.file.sql, params or None))
    assert alike(findings(spark.arrow(check.file.sql, params).to_pylist()), expected)
    assert expected or check.id in ("numerics.nan_hidden",)


@needs_java
@pytest.mark.parametrize("file", load_folder("explore").values(), ids=lambda f: f.name)
def test_a_query_gives_on_spark_what_it_gives_on_duckdb(both: tuple[Run, SparkRun], file: Any) -> None:
    run, spark = both
    params = {p.name: p.default for p in file.params.values()}
    expected = run.query(file.sql, params or None)
    found = spark.arrow(file.sql, params)
    assert found.column_names == expected.columns

    def rows(table: list[dict[str, Any]]) -> list[Any]:
        plain = [json.loads(json.dumps(row, default=str)) for row in table]
        return sorted(plain, key=lambda row: json.dumps({k: v for k, v in row.items() if not isinstance(v, float)}))

    assert alike(rows(found.to_pylist()), rows(expected.rows()))


@needs_java
def test_values_mean_what_they_mean_to_duckdb(both: tuple[Run, SparkRun]) -> None:
    run, spark = both
    sql = """SELECT 1 / 0 AS inf, concat('a', NULL, 1) AS text, concat(round(0.00012, 5)) AS small,
        concat(12345678.5 / 1) AS large, [1, 2, 3][-1] AS last, [1][5] AS outside, round(2.5) AS half,
        CAST(2.6 / 1 AS BIGINT) AS whole, 'x' || NULL AS pipe, len([1, 2]) AS size, 7 // 2 AS div,
        '{"a": {"b.c": 1.5}}' ->> '$.a."b.c"' AS json, json_object('n', NULL, 'l', [1, NULL]) AS object,
        list_transform([1, 2], lambda x: x + 1) AS mapped, range(0, 0) AS none, $p AS param"""
    found, expected = spark.arrow(sql, {"p": 0.5}).to_pylist(), run.query(sql, {"p": 0.5}).rows()
    assert [json.loads(json.dumps(r, default=float)) for r in found] == [
        json.loads(json.dumps(r, default=float)) for r in expected
    ]


@needs_java
def test_spark_reads_the_data_set_in_place(session: SparkSession, tmp_path: Path) -> None:
    assert main(["export", str(DEMO), "--to", "dataset", "-o", str(tmp_path / "set")]) == 0
    paths = {p.name: [p.as_uri()] for p in (tmp_path / "set").iterdir() if p.is_dir() and p.name != "_runs"}
    spark = SparkRun(session, paths)
    assert spark.arrow("SELECT count(*) AS n FROM rounds").to_pylist() == [{"n": 346}]


@needs_java
def test_the_command_runs_queries_and_checks(
    session: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagletrace.store.spark.run.local_session", lambda: session)
    for arguments in (["histogram"], ["aux.flag"], ["--sql", "FROM acceptance_by_depth"]):
        said: list[str] = []
        for engine in ("spark", "duckdb"):
            assert main(["query", str(DEMO), *arguments, "--engine", engine, "--format", "csv"]) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]


@needs_java
@pytest.mark.parametrize("sql", ["DROP TABLE rounds", "SELECT nothing FROM rounds", "SELECT $missing", "SHOW TABLES"])
def test_sql_that_does_not_run_is_said_without_a_traceback(both: tuple[Run, SparkRun], sql: str) -> None:
    with pytest.raises(QueryError):
        both[1].arrow(sql)


def test_a_part_that_is_read_twice_is_a_step_and_equal_ones_are_one() -> None:
    first = to_spark("WITH a AS (SELECT count(*) AS n FROM rounds) SELECT * FROM a x, a y")
    second = to_spark("WITH b AS (SELECT count(*) AS n FROM rounds) SELECT n FROM b UNION ALL SELECT n FROM b")
    once = to_spark("WITH a AS (SELECT count(*) AS n FROM rounds) SELECT * FROM a")
    assert [name for name, _ in first.steps] == [name for name, _ in second.steps]
    assert len(first.steps) == 1 and not once.steps


def test_a_part_of_the_same_name_inside_is_another() -> None:
    made = to_spark(
        "WITH a AS (SELECT 1 AS n) SELECT (SELECT n FROM a), n FROM a, (WITH a AS (SELECT 2 AS n) SELECT n AS m FROM a)"
    )
    assert len(made.steps) == 1 and "2 AS `n`" in made.sql


def test_without_pyspark_or_java_the_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagletrace.store.spark.run.has_java", lambda: False)
    assert main(["query", str(DEMO), "histogram", "--engine", "spark"]) == 2
    assert "openjdk" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert main(["query", str(DEMO), "histogram", "--engine", "spark"]) == 2
    assert "eagletrace[spark]" in capsys.readouterr().err
