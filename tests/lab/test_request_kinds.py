"""Requests of every kind on a real server of two data-parallel ranks: the trace agrees with the engine on each.

Counts of the trace come from verdicts alone, those of the engine from its HTTP answers. On a CPU SGLang verifies
greedily at any temperature: what a sampled verdict gives is tested in test_sampled_verdict.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import request_kinds as kinds

from eagletrace.diagnose import diagnose
from eagletrace.lab.load import Answer
from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.server import LabServer
from eagletrace.store import Run, open_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
FLUSH_S = 1.5
ALL_KINDS = [*kinds.KINDS, *(f"{kind}, with others" for kind in kinds.TOGETHER)]


@dataclass
class Sent:
    """What was sent to a server, and what came back."""

    answers: dict[str, list[Answer]]
    refused: int = 0
    more: dict[str, Answer] = field(default_factory=dict[str, Answer])
    hung_up: list[int] = field(default_factory=list[int])
    early: list[str] = field(default_factory=list[str])


def start(folder: Path, *, traced: bool) -> LabServer:
    plan = serving(ServeOptions(
        dir=folder / "runs", dp=2, tracing="on" if traced else "off",
        extra_flags={"chunked-prefill-size": kinds.CHUNK},
    ))  # fmt: skip
    return LabServer(plan.engine, plan.flags, plan.env, log=folder / "log")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    with start(tmp_path_factory.mktemp("plain"), traced=False) as server:
        sent = kinds.send_all(server)
        server.kill()
    return sent


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sent, Run]]:
    folder = tmp_path_factory.mktemp("kinds")
    with start(folder, traced=True) as server:
        sent = Sent(kinds.send_all(server))
        sent.refused, sent.more["same"] = kinds.send_twice_at_once(server)
        sent.hung_up = kinds.hang_up(server, "hung-up")
        sent.more["aborted"] = kinds.abort(server, "aborted")
        sent.early = kinds.abort_in_prefill(server, "early")
        assert server.get("/health_generate").status == 200
        time.sleep(FLUSH_S)
        server.kill()
    (info,) = (folder / "runs").glob("*/run.json")
    with open_run(info.parent) as run:
        yield sent, run


OWN = """
    WITH per_round AS (
        SELECT r.host, r.pid, r.round, r.request_seq, r.committed,
               count(*) FILTER (v.accepted AND v.depth > 0) AS accepted
        FROM all_rounds r JOIN all_verifies v USING (host, pid, round, request_seq)
        WHERE r.counted
        GROUP BY ALL
    ),
    own AS (
        SELECT host, pid, request_seq, count(*) AS rounds, sum(accepted) AS accepted, list(accepted) AS correct
        FROM per_round GROUP BY ALL
    )
    SELECT q.*, coalesce(o.rounds, 0) AS rounds, coalesce(o.accepted, 0) AS accepted,
           coalesce(o.correct, []) AS correct, coalesce(t.output_ids, []) AS output_ids
    FROM all_requests q
    LEFT JOIN own o USING (host, pid, request_seq) LEFT JOIN outputs t USING (host, pid, request_seq)
    ORDER BY q.start_time_unix_nano
