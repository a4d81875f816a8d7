"""SGLang's own multi-layer EAGLE worker, with a Step-3.5 draft for each step: its rounds, and what each step loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from diagnosed import assert_counts_are_the_engine_s
from multi_layer_model import LAYERS, PREDICTIONS, write

from eagletrace.cli.main import main as eagletrace
from eagletrace.lab.load import LoadOptions
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.run import LabResult, lab_run
from eagletrace.store import open_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ROUNDS = 100
FLAGS = {"speculative-algorithm": "EAGLE", "disable-hybrid-swa-memory": True}
"""The class of its drafts says that their layer has a sliding window, whatever it has."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, which has the layers of multi-token prediction in its own checkpoint."""
    return write(tmp_path_factory.mktemp("model") / "step")


def served(model: Path, folder: Path, **options: Any) -> LabResult:
    """Served by nothing but the algorithm's name: SGLang chooses the worker by the target's class."""
    given = ServeOptions(target=model, draft=model, dir=folder, extra_flags=FLAGS, **options)
    result = lab_run(given, LoadOptions(rounds=ROUNDS, max_new_tokens=40))
    assert not result.engine_died, result.reason
    return result


@pytest.fixture(scope="module")
def healthy(model: Path, tmp_path_factory: pytest.TempPathFactory) -> LabResult:
    return served(model, tmp_path_factory.mktemp("healthy"))


def rows(result: LabResult, query: str) -> list[tuple[Any, ...]]:
    assert result.run is not None
    with open_run(result.run) as run:
        return list(run.execute(query))


def test_counts_are_the_engine_s_and_tokens_are_those_of_a_server_without_a_tracer(
    model: Path, healthy: LabResult, tmp_path: Path
) -> None:
    assert healthy.accept_length is not None and 2.0 < healthy.accept_length < 3.5
    assert_counts_are_the_engine_s(healthy)
    untraced = served(model, tmp_path, tracing="off")
    assert untraced.run is None
    assert [a.output_ids for a in healthy.answers] == [a.output_ids for a in untraced.answers]


def test_every_depth_was_drafted_by_its_own_step(healthy: LabResult) -> None:
    found = rows(
        healthy, "SELECT depth, count(*), count(draft_prob), count(draft_entropy), avg((draft_vocab_id = token)::INT), "
        "count(rope_position) FROM drafts GROUP BY depth ORDER BY depth",
    )  # fmt: skip
    ((rounds,),) = rows(healthy, "SELECT count(*) FROM rounds")
    assert [row[:4] for row in found] == [(depth, rounds, rounds, rounds) for depth in (1, 2, 3)]
    assert [row[4] for row in found] == [1.0] * 3  # the token is the best of that step's logits
    assert [row[5] for row in found] == [0] * 3  # no step runs at a position of its own
    facts = rows(healthy, "SELECT DISTINCT draft_input_width, target_hidden_width, fc_applied FROM rounds")
    assert facts == [(64, 64, True)]
    depths = rows(healthy, "SELECT depth, avg(accepted::INT) FROM verifies WHERE depth > 0 AND reached "
                  "GROUP BY depth ORDER BY depth")  # fmt: skip
    assert depths[0][1] > depths[1][1] > depths[2][1] > 0


def test_every_step_s_parameters_and_tensors_are_there(healthy: LabResult) -> None:
    params = rows(healthy, "SELECT name, elements, elements_loaded, checkpoint_keys FROM params WHERE side = 'draft'")
    assert len(params) == 14 * PREDICTIONS and all(elements == loaded for _, elements, loaded, _ in params)
    found = {name: keys for name, _, _, keys in params}
    for step in range(PREDICTIONS):
        expected = [f"model.layers.{LAYERS + step}.eh_proj.weight"]
        assert found[f"draft_step_{step}.model.eh_proj.weight"] == expected
    fates = dict(rows(healthy, "SELECT fate, count(*) FROM checkpoint_keys GROUP BY fate"))
    assert fates == {"loaded": 16 * PREDICTIONS + 1, "ignored_by_engine": 11 * LAYERS + 2}


def test_it_is_healthy_and_no_hook_is_missed(healthy: LabResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthy.run is not None
    assert eagletrace(["diagnose", str(healthy.run), "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert (diagnosis["verdict"], diagnosis["causes"]) == ("healthy", [])
    status = {check["id"]: check["status"] for check in diagnosis["checks"]}
    assert status["trace.hooks"] == status["metric.engine_counts"] == status["weights.unused_keys"] == "ok"
    assert status["recurrence.depth2"] == "not_applicable"  # a deeper step's draft may be a weaker one
    called = rows(healthy, "SELECT target, calls FROM hooks WHERE target LIKE '%:MultiLayerEagle%Worker%'")
    hooks = {target.rpartition(".")[2]: calls for target, calls in called}
    launches = hooks.pop("forward_batch_generation")
    prefills = hooks.pop("_draft_extend_for_prefill")
    assert prefills > 0 and set(hooks) == {"draft", "verify", "_draft_extend_for_decode"}
    assert set(hooks.values()) == {launches - prefills}
    assert rows(healthy, "SELECT * FROM events WHERE kind = 'hook_error'") == []


@pytest.mark.soak
@pytest.mark.parametrize("level", ["contract", "tensors"])
def test_other_levels_count_the_same(model: Path, healthy: LabResult, tmp_path: Path, level: str) -> None:
    result = served(model, tmp_path, level=level)
    assert [a.output_ids for a in result.answers] == [a.output_ids for a in healthy.answers]
    missed = rows(result, "SELECT target FROM hooks WHERE required AND status <> 'installed'")
    assert missed == []
    totals = rows(result, "SELECT sum(rounds), sum(accepted) FROM totals")
    assert totals == [(result.rounds, sum(a.meta_info["spec_num_correct_drafts"] for a in result.answers))]
    if level == "tensors":
        stored = rows(result, "SELECT stage, depth FROM tensors GROUP BY ALL ORDER BY ALL")
        assert [depth for stage, depth in stored if stage == "draft_top_ids"] == [1, 2, 3]
        assert {"input_ids", "target_aux", "fc_out"} <= {stage for stage, _ in stored}


@pytest.mark.soak
def test_fewer_steps_leave_a_layer_out_on_purpose(model: Path, tmp_path: Path) -> None:
    result = served(model, tmp_path, steps=2)
    assert_counts_are_the_engine_s(result)
    fates = rows(result, f"SELECT DISTINCT fate FROM checkpoint_keys WHERE key LIKE 'model.layers.{LAYERS + 2}.%'")
    assert fates == [("ignored_by_engine",)]
