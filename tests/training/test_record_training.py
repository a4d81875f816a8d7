"""A validation step of speculators' own draft is recorded: its counts are the trainer's, and training is as without."""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("speculators")

import eagletrace  # noqa: E402
from eagletrace.errors import EagletraceError  # noqa: E402
from eagletrace.instrumentations.tensor_stats import checksum  # noqa: E402
from eagletrace.instrumentations.training import recording  # noqa: E402
from eagletrace.store import Run, open_run  # noqa: E402
from tests.training.trained import LENGTH, PROMPT, Trained, path_of, target_folder, trained  # noqa: E402


@pytest.fixture(scope="module")
def draft() -> Trained:
    """A draft that was trained for a few steps; tests leave its weights as they are."""
    return trained(texts_count=16, steps=3)


@pytest.fixture(scope="module")
def recorded(draft: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, float]]:
    """A recorded validation epoch, and the trainer's metrics of it."""
    with eagletrace.record_training(draft.model, dir=tmp_path_factory.mktemp("runs"), target=target_folder()) as found:
        metrics = draft.validate()
    return found, metrics


@pytest.fixture(scope="module")
def run(recorded: tuple[Any, dict[str, float]]) -> Iterator[Run]:
    with open_run(recorded[0].path) as opened:
        yield opened


def fact(run: Run, key: str) -> Any:
    ((text,),) = run.execute("SELECT actual FROM contract WHERE key = ?", [key])
    return json.loads(text)


def test_counts_are_those_of_the_trainer(recorded: tuple[Any, dict[str, float]], run: Run) -> None:
    found, metrics = recorded
    assert found.problem is None
    right = [int(metrics[f"full_acc_{depth}_sum"]) for depth in range(3)]
    rows = run.execute("SELECT accepted FROM acceptance_by_depth ORDER BY depth")
    totals = run.execute("SELECT accepted FROM totals_by_depth ORDER BY depth")
    assert [n for (n,) in rows] == right and [n for (n,) in totals] == right
    assert right[0] > 0
    ((rounds,),) = run.execute("SELECT count(*) FROM rounds")
    assert rounds == int(metrics["full_acc_0_total"])
    answer = LENGTH - PROMPT
    ((drafted,),) = run.execute("SELECT sum(drafted) FROM rounds")
    assert drafted == rounds // answer * (answer + answer - 1 + answer - 2), "a chain ends where its text ends"
    assert found.accuracy[0] == pytest.approx(right[0] / rounds)


def test_nodes_say_what_was_drafted_and_what_the_target_chose(draft: Trained, run: Run) -> None:
    batch = draft.valid[0]
    with torch.no_grad():
        drafted = draft.model(**{**batch, "verifier_last_hidden_states": None}, ttt_steps=3)
        wanted = draft.model.verifier_lm_head(draft.model.verifier_norm(batch["verifier_last_hidden_states"])).argmax(
            -1
        )
    ids = draft.model.t2d.nonzero().flatten()
    nodes = run.execute(
        "SELECT round, node, draft_token, expected_token, draft_rank_of_target_token FROM verifies ORDER BY round, node"
    )
    anchors = batch["loss_mask"][0].nonzero().flatten().tolist()
    for number, node, token, expected, rank in nodes:
        row = anchors[number - 1]
        if node == 0:
            assert token == int(batch["input_ids"][0, row]) and expected is None
        else:
            assert token == int(ids[drafted[node - 1][0, row]])
            assert expected == int(ids[wanted[0, row + node - 1]])
            assert (rank == 1) == (token == expected)
    assert len({number for number, *_ in nodes}) == len(anchors)


def test_weights_have_the_checksums_of_a_served_file(draft: Trained, run: Run) -> None:
    rows = dict(run.execute("SELECT name, checksum FROM params"))
    state = draft.model.state_dict()
    assert set(rows) == set(state)
    assert all(rows[name] == checksum(value) for name, value in state.items())
    rounded = fact(run, "training.rounded")["fc.weight"]
    assert rounded["bfloat16"] == checksum(state["fc.weight"].bfloat16()) != rows["fc.weight"]


