"""A draft model of its own on SGLang's `StandaloneWorkerV2`: traced and diagnosed; it is not replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosed import (
    Diagnosed,
    assert_counts_are_the_engine_s,
    assert_tokens_are_the_target_s,
    command,
    diagnosed,
    facts_of,
    named,
    opened,
    status_of,
)

from eagletrace.lab.pair import shipped_pair

pytestmark = [pytest.mark.lab, pytest.mark.slow]
TARGET = shipped_pair() / "target"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """Served as it was trained."""
    return diagnosed("standalone-healthy", tmp_path_factory.mktemp("healthy"))


def test_a_model_served_right_is_healthy_and_its_counts_are_the_engine_s(healthy: Diagnosed) -> None:
    result, diagnosis, status = healthy
    assert (diagnosis["verdict"], diagnosis["causes"], status) == ("healthy", [], 0)
    assert result.accept_length is not None and result.accept_length > 1.8
    assert status_of(diagnosis)["metric.engine_counts"] == "ok"
    assert_counts_are_the_engine_s(result)
    with opened(healthy) as run:
        ((ranked, first),) = run.execute(
            "SELECT count(draft_rank_of_target_token), count(*) FILTER (WHERE draft_rank_of_target_token = 1) "
            "FROM verifies WHERE depth = 1 AND accepted"
        )
    assert ranked == first > 0


def test_tokens_are_what_the_target_says_without_an_engine(healthy: Diagnosed) -> None:
    assert_tokens_are_the_target_s(healthy.result, TARGET)


def test_facts_are_those_of_the_family(healthy: Diagnosed) -> None:
    with opened(healthy) as run:
        facts = facts_of(run)
    assert (facts["draft.architecture"], facts["draft.family"]) == ("LlamaForCausalLM", "standalone")
    assert facts["server.speculative_algorithm"] == "STANDALONE"
    assert facts["server.worker"] == "StandaloneWorkerV2"
    assert (facts["draft.fc"], facts["forward.target_hidden_width"], facts["forward.draft_input_width"]) == (None,) * 3
    assert facts["embed.shared_with_target"] is False and facts["head.shared_with_target"] is False


def test_checks_that_do_not_apply_say_so(healthy: Diagnosed) -> None:
    found = status_of(healthy.diagnosis)
    prefixes = ("aux.", "fc.", "vocab.d2t", "recurrence.")
    assert {found[check] for check in found if check.startswith(prefixes)} == {"not_applicable"}


def test_a_replay_says_that_there_is_none(healthy: Diagnosed) -> None:
    refused = command("replay", healthy.result)
    assert refused.returncode == 3
    assert "language model of its own" in refused.stderr


def test_served_as_an_eagle_draft_it_is_named(tmp_path: Path) -> None:
    name = "standalone-served-as-eagle"
    found = diagnosed(name, tmp_path)
    named(name, found.result, found.diagnosis, dies=True)
