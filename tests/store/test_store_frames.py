"""A run from Python: DuckDB relations, Arrow, pandas and polars, and what is said where one of them is absent."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import eagletrace
from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.store.frames import MissingPackageError
from tests.store.runs import request, small_run, writer


@pytest.fixture
def run(tmp_path: Path):
    with eagletrace.open_run(small_run(tmp_path / "run")) as opened:
        yield opened


def test_a_relation_is_lazy_and_composes(run: eagletrace.store.Run) -> None:
    relation = run.relation("rounds")
    assert isinstance(relation, duckdb.DuckDBPyRelation)
    assert relation.filter("accepted > 0").aggregate("count(*), sum(accepted)").fetchall() == [(2, 5)]
    assert run.relation("all_ranks.rounds").aggregate("count(*)").fetchall() == [(5,)]
    assert run.relation("acceptance").fetchall()[0][:3] == (3, 9, 5)


def test_every_name_opens_and_has_the_same_rows_everywhere(run: eagletrace.store.Run) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    names = run.names()
    assert {"rounds", "all_ranks.spans", "acceptance_by_depth", "tensors"} <= set(names) and "fact" not in names
    for name in names:
        table, frame, polars = run.arrow(name), run.df(name), run.pl(name)
        assert isinstance(table, pa.Table)
        assert list(frame.columns) == polars.columns == table.column_names
        assert len(frame) == polars.height == table.num_rows
    assert run.arrow("rounds").num_rows == 3


def test_null_stays_null_and_integers_stay_integers(run: eagletrace.store.Run) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    ended = run.df("requests")["end_time_unix_nano"]
    assert str(ended.dtype) == "int64[pyarrow]" and int(ended[0]) == 9
    missing = run.df("rounds")["target_hidden_width"]
    assert missing.isna().all() and str(missing.dtype) == "int32[pyarrow]"
    assert run.pl("rounds")["target_hidden_width"].null_count() == 3
    assert run.pl("rounds")["accepted"].to_list() == [2, 0, 3]


def test_the_result_of_a_query_as_frames(run: eagletrace.store.Run) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    result = run.query("SELECT depth, accepted FROM acceptance_by_depth ORDER BY depth")
    assert result.df()["accepted"].tolist() == result.pl()["accepted"].to_list() == [2, 2, 1]


def test_an_unknown_name_is_refused_with_the_nearest(run: eagletrace.store.Run) -> None:
    for ask in (run.relation, run.arrow, run.df, run.pl):
        with pytest.raises(UnknownNameError, match=r"did you mean .*rounds"):
            ask("round")
    with pytest.raises(UnknownNameError):
        run.relation("rounds; DROP TABLE x")


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_an_absent_library_is_named_with_the_way_out(
    run: eagletrace.store.Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    short = {"pandas": "df", "polars": "pl"}[name]
    for ask in (lambda: getattr(run, short)("rounds"), lambda: getattr(run.query("SELECT 1"), short)()):
        with pytest.raises(MissingPackageError, match=rf"{name} is not installed.*pip install {name}") as caught:
            ask()
        assert isinstance(caught.value, EagletraceError) and caught.value.exit_code == 2
    assert run.arrow("rounds").num_rows == 3


def test_batches_stream(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    writer(path, pid=8).write("requests", [request(seq) for seq in range(10, 3010)])
    with eagletrace.open_run(path) as run:
        parts = [batch.num_rows for batch in run.batches("SELECT request_seq FROM all_ranks.requests", rows=1000)]
    assert sum(parts) == 3003 and max(parts) <= 2048 and len(parts) > 1