def test_what_is_trained_and_what_is_the_targets(run: Run) -> None:
    frozen = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    assert set(fact(run, "training.frozen")) == frozen
    assert "fc.weight" in fact(run, "training.trained") and not frozen & set(fact(run, "training.trained"))
    for part, rows in (("embed", 512), ("head", 384)):
        compared = fact(run, f"training.{part}_equals_target")
        assert compared["equal"] and compared["equal_rows"] == compared["rows"] == rows
    assert fact(run, "training.target_choice") == "draft vocabulary"
    assert fact(run, "aux.config_ids") == {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}


def test_states_have_their_size_by_slot(draft: Trained, run: Run) -> None:
    states = draft.valid[0]["hidden_states"][0][draft.valid[0]["loss_mask"][0]].unflatten(-1, (3, -1))
    expected = states.square().mean(-1).sqrt().median(0).values
    found = run.execute("SELECT slot, median(rms) FROM hidden WHERE stage = 'target_aux' GROUP BY slot ORDER BY slot")
    assert [slot for slot, _ in found] == [0, 1, 2]
    assert torch.allclose(torch.tensor([rms for _, rms in found]).float(), expected, rtol=0.2)
    stages = run.execute("SELECT DISTINCT stage FROM hidden ORDER BY stage")
    assert [s for (s,) in stages] == ["fc_in", "fc_out", "target_aux"]