"""


def recorded(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Requests by id, in the order in which they began."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows(OWN):
        found.setdefault(row["request_id"], []).append(row)
    return found


def check(answer: Answer, row: dict[str, Any]) -> None:
    """Rounds, correct drafts, their histogram, and the output token for token; and what is said of the request."""
    meta = answer.meta_info
    assert row["rounds"] == answer.rounds, meta
    if answer.rounds:
        assert row["accepted"] == meta["spec_num_correct_drafts"]
        counts = Counter(row["correct"])
        histogram = meta["spec_correct_drafts_histogram"]
        assert [counts[n] for n in range(len(histogram))] == histogram
    assert row["output_ids"] == answer.output_ids
    assert (row["output_tokens"], row["prompt_tokens"]) == (meta["completion_tokens"], meta["prompt_tokens"])
    assert row["finish_reason"] == meta["finish_reason"]["type"]
    assert row["engine_rounds"] == answer.rounds
    assert row["cached_tokens"] == meta["cached_tokens"]
    assert row["request_kind"] == "user"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_trace_agrees_with_the_engine(kind: str, traced: tuple[Sent, Run]) -> None:
    sent, run = traced
    rows = recorded(run)
    for answer in sent.answers[kind]:
        same_id = rows[answer.request_id]
        check(answer, same_id[1 if kind == "id again" else 0])


def test_what_is_said_of_a_request(traced: tuple[Sent, Run]) -> None:
    sent, run = traced
    rows = recorded(run)
    said = {kind: rows[found[0].request_id][0] for kind, found in sent.answers.items()}
    assert {kind for kind, row in said.items() if row["has_grammar"]} == {
        "json schema", "regular expression", "json schema, with others"
    }  # fmt: skip
    assert {kind for kind, row in said.items() if row["temperature"]} == {"temperature", "temperature, with others"}
    assert said["stop strings"]["finish_reason"] == said["regular expression"]["finish_reason"] == "stop"
    assert len(rows["again"]) == 2


def test_a_prefill_in_chunks_is_one_request(traced: tuple[Sent, Run]) -> None:
    sent, run = traced
    (answer,) = sent.answers["chunked prefill"]
    row = recorded(run)[answer.request_id][0]
    chunks = run.rows(f"""
        SELECT (s.attributes->>'$."eagle.tokens"')::INT AS tokens
        FROM all_ranks.spans s
        WHERE s.name = 'eagle.prefill' AND s.pid = {row["pid"]}
          AND s.start_time_unix_nano BETWEEN {row["start_time_unix_nano"] - 10**9} AND {row["end_time_unix_nano"]}
          AND contains(s.links, (SELECT trace_id FROM all_ranks.spans WHERE name = 'eagle.request'
                                 AND attributes->>'$."gen_ai.response.id"' = '{answer.request_id}'))""")
    assert len(chunks) > 1 and max(c["tokens"] for c in chunks) <= kinds.CHUNK
    assert sum(c["tokens"] for c in chunks) >= row["prompt_tokens"] - row["cached_tokens"]
    rounds = run.rows(f"SELECT request_round FROM rounds WHERE request_id = '{answer.request_id}' ORDER BY round")
    assert [r["request_round"] for r in rounds] == list(range(1, len(rounds) + 1))


def test_an_id_in_use_is_refused_by_the_engine(traced: tuple[Sent, Run]) -> None:
    sent, run = traced
    assert sent.refused == 400
    (row,) = recorded(run)["same"]
    check(sent.more["same"], row)


def test_an_aborted_request_is_closed_with_what_was_generated(traced: tuple[Sent, Run]) -> None:
    sent, run = traced
    rows = recorded(run)
    (row,) = rows["aborted"]
    check(sent.more["aborted"], row)
    (left,) = rows["hung-up"]
    assert left["output_ids"][: len(sent.hung_up)] == sent.hung_up
    assert left["output_tokens"] == len(left["output_ids"]) < 900
    assert (left["rounds"], left["accepted"]) == (left["engine_rounds"], left["engine_accepted"])
    begun = [rows[id][0] for id in sent.early if id in rows]  # the others had not begun, so that nothing was seen
    assert begun
    assert {(one["output_tokens"], one["rounds"], *one["output_ids"]) for one in begun} == {(0, 0)}
    for closed in (row, left, *begun):
        assert closed["finish_reason"] == "abort"
        assert closed["end_time_unix_nano"] >= closed["start_time_unix_nano"]
    assert run.rows("SELECT request_id FROM all_requests WHERE end_time_unix_nano IS NULL") == []


def test_health_checks_and_warm_up_do_not_count(traced: tuple[Sent, Run]) -> None:
    _, run = traced
    asked = {row["kind"]: row["n"] for row in run.rows(
        "SELECT request_kind AS kind, count(*) AS n FROM all_requests GROUP BY ALL")}  # fmt: skip
    assert asked["warmup"] == 2  # each rank's own
    assert asked["health"] >= 1
    assert run.rows("SELECT count(*) AS n FROM requests")[0]["n"] == asked["user"]
    (counted,) = run.rows("SELECT count(*) AS n, sum(accepted) AS accepted FROM rounds")
    (total,) = run.rows("SELECT sum(rounds) AS n, sum(accepted) AS accepted FROM totals")
    assert counted == total
    others = run.rows("""
        SELECT count(*) AS n FROM all_rounds JOIN all_requests q USING (host, pid, request_seq)
        WHERE counted AND request_kind <> 'user'""")[0]["n"]
    assert others > 0
    assert run.rows("SELECT count(*) AS n FROM all_rounds WHERE counted")[0]["n"] == counted["n"] + others


def test_the_ranks_share_the_requests(traced: tuple[Sent, Run]) -> None:
    sent, run = traced
    ranks = run.rows("SELECT DISTINCT pid, tp_rank, dp_rank, pp_rank FROM all_ranks.rounds ORDER BY dp_rank")
    assert [(r["tp_rank"], r["dp_rank"], r["pp_rank"]) for r in ranks] == [(0, 0, 0), (0, 1, 0)]
    assert len({r["pid"] for r in ranks}) == 2
    (keys,) = run.rows(
        "SELECT count(*) AS n, count(DISTINCT (host, pid, request_seq)) AS keys, count(DISTINCT request_seq) AS seqs "
        "FROM requests"
    )
    assert keys["n"] == keys["keys"] > keys["seqs"]  # each rank numbers its own
    everything = [answer for found in sent.answers.values() for answer in found] + list(sent.more.values())
    rows = recorded(run)
    engine = sum(answer.rounds for answer in everything) + rows["hung-up"][0]["engine_rounds"]
    unseen = sum(row["rounds"] for id, found in rows.items() if id.startswith("early") for row in found)
    assert run.rows("SELECT count(*) AS n FROM rounds")[0]["n"] == engine + unseen


def test_no_kind_of_request_looks_like_a_fault(traced: tuple[Sent, Run]) -> None:
    _, run = traced
    found = diagnose(run)
    assert found.verdict == "healthy"
    assert [(c.id, c.reason) for c in found.checks if c.status == "alarm"] == []
    assert run.rows("SELECT target, detail FROM hooks WHERE errors > 0") == []


def test_tracing_changes_no_token(traced: tuple[Sent, Run], plain: dict[str, list[Answer]]) -> None:
    sent, _ = traced
    assert sent.answers.keys() == plain.keys()
    for kind, found in plain.items():
        if kind == "temperature, with others":
            continue  # its first token is drawn, and what is drawn depends on who else is in the batch
        assert [a.output_ids for a in sent.answers[kind]] == [a.output_ids for a in found], kind
        if kind in kinds.KINDS:
            assert [a.rounds for a in sent.answers[kind]] == [a.rounds for a in found], kind
