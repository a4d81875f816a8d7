"""The views give the contract's definitions, checked against counts worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagletrace.format import TABLES
from eagletrace.store import Run, open_run
from eagletrace.store import run as store_run
from eagletrace.store.files import TableFiles, read_table
from eagletrace.store.slots import Slots
from eagletrace.store.sqlfile import load_folder
from tests.store.runs import chain, make_folder, request, small_run, writer


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with open_run(small_run(tmp_path_factory.mktemp("small") / "run")) as run:
        yield run


def test_only_counted_rounds_of_user_requests(tmp_path: Path) -> None:
    with open_run(small_run(tmp_path / "run")) as run:
        assert run.rows("SELECT round FROM rounds ORDER BY round") == [{"round": 1}, {"round": 2}, {"round": 3}]
        assert run.rows("SELECT count(*) n FROM all_rounds") == [{"n": 5}]
        assert run.rows("SELECT count(*) n FROM verifies") == [{"n": 12}]
        assert run.rows("SELECT count(*) n FROM all_verifies") == [{"n": 20}]


def test_acceptance(tmp_path: Path) -> None:
    with open_run(small_run(tmp_path / "run")) as run:
        (row,) = run.rows("FROM acceptance")
        assert (row["rounds"], row["drafted"], row["accepted"]) == (3, 9, 5)
        assert row["accept_length"] == pytest.approx(1 + 5 / 3)
        assert row["engine_reported_accept_length"] == pytest.approx(8 / 3)
        depths = run.rows("SELECT depth, reached, accepted, rate, unconditional_rate FROM acceptance_by_depth")
        assert [(d["depth"], d["reached"], d["accepted"]) for d in depths] == [(1, 3, 2), (2, 2, 2), (3, 2, 1)]
        assert [d["rate"] for d in depths] == pytest.approx([2 / 3, 1, 1 / 2])
        assert [d["unconditional_rate"] for d in depths] == pytest.approx([2 / 3, 2 / 3, 1 / 3])
        histogram = run.rows("SELECT correct_drafts, rounds FROM correct_drafts_histogram")
        assert [tuple(h.values()) for h in histogram] == [(0, 1), (1, 0), (2, 1), (3, 1)]
        totals = run.rows("SELECT reached, accepted FROM totals_by_depth")
        assert [tuple(t.values()) for t in totals] == [(3, 2), (2, 2), (2, 1)]


def test_output_is_rebuilt(tmp_path: Path) -> None:
    with open_run(small_run(tmp_path / "run")) as run:
        (row,) = run.rows("FROM outputs")
        assert row["output_ids"] == list(range(100, 108))
        assert (row["first_index"], row["complete"]) == (0, True)


def test_a_stop_inside_the_drafts_cuts_the_output(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    row, nodes = chain(1, 10, 100, [101, 102, 103], [101, 102, 103, 104], committed=2)
    w = writer(path)
    w.write("rounds", [row])
    w.write("verifies", nodes)
    w.write("requests", [request(output_tokens=3)])
    with open_run(path) as run:
        assert run.rows("SELECT output_ids, complete FROM outputs") == [
            {"output_ids": [100, 101, 102], "complete": True}
        ]
        assert run.rows("SELECT accepted FROM acceptance") == [{"accepted": 3}], "correct drafts before any cut"


def test_a_gap_makes_the_output_incomplete(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    rounds = [chain(1, 10, 100, [101], [101, 102]), chain(3, 14, 104, [105], [105, 106])]
    w = writer(path)
    w.write("rounds", [r for r, _ in rounds])
    w.write("verifies", [n for _, nodes in rounds for n in nodes])
    w.write("requests", [request(output_tokens=6)])
    with open_run(path) as run:
        (row,) = run.rows("FROM outputs")
        assert row["output_ids"] == [100, 101, 102, 104, 105, 106]
        assert row["complete"] is False


def test_a_tree_counts_rounds_and_not_nodes(tmp_path: Path) -> None:
    """Root 0 with children 1 and 2; 2 is right; 3 and 4 under 2, both wrong; 5 under the rejected 1."""
    path = make_folder(tmp_path / "run")
    parents = {0: None, 1: 0, 2: 0, 3: 2, 4: 2, 5: 1}
    depth = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}
    verdicts = [
        {
            "round": 1, "request_seq": 1, "node": n, "parent_node": p, "depth": depth[n], "position": 10 + depth[n],
            "draft_token": 50 + n, "expected_token": None if p is None else {0: 52, 2: 90, 1: 91}[p],
            "target_token": {0: 52, 2: 90}.get(n, 91), "reached": p in (None, 0, 2),
            "accepted": None if p is None else n == 2, "draft_rank_of_target_token": {0: 2, 2: 30}.get(p or 0),
        }
        for n, p in parents.items()
    ]  # fmt: skip
    row, _ = chain(1, 10, 50, [51], [51, 52], accepted=1, committed=2, drafted=5)
    w = writer(path)
    w.write("rounds", [row])
    w.write("verifies", verdicts)
    w.write("requests", [request(output_tokens=3)])
    with open_run(path) as run:
        depths = run.rows("SELECT depth, reached, accepted FROM acceptance_by_depth")
        assert [tuple(d.values()) for d in depths] == [(1, 1, 1), (2, 1, 0)]
        assert run.rows("SELECT rounds, drafted, accepted FROM acceptance") == [
            {"rounds": 1, "drafted": 5, "accepted": 1}
        ]
        ranks = run.rows("SELECT depth, rank, positions FROM rank_histogram")
        assert [tuple(r.values()) for r in ranks] == [(1, 2, 1), (2, 30, 1)]
        assert run.rows("SELECT output_ids FROM outputs") == [{"output_ids": [50, 52, 90]}]


def test_unobserved_verdicts_count_as_nothing(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    row, nodes = chain(1, 10, 100, [101, 102], [101, 102, 103], counted=None)
    unseen = [{**n, "reached": None, "accepted": None} if n["depth"] == 2 else n for n in nodes]
    w = writer(path)
    w.write("rounds", [row])
    w.write("verifies", unseen)
    with open_run(path) as run:
        assert run.rows("SELECT count(*) n FROM rounds") == [{"n": 1}], "counted NULL is not false"
        depths = run.rows("SELECT depth, reached, accepted FROM acceptance_by_depth")
        assert [tuple(d.values()) for d in depths] == [(1, 1, 1), (2, 0, 0)]


def test_ranks_see_each_round_once(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    row, nodes = chain(1, 10, 100, [101], [101, 102])
    for rank in range(2):
        w = writer(path, pid=10 + rank, tp_rank=rank)
        w.write("rounds", [row])
        w.write("verifies", nodes)
        w.write("contract", [{"key": "engine.version", "actual": f'"{rank}"', "time_unix_nano": 5 + rank}])
    with open_run(path) as run:
        assert run.rows("SELECT count(*) n FROM rounds") == [{"n": 1}]
        assert run.rows("SELECT count(*) n FROM verifies") == [{"n": 2}]
        assert run.rows("SELECT count(*) n FROM all_ranks.rounds") == [{"n": 2}]
        assert run.rows("SELECT actual FROM contract") == [{"actual": '"0"'}]


def test_two_processes_do_not_mix_their_rounds(tmp_path: Path) -> None:
    """Data-parallel replicas: the same round and request numbers in two processes."""
    path = make_folder(tmp_path / "run")
    for pid, drafts in ((10, [101]), (11, [7])):
        row, nodes = chain(1, 10, 100, drafts, [101, 102])
        w = writer(path, pid=pid)
        w.write("rounds", [row])
        w.write("verifies", nodes)
        w.write("requests", [request(request_kind="user" if pid == 10 else "health")])
    with open_run(path) as run:
        assert run.rows("SELECT rounds, accepted FROM acceptance") == [{"rounds": 1, "accepted": 1}]


def test_newest_row_counts(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    w.write(
        "contract", [{"key": "a", "actual": "2", "time_unix_nano": 2}, {"key": "a", "actual": "1", "time_unix_nano": 1}]
    )
    w.write(
        "hooks", [{"target": "t", "calls": 1, "time_unix_nano": 1}, {"target": "t", "calls": 9, "time_unix_nano": 2}]
    )
    w.write("params", [{"side": "draft", "name": "fc", "phase": "serving", "time_unix_nano": 2},
                       {"side": "draft", "name": "fc", "phase": "loaded", "time_unix_nano": 1}])  # fmt: skip
    with open_run(path) as run:
        assert run.rows("SELECT actual FROM contract") == [{"actual": "2"}]
        assert run.rows("SELECT calls FROM hooks") == [{"calls": 9}]
        assert run.rows("SELECT phase FROM params") == [{"phase": "serving"}]
        assert run.rows("SELECT count(*) n FROM all_ranks.params") == [{"n": 2}]


def test_empty_run_has_every_table_with_its_columns(tmp_path: Path) -> None:
    with open_run(make_folder(tmp_path / "run")) as run:
        for table in TABLES.values():
            for schema in ("all_ranks", "main"):
                described = run.rows(f"DESCRIBE {schema}.{table.name}")
                assert [d["column_name"] for d in described] == table.column_names()
        (acceptance,) = run.rows("SELECT rounds, accept_length FROM acceptance")
        assert acceptance == {"rounds": 0, "accept_length": None}


@pytest.mark.parametrize("name", [n for n, f in load_folder("views").items() if f.meta.get("kind") != "macro"])
def test_every_view_documents_what_it_needs(name: str, small: Run) -> None:
    files = load_folder("views")
    file = files[name]
    assert file.title != name and file.words("needs")
    columns = {d["column_name"] for d in small.rows(f"DESCRIBE {name}")}
    assert set(file.columns) <= columns
    small.rows(f"FROM {name}")
    for needed in file.words("needs"):
        assert needed.removeprefix("all_ranks.") in {*files, *TABLES}


@pytest.mark.parametrize("name", load_folder("views"))
def test_every_view_opens_on_its_own(name: str, tmp_path: Path) -> None:
    """What it `needs` is all that it needs."""
    with open_run(small_run(tmp_path / "run")) as run:
        run.open([name])


def test_only_what_a_query_names_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def reading(path: Path, table: str, slots: Slots | None = None) -> TableFiles:
        opened.append(table)
        return read_table(path, table, slots)

    monkeypatch.setattr(store_run, "read_table", reading)
    with open_run(small_run(tmp_path / "run")) as run:
        assert opened == []
        run.query("SELECT count(*) FROM events")
        assert opened == ["events"]
        run.query("SELECT count(*) FROM Rounds")
        assert opened == ["events", "rounds", "requests"], "requests last: every round has its request"
        run.query("SELECT * FROM query_table('hoo' || 'ks')")
        assert set(opened) == set(TABLES)
        assert len(opened) == len(TABLES)


@pytest.mark.parametrize("name", load_folder("explore"))
def test_every_bundled_query_runs(name: str, small: Run) -> None:
    file = load_folder("explore")[name]
    assert file.words("needs")
    result = small.query(file.sql, {p.name: p.default for p in file.params.values()} or None)
    assert set(file.columns) <= set(result.columns)