def hooks_of(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_training_goes_on_as_without(draft: Trained, tmp_path: Path) -> None:
    plain, watched = copy.deepcopy(draft), copy.deepcopy(draft)
    states = list[Any]()
    for number, one in enumerate((plain, watched)):
        torch.manual_seed(7)
        if number:
            with eagletrace.record_training(one.model, dir=tmp_path, target=target_folder()) as found:
                metrics = one.validate()
            assert found.problem is None and found.accuracy[0]
        else:
            metrics = one.validate()
        states.append((metrics, torch.get_rng_state()))
        assert all(p.grad is None for p in one.model.parameters() if not p.requires_grad)
        one.steps(1)
    assert states[0][0] == states[1][0] and torch.equal(states[0][1], states[1][1])
    pairs = zip(plain.model.state_dict().values(), watched.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert hooks_of(watched.model) == hooks_of(plain.model) == 0


def test_forwards_in_train_mode_are_left_out_and_new_weights_are_told(draft: Trained, tmp_path: Path) -> None:
    one = copy.deepcopy(draft)
    with eagletrace.record_training(one.model, dir=tmp_path) as found:
        one.steps(1)
    assert found.problem == recording.NOTHING_SEEN
    with open_run(path_of(found)) as run:
        ((detail,),) = run.execute("SELECT detail FROM events WHERE kind = 'weights_changed'")
        names = json.loads(detail)["names"]
        assert "fc.weight" in names and "embed_tokens.weight" not in names
        ((newest,),) = run.execute("SELECT checksum FROM params WHERE name = 'fc.weight'")
    assert newest == checksum(one.model.fc.weight)


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("made up")


def test_errors_of_ours_do_not_reach_the_trainer(
    draft: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = draft.validate()
    monkeypatch.setattr(recording, "read_depth", broken)
    with eagletrace.record_training(draft.model, dir=tmp_path) as found:
        assert draft.validate() == plain
    assert found.problem == "ZeroDivisionError: made up" and "training is not affected" in caplog.text
    with open_run(path_of(found)) as run:
        ((detail,),) = run.execute("SELECT detail FROM events WHERE kind = 'hook_error'")
    assert "made up" in detail


@pytest.mark.parametrize("name", ["read_given", "find_parts", "Output"])
def test_nothing_of_ours_is_needed_to_validate(draft: Trained, tmp_path: Path, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(recording, name, broken)
    with eagletrace.record_training(draft.model, dir=tmp_path) as found:
        assert draft.validate()["full_acc_0_total"] > 0
    assert found.problem == "ZeroDivisionError: made up" and hooks_of(draft.model) == 0


def test_a_folder_that_cannot_be_made_and_a_target_that_is_none(draft: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with eagletrace.record_training(draft.model, dir=tmp_path / "file" / "runs") as found:
        assert draft.validate()
    assert found.path is None and found.problem is not None and found.accuracy == []
    with eagletrace.record_training(draft.model, dir=tmp_path, target=tmp_path / "nowhere") as found:
        draft.validate()
    assert found.problem is not None and "there is no folder" in found.problem
    assert found.path is not None and found.accuracy[0]


def test_a_model_without_a_draft_is_told(tmp_path: Path) -> None:
    with eagletrace.record_training(torch.nn.Linear(2, 2), dir=tmp_path) as found:
        pass
    assert found.problem is not None and "both `fc` and `lm_head`" in found.problem
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_trainer_passes_and_what_was_seen_is_kept(draft: Trained, tmp_path: Path) -> None:
    found = eagletrace.record_training(draft.model, dir=tmp_path)
    with pytest.raises(RuntimeError, match="the trainer's own"), found:
        draft.validate()
        raise RuntimeError("the trainer's own")
    assert hooks_of(draft.model) == 0 and found.path is not None
    with open_run(path_of(found)) as run:
        ((rounds,),) = run.execute("SELECT sum(rounds) FROM totals")
    assert rounds > 0


def test_rows_are_bounded_and_totals_are_not(draft: Trained, tmp_path: Path) -> None:
    with eagletrace.record_training(draft.model, dir=tmp_path, positions=10) as found:
        metrics = draft.validate()
    with open_run(path_of(found)) as run:
        ((kept,),) = run.execute("SELECT count(*) FROM rounds")
        ((counted,),) = run.execute("SELECT sum(rounds) FROM totals")
    assert kept == 10 and counted == int(metrics["full_acc_0_total"])


def test_a_redacted_recording_holds_no_tokens(draft: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLETRACE_REDACT", "1")
    with eagletrace.record_training(draft.model, dir=tmp_path) as found:
        draft.validate()
    assert found.problem is None
    with open_run(path_of(found)) as run:
        counts = run.execute(
            "SELECT count(*), count(draft_token), count(expected_token), count(target_token) FROM verifies"
        )
        drafts = run.execute("SELECT count(*), count(token), count(draft_vocab_id) FROM drafts")
        hashes = run.execute("SELECT count(prompt_hash) FROM requests")
        assert fact(run, "hot_token_id")["max"] is None
    assert counts[0][0] > 0 and counts[0][1:] == (0, 0, 0)
    assert drafts[0][0] > 0 and drafts[0][1:] == (0, 0) and hashes == [(0,)]


def test_each_recording_is_a_run(draft: Trained, tmp_path: Path) -> None:
    paths = set[Any]()
    for _ in range(2):
        with eagletrace.record_training(draft.model, dir=tmp_path) as found:
            pass
        paths.add(found.path)
    assert len(paths) == 2


def test_a_compiled_step_is_read_from_what_it_returns(
    draft: Trained, recorded: tuple[Any, dict[str, float]], tmp_path: Path
) -> None:
    """The head inside a compiled forward calls no hooks; what the forward returns are the drafts."""
    hidden = copy.deepcopy(draft)
    inner = hidden.model.lm_head
    hidden.model._modules["lm_head"] = Unhooked(inner)
    with eagletrace.record_training(hidden.model, dir=tmp_path) as found:
        hidden.validate()
    assert found.problem is None and found.accuracy == recorded[0].accuracy
    with open_run(path_of(found)) as run:
        ((nodes, ranks),) = run.execute("SELECT count(*), count(draft_rank_of_target_token) FROM verifies")
    assert nodes > 0 and ranks == 0


class Unhooked(torch.nn.Linear):
    """A head whose calls go past its hooks, as in a compiled graph."""

    def __init__(self, of: Any) -> None:
        super().__init__(of.in_features, of.out_features, bias=False)
        self.weight = of.weight

    def __call__(self, rows: Any) -> Any:
        return self.forward(rows)


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "eagletrace.instrumentations.training"
    for module in [m for m in sys.modules if m.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)

    def absent(_: str) -> None:
        """No package of any name is installed."""

    monkeypatch.setattr(importlib.util, "find_spec", absent)
    with pytest.raises(EagletraceError, match="needs torch"):
        importlib.import_module(name)
