"""Answers of bundled queries on small runs with known content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagletrace.store import open_run
from eagletrace.store.sqlfile import load_folder
from tests.store.runs import chain, make_folder, request, small_run, writer


def ask(path: Path, name: str, **params: Any) -> list[dict[str, Any]]:
    file = load_folder("explore")[name]
    values = {p.name: p.default for p in file.params.values()} | params
    with open_run(path) as run:
        return run.query(file.sql, values or None).rows()


def test_rejected_tokens_name_what_the_target_wanted(tmp_path: Path) -> None:
    rows = ask(small_run(tmp_path / "run"), "rejected-tokens")
    assert [(r["draft_token"], r["target_wanted"], r["times"], r["best_rank"]) for r in rows] == [
        (7, 103, 1, 4), (8, 104, 1, 4),
    ]  # fmt: skip


def test_worst_requests_first(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    for seq, drafts in ((1, [101]), (2, [7])):
        row, nodes = chain(seq, 10, 100, drafts, [101, 102], seq=seq)
        w.write("rounds", [row])
        w.write("verifies", nodes)
        w.write("requests", [request(seq)])
    rows = ask(path, "worst-requests", min_rounds=1)
    assert [(r["request_id"], r["accept_length"]) for r in rows] == [("req-2", 1.0), ("req-1", 2.0)]
    assert ask(path, "worst-requests") == []
    assert len(ask(path, "worst-requests", min_rounds=1, limit=1)) == 1


def test_out_of_vocabulary_tokens_leave_out_what_was_not_recorded(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    for number, known in enumerate((False, False, True, None), 1):
        _, nodes = chain(number, 10, 100, [7], [101 if known is False else 9, 1])
        row, _ = chain(number, 10, 100, [7], [101, 1])
        w.write("rounds", [row])
        w.write("verifies", [{**n, "target_token_in_draft_vocab": known if n["depth"] else None} for n in nodes])
    assert ask(path, "out-of-vocabulary-tokens") == [{"token": 101, "times": 2, "share": 2 / 3}]


def test_timeline(tmp_path: Path) -> None:
    rows = ask(small_run(tmp_path / "run"), "timeline", seconds=2.0)
    assert [(str(r["time"])[-8:], r["rounds"], r["accept_length"]) for r in rows] == [
        ("00:00:00", 1, 3.0), ("00:00:02", 2, 2.5),
    ]  # fmt: skip


def test_load_time_facts(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    w = writer(path)
    w.write("checkpoint_keys", [{"key": "a", "fate": "loaded"}, {"key": "b", "fate": "dropped", "shape": [2, 3]}])
    w.write("contract", [
        {"key": "same", "expected": "[1, 2]", "actual": "[1,2]"}, {"key": "other", "expected": "true", "actual": None},
        {"key": "free", "expected": None, "actual": "1"},
    ])  # fmt: skip
    w.write("events", [{"time_unix_nano": 10**18 + 1, "kind": "set_embed",
                        "detail": '{"caller": "w", "embed_before": {"checksum": "x"}}'}])  # fmt: skip
    w.write("totals", [{"rounds": 1, "dropped_rows_by_reason": '{"queue full": 3}'},
                       {"rounds": 1, "dropped_rows_by_reason": '{"queue full": 4}'}])  # fmt: skip
    assert [(r["key"], r["shape"]) for r in ask(path, "dropped-keys")] == [("b", [2, 3])]
    assert [r["key"] for r in ask(path, "violations")] == ["other"]
    (event,) = ask(path, "sharing-events")
    assert (event["caller"], event["embed_before"], event["head_before"]) == ("w", "x", None)
    assert [(r["reason"], r["rows"]) for r in ask(path, "dropped-rows")] == [("queue full", 7)]
