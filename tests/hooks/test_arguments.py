"""Arguments that an engine notes its decisions beside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from eagletrace.instrumentations.sglang.arguments import decided
from eagletrace.instrumentations.sglang.hooks import chain_steps

GIVEN: dict[str, Any] = {
    "model_path": "/models/target", "dtype": "auto", "speculative_algorithm": "NEXTN", "speculative_num_steps": None,
    "speculative_draft_model_path": None,
}  # fmt: skip


def noted(*decisions: dict[str, Any]) -> Any:
    return SimpleNamespace(**GIVEN, _resolved_overrides=[("some hook", decision) for decision in decisions])


def test_arguments_without_decisions_are_taken_as_they_are() -> None:
    for arguments in (SimpleNamespace(**GIVEN), noted(), noted({"dtype": "bfloat16"})):
        assert decided(arguments) is arguments


def test_the_last_decision_about_speculation_counts_and_others_are_left() -> None:
    arguments = noted(
        {"speculative_algorithm": "FROZEN_KV_MTP", "speculative_num_steps": 3, "dtype": "bfloat16"},
        {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "/models/target"},
    )
    found = decided(arguments)
    assert (found.speculative_algorithm, found.speculative_num_steps) == ("EAGLE", 3)
    assert found.speculative_draft_model_path == found.model_path == "/models/target"
    assert found.dtype == "auto"
    assert getattr(found, "no_such_argument", "default") == "default"
    assert arguments.speculative_algorithm == "NEXTN"


def test_a_decision_for_a_tree_is_no_chain() -> None:
    assert chain_steps(decided(noted({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}))) == 0
