"""Verdicts of chains and trees against the contract's definitions, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.rounds import Columns, Ints, RoundPacket, add_node_rows, add_round_rows, verdicts
from eagletrace.record.totals import Totals
from tests.record.packets import chain, host, state, tree

Row = dict[str, Any]


def table_rows(packet: RoundPacket, table: str, *, redacted: bool = False) -> list[Row]:
    """The rows that the recorder would write of a launch, all requests kept."""
    import pyarrow as pa

    def as_they_are(ids: Ints) -> Ints:
        return ids

    out = {"rounds": Columns(), "drafts": Columns(), "verifies": Columns()}
    seen, keep = verdicts(packet), np.ones(len(packet.requests), dtype=np.bool_)
    add_round_rows(out["rounds"], packet, seen, keep)
    if seen is not None:
        add_node_rows(out["drafts"], out["verifies"], packet, seen, keep, as_they_are, redacted)
    schema = arrow_schema(TABLES[table])
    types: dict[str, Any] = {field.name: field.type for field in schema}
    return pa.table(out[table].arrow(types.__getitem__)).to_pylist()


def column(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_a_chain_with_two_correct_drafts() -> None:
    packet = chain([101, 102, 7], [101, 102, 103, 9])
    rows = table_rows(packet, "verifies")
    assert column(rows, "node") == [0, 1, 2, 3] and column(rows, "parent_node") == [None, 0, 1, 2]
    assert column(rows, "depth") == [0, 1, 2, 3] and column(rows, "position") == [10, 11, 12, 13]
    assert column(rows, "draft_token") == [100, 101, 102, 7]
    assert column(rows, "expected_token") == [None, 101, 102, 103]
    assert column(rows, "target_token") == [101, 102, 103, 9]
    assert column(rows, "reached") == [True, True, True, True]
    assert column(rows, "accepted") == [None, True, True, False]
    (round_,) = table_rows(packet, "rounds")
    assert (round_["accepted"], round_["drafted"], round_["committed"], round_["position"]) == (2, 3, 3, 10)


def test_what_follows_a_rejected_draft_is_not_reached() -> None:
    rows = table_rows(chain([8, 101, 102], [101, 102, 103, 9]), "verifies")
    assert column(rows, "reached") == [True, True, False, False]
    assert column(rows, "accepted") == [None, False, False, False]


def test_a_tree_with_siblings() -> None:
    packet = tree()
    rows = table_rows(packet, "verifies")
    first, second = rows[:6], rows[6:]
    assert column(first, "parent_node") == column(second, "parent_node") == [None, 0, 0, 1, 1, 3]
    assert column(first, "depth") == column(second, "depth") == [0, 1, 1, 2, 2, 3]
    # Request 1: the second child of the root is right, and a leaf.
    assert column(first, "expected_token") == [None, 52, 52, 90, 90, 92]
    assert column(first, "reached") == [True, True, True, False, False, False]
    assert column(first, "accepted") == [None, False, True, False, False, False]
    # Request 2: node 1, then its second child 4.
    assert column(second, "expected_token") == [None, 61, 61, 64, 64, 96]
    assert column(second, "reached") == [True, True, True, True, True, False]
    assert column(second, "accepted") == [None, True, False, False, True, False]
    assert column(table_rows(packet, "rounds"), "accepted") == [1, 2]
    assert column(table_rows(packet, "rounds"), "request_round") == [1, 4]


def test_totals_count_rounds_by_depth_not_nodes() -> None:
    totals, packet = Totals(), tree()
    seen = verdicts(packet)
    assert seen is not None
    totals.add(packet, seen)
    row = totals.take(5)
    assert row is not None
    # Depth 1: both reach it and both have a right node. Depth 2: only request 2 reaches it (node 2 of request 1 is a
    # leaf), and is right. Depth 3 hangs under node 3, which nobody accepted.
    assert row["reached_by_depth"] == [2, 1, 0] and row["accepted_by_depth"] == [2, 1, 0]
    assert row["correct_drafts_histogram"] == [0, 1, 1, 0]
    assert (row["rounds"], row["drafted"], row["accepted"]) == (2, 10, 3)
    assert totals.take(6) is None


@pytest.mark.parametrize(("kind", "counted"), [("warmup", True), ("health", True), ("user", False)])
def test_totals_leave_out_what_is_not_a_users_counted_round(kind: str, counted: bool) -> None:
    totals = Totals()
    packet = chain([101], [101, 102], requests=[state(kind=kind)], counted=[counted])
    seen = verdicts(packet)
    assert seen is not None
    totals.add(packet, seen)
    assert totals.take(1) is None


def test_totals_grow_with_deeper_rounds() -> None:
    totals = Totals()
    for packet in (chain([1], [9, 9]), chain([101, 102, 103], [101, 102, 103, 104])):
        seen = verdicts(packet)
        assert seen is not None
        totals.add(packet, seen)
    row = totals.take(1)
    assert row is not None and row["correct_drafts_histogram"] == [1, 0, 0, 1]
    assert row["reached_by_depth"] == [2, 1, 1] and row["accepted_by_depth"] == [1, 1, 1]


def test_what_the_draft_did_not_tell_is_null() -> None:
    rows = table_rows(chain([101, 102], [101, 7, 8]), "drafts")
    assert column(rows, "node") == [1, 2] and column(rows, "parent_node") == [0, 1]
    for name in ("draft_vocab_id", "draft_prob", "draft_logprob", "draft_entropy", "rope_position"):
        assert column(rows, name) == [None, None], name
    verified = table_rows(chain([101, 102], [101, 7, 8]), "verifies")
    for name in ("draft_rank_of_target_token", "target_token_in_draft_vocab", "target_logprob_of_draft_token",
                 "grammar_masked"):  # fmt: skip
        assert column(verified, name) == [None] * 3, name


def _with_draft_facts(**facts: Any) -> RoundPacket:
    unknown = float("nan")
    known: dict[str, Any] = {
        "draft_ids": host([-1, 4, 0]), "ranks": host([0, 1, -1]), "in_vocab": host([-1, 1, 0]),
        "rope_positions": host([-1, 10, -1]), "draft_logprobs": host([unknown, -0.5, unknown], float),
        "draft_entropies": host([unknown, 2.0, 0.0], float),
    }  # fmt: skip
    return chain([101, 102], [101, 7, 8], **(known | facts))


def test_zero_is_not_null_and_unknown_is_not_zero() -> None:
    drafts = table_rows(_with_draft_facts(), "drafts")
    assert column(drafts, "draft_vocab_id") == [4, 0] and column(drafts, "rope_position") == [10, None]
    assert column(drafts, "draft_entropy") == [2.0, 0.0] and column(drafts, "draft_logprob") == [-0.5, None]
    assert column(drafts, "draft_prob") == [None, None]  # the engine fills 1.0 for chains
    verifies = table_rows(_with_draft_facts(), "verifies")
    assert column(verifies, "target_token_in_draft_vocab") == [None, True, False]
    assert column(verifies, "draft_rank_of_target_token") == [None, 1, None]  # no rank outside the vocabulary


def test_probabilities_where_the_engine_has_them_and_no_ids_in_a_redacted_trace() -> None:
    rows = table_rows(_with_draft_facts(engine_has_probs=True), "drafts", redacted=True)
    assert rows[0]["draft_prob"] == pytest.approx(np.exp(-0.5)) and rows[1]["draft_prob"] is None
    assert column(rows, "draft_vocab_id") == [None, None]


def test_a_launch_that_died_before_its_verdict() -> None:
    packet = chain([101, 102], [101, 7, 8], target_tokens=None, counted=None, committed=None)
    assert verdicts(packet) is None
    (row,) = table_rows(packet, "rounds")
    assert row["drafted"] == 2 and row["request_id"] == "req-1"
    assert [row[n] for n in ("accepted", "position", "committed", "counted")] == [None] * 4
