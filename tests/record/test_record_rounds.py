"""Verdicts of chains and trees against the contract's definitions, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.launch_rows import Columns, add_node_rows, add_round_rows
from eagletrace.record.rounds import Ints, Part, RoundPacket, Values
from eagletrace.record.totals import Totals
from eagletrace.record.trees import alike, read
from tests.record.packets import chain, state, tree

Row = dict[str, Any]


def table_rows(packet: RoundPacket, table: str, *, redacted: bool = False, ids: Ints | None = None) -> list[Row]:
    """The rows that the recorder would write of a launch, all requests kept."""
    import pyarrow as pa

    def as_they_are(tokens: Ints) -> Ints:
        return tokens

    out = {"rounds": Columns(), "drafts": Columns(), "verifies": Columns()}
    trees, keep = read([packet]), np.ones(len(packet.requests), dtype=np.bool_)
    add_round_rows(out["rounds"], [packet], trees, keep)
    if trees is not None:
        add_node_rows(out["drafts"], out["verifies"], [packet], trees, keep, as_they_are, ids, redacted)
    schema = arrow_schema(TABLES[table])
    types: dict[str, Any] = {field.name: field.type for field in schema}
    found = pa.table(out[table].arrow(types.__getitem__)).to_pylist()
    return [dict.fromkeys(types) | row for row in found]


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
    trees = read([packet])
    assert trees is not None
    totals.add([packet], trees)
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
    trees = read([packet])
    assert trees is not None
    totals.add([packet], trees)
    assert totals.take(1) is None


def test_totals_grow_with_deeper_rounds() -> None:
    totals = Totals()
    for packet in (chain([1], [9, 9]), chain([101, 102, 103], [101, 102, 103, 104])):
        trees = read([packet])
        assert trees is not None
        totals.add([packet], trees)
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
        "draft_ids": [4, 0], "better": [0.0, 2.0], "rope_positions": [10, -1],
        "draft_probs": [0.5, unknown], "draft_logits": [1.0, 2.0], "draft_means": [0.5, 1.0],
    }  # fmt: skip
    return chain([101, 102], [101, 7, 8], **(known | facts))


def test_zero_is_not_null_and_unknown_is_not_zero() -> None:
    drafts = table_rows(_with_draft_facts(), "drafts")
    assert column(drafts, "draft_vocab_id") == [4, 0] and column(drafts, "rope_position") == [10, None]
    assert column(drafts, "draft_entropy") == [pytest.approx(0.5 - np.log(0.5)), None]
    assert column(drafts, "draft_logprob") == [pytest.approx(np.log(0.5)), None]
    assert column(drafts, "draft_prob") == [None, None]  # the engine fills 1.0 for chains


def test_whether_the_draft_could_have_said_the_targets_token() -> None:
    ids = np.full(200, -1)
    ids[101] = 4
    verifies = table_rows(_with_draft_facts(draft_probs=[0.5, 0.5]), "verifies", ids=ids)
    assert column(verifies, "target_token_in_draft_vocab") == [None, True, False]
    assert column(verifies, "draft_rank_of_target_token") == [None, 1, None]  # no rank outside the vocabulary
    unknown = table_rows(_with_draft_facts(), "verifies", ids=None)
    assert column(unknown, "target_token_in_draft_vocab") == [None] * 3
    short = table_rows(_with_draft_facts(), "verifies", ids=ids[:8])  # a map shorter than the target's vocabulary
    assert column(short, "target_token_in_draft_vocab") == [None, False, False]


def test_a_rank_among_nans_is_unknown() -> None:
    ids = np.arange(200)
    verifies = table_rows(_with_draft_facts(), "verifies", ids=ids)  # the second node's log-probability is NaN
    assert column(verifies, "draft_rank_of_target_token") == [None, 1, None]


def test_values_that_the_device_gives_by_step_belong_to_their_requests() -> None:
    row_major = {"draft_tokens": np.array([[1, 2, 3], [4, 5, 6]]), "target_tokens": np.array([[2, 3, 9], [9, 9, 9]]),
                 "accept_index": np.array([[0, 1, 2], [3, -1, -1]])}  # fmt: skip
    values = Values.of(row_major)
    whole = np.concatenate([values.ints(), [20, 30, 21, 31]])  # [2 steps, 2 requests]
    parts = (*values.int_parts, Part("draft_ids", 2, by_step=True))
    packet = RoundPacket(1, 0, [state(1), state(2)], [1, 1], 3, Values(parts, lambda: whole))
    trees = read([packet])
    assert trees is not None and trees.draft_ids is not None
    assert trees.draft_ids.tolist() == [[-1, 20, 21], [-1, 30, 31]] and trees.accepted.tolist() == [2, 0]


def test_launches_of_one_shape_are_read_together() -> None:
    parts = (Part("draft_tokens", 2), Part("target_tokens", 2), Part("accept_index", 2))

    def launch(number: int, *values: int) -> RoundPacket:
        packed = np.array(values)
        return RoundPacket(number, 0, [state()], [number], 2, Values(parts, lambda: packed))

    launches = [launch(1, 5, 6, 6, 7, 0, 1), tree(), launch(2, 6, 8, 9, 9, 0, -1)]
    groups = list(alike(launches))
    assert [[p.round for p in group] for group in groups] == [[1, 2], [3]]
    trees = read(groups[0])
    assert trees is not None and trees.accepted.tolist() == [1, 0]
    assert trees.expected_tokens.tolist() == [[6, 6], [9, 9]]


def test_a_launch_with_too_few_values_is_an_error_not_a_shift() -> None:
    packet = chain([101], [101, 102])
    assert packet.values is not None
    short = packet.values.ints()[:-1]
    packet.values.ints = lambda: short
    with pytest.raises(ValueError, match="values"):
        read([packet])


def test_probabilities_where_the_engine_has_them_and_no_ids_in_a_redacted_trace() -> None:
    rows = table_rows(_with_draft_facts(engine_has_probs=True), "drafts", redacted=True)
    assert rows[0]["draft_prob"] == 0.5 and rows[1]["draft_prob"] is None
    assert column(rows, "draft_vocab_id") == [None, None]


def test_a_launch_that_died_before_its_verdict() -> None:
    packet = chain([101, 102], [101, 7, 8], target_tokens=None, counted=None, committed=None)
    assert read([packet]) is None
    (row,) = table_rows(packet, "rounds")
    assert row["drafted"] == 2 and row["request_id"] == "req-1"
    assert [row[n] for n in ("accepted", "position", "committed", "counted")] == [None] * 4
