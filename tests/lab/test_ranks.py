"""Several ranks of a real server: one run, rows by rank, acceptance counted once, and a rank that differs is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagletrace.diagnose import diagnose
from eagletrace.lab.load import Answer, LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run
from eagletrace.store import Run, open_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
RANK_FAULT = str(Path(__file__).parent / "rank_fault")
TABLES = ("rounds", "verifies", "drafts", "requests", "totals", "params", "contract", "hooks", "events", "spans")
STEMS = ("def parse(self, text):\n    ", "import re\n\nclass ", "for key, value in ", "raise ValueError(")
LOAD = LoadOptions(prompts=[STEMS[n % 4] for n in range(16)], concurrency=4, max_new_tokens=[1, 40, 31, 48, 17])


def served(folder: Path, **options: Any) -> LabResult:
    result = lab_run(ServeOptions(dir=folder, **options), LOAD)
    assert not result.engine_died, result.reason
    return result


def one_run(folder: Path) -> Path:
    (info,) = folder.glob("*/run.json")
    return info.parent


def check_counts(run: Run, answers: list[Answer], view: str) -> None:
    """Rounds and accepted drafts of each request, from verdicts, are the engine's own."""
    own = {
        row["request_id"]: row
        for row in run.rows(f"""
            WITH per_round AS (
                SELECT r.request_id, r.round, count(*) FILTER (v.accepted) AS accepted
                FROM {view}.rounds r JOIN {view}.verifies v USING (host, pid, round, request_seq)
                WHERE r.counted AND r.tp_rank = (SELECT max(tp_rank) FROM {view}.rounds)
                GROUP BY ALL
            )
            SELECT request_id, count(*) AS rounds, sum(accepted) AS accepted FROM per_round GROUP BY ALL""")
    }
    for answer in answers:
        mine = own.get(answer.request_id, {"rounds": 0, "accepted": 0})
        counts = (answer.rounds, answer.meta_info["spec_num_correct_drafts"] if answer.rounds else 0)
        assert (mine["rounds"], mine["accepted"]) == counts, answer.meta_info


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabResult, Run]]:
    folder = tmp_path_factory.mktemp("tp")
    result = served(folder, tp=2)
    with open_run(one_run(folder)) as run:
        yield result, run


def test_both_ranks_write_one_run(tensor_parallel: tuple[LabResult, Run]) -> None:
    _, run = tensor_parallel
    for table in TABLES:
        ranks = run.rows(f"SELECT DISTINCT pid, tp_rank, dp_rank, pp_rank FROM all_ranks.{table} ORDER BY tp_rank")
        assert [(r["tp_rank"], r["dp_rank"], r["pp_rank"]) for r in ranks] == [(0, None, 0), (1, None, 0)], table
        assert len({r["pid"] for r in ranks}) == 2


def test_rounds_of_two_ranks_count_once(tensor_parallel: tuple[LabResult, Run]) -> None:
    result, run = tensor_parallel
    check_counts(run, result.answers, "main")  # the views: tensor-parallel rank 0
    check_counts(run, result.answers, "all_ranks")  # and rank 1, from its own rows
    for view in ("rounds", "totals"):
        what = "count(*)" if view == "rounds" else "sum(rounds)"
        assert run.rows(f"SELECT {what} AS n FROM {view}")[0]["n"] == result.rounds
    assert run.rows("SELECT count(*) AS n FROM requests")[0]["n"] == len(result.answers)
    outputs = {row["request_id"]: row["output_ids"] for row in run.rows("SELECT request_id, output_ids FROM outputs")}
    assert outputs == {answer.request_id: answer.output_ids for answer in result.answers}


def test_the_draft_is_seen_whole_on_a_rank_that_holds_a_part(tensor_parallel: tuple[LabResult, Run]) -> None:
    _, run = tensor_parallel
    rows = run.rows("SELECT count(*) AS n, count(draft_entropy) AS entropy, max(draft_vocab_id) AS id FROM drafts")[0]
    assert rows["n"] == rows["entropy"] > 100
    head = run.rows("SELECT shape[1] AS rows FROM params WHERE side = 'draft' AND name = 'lm_head.weight'")[0]["rows"]
    assert rows["id"] >= head  # ids of the other rank's part
    assert run.rows("SELECT fact('draft.draft_vocab_size')::INT AS n")[0]["n"] == 2 * head


def test_healthy_ranks_raise_no_alarm(tensor_parallel: tuple[LabResult, Run]) -> None:
    _, run = tensor_parallel
    found = diagnose(run)
    assert found.verdict == "healthy"
    assert [(c.id, c.reason) for c in found.checks if c.status == "alarm"] == []
    ranks = {c.id: c.status for c in found.checks if c.id.startswith("ranks.")}
    assert {id for id, status in ranks.items() if status == "ok"} == {*ranks} - {"ranks.acceptance"}
    (compared,) = run.rows("SELECT count(*) AS n FROM all_ranks.rounds WHERE counted AND tp_rank = 1")
    (check,) = (c for c in found.checks if c.id == "ranks.rounds")
    assert check.evidence[0].rows[0]["compared"] == compared["n"]


def test_a_rank_that_fails_is_named(tmp_path: Path) -> None:
    """One data-parallel rank serves other weights: half of the requests lose, and the diagnosis says on which rank."""
    path = f"{RANK_FAULT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        served(tmp_path, dp=2, extra_env={"RANK_FAULT": "1"})
    with open_run(one_run(tmp_path)) as run:
        found = diagnose(run)
        rounds = {r["dp_rank"]: r for r in run.rows(
            "SELECT dp_rank, count(*) AS n, avg(accepted) AS accepted FROM rounds GROUP BY ALL")}  # fmt: skip
    assert (found.verdict, [cause.id for cause in found.causes]) == ("fault", ["batch.row"])
    evidence = {e.query: e for e in found.causes[0].evidence}
    assert [w["name"] for w in evidence["ranks_weights"].rows[0]["which"]] == ["model.norm.weight"]
    assert evidence["ranks_weights"].rows[0]["dp_rank"] == 1
    assert evidence["ranks_acceptance"].rows[0]["dp_rank"] == 1
    assert rounds[1]["accepted"] < 0.2 < 1 < rounds[0]["accepted"]
