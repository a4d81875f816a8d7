"""Whole diffs of written runs: verdict, causes, what explains them, JSON, exit status, terminal."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eagletrace
from eagletrace.cli.main import main
from eagletrace.diff import Diff, diff
from eagletrace.errors import NotARunError
from eagletrace.replay.result import Hypothesis, Potential, Replay
from eagletrace.report.diff import print_diff
from tests.diagnose.synthetic import DEFAULT_LAYERS, HEALTHY_RATES, LAYER, POOR, ROPE, Synthetic

REQUESTS = 24
OTHER_ROPE = {**ROPE, "theta": 500000.0}


def configured(seed: int, *, prompts: str = "p", rates: tuple[float, ...] = HEALTHY_RATES) -> Synthetic:
    """A run of 24 requests, some easy and some hard, as the prompt has it."""

    def rates_of(row: dict[str, Any]) -> list[float]:
        ease = random.Random(f"{prompts}{row['request_seq']}").uniform(-0.15, 0.15)
        return [min(max(r + ease, 0.01), 0.99) for r in rates]

    return Synthetic(
        seed=seed, rounds=720, requests=REQUESTS, rates=rates, rates_of=rates_of,
        request_columns=lambda seq: {"prompt_hash": f"{prompts}{seq}", "prompt_tokens": 5},
    )  # fmt: skip


Write = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    numbers = iter(range(100))

    def write(run: Any) -> Path:
        return run.write(tmp_path, f"run-{next(numbers)}")

    return write


def test_two_runs_of_one_configuration_are_the_same(written: Write) -> None:
    found = diff(written(configured(1)), written(configured(2)))
    assert found.verdict == "same" and found.exit_code == 0 and found.paired
    assert not found.contract and found.facts_same > 50 and found.causes.gained == ()
    assert all(d.state != "changed" for d in found.behaviour)


def test_a_run_is_the_same_as_itself(written: Write) -> None:
    path = written(configured(1))
    found = diff(path, path)
    assert found.verdict == "same" and found.divergence.first is None
    assert all(d.difference in (0, None) for d in found.behaviour)


def test_a_loss_names_cause_and_facts(written: Write) -> None:
    bad = configured(2, rates=POOR).fact("aux.layers_captured", [x - 1 for x in DEFAULT_LAYERS])
    found = diff(written(configured(1)), written(bad))
    assert found.verdict == "changed" and found.causes.gained == ("aux.layers_mismatch",)
    assert "aux.layers" in found.causes.checks_gained and found.causes.verdicts == ("healthy", "fault")
    (told,) = found.explanations
    assert (told.cause, told.delta) == ("aux.layers_mismatch", "gained")
    assert [c.key for c in told.changes] == ["aux.layers_captured"]
    length = found.behaviour[0]
    assert length.name == "accept_length" and length.significant and (length.difference or 0) < -1
    assert length.ci_high is not None and length.ci_high < 0


def test_the_other_way_round_the_cause_is_lost(written: Write) -> None:
    bad = configured(2, rates=POOR).unwritten(f"{LAYER}.self_attn.qkv_proj.weight")
    for name in ("q_proj", "k_proj", "v_proj"):
        bad.dropped(f"midlayer.self_attn.{name}.weight")
    found = diff(written(bad), written(configured(1)))
    assert found.verdict == "changed" and found.causes.lost == ("weights.not_loaded",) and not found.causes.gained
    keys = [c.key for c in found.explanations[0].changes]
    assert any(k.startswith("checkpoint_keys/midlayer.self_attn") and k.endswith("/fate") for k in keys)


def test_a_cause_that_only_a_replay_names_is_gained_with_its_proof(
    written: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worse = configured(2, rates=POOR).fact("draft.rope", OTHER_ROPE).fact("target.rope", OTHER_ROPE)
    a, b = written(configured(1)), written(worse)
    good, bad = Potential(3.5, 3.3, 3.7, 700), Potential(1.2, 1.1, 1.3, 700)
    found = (Hypothesis("rope.mismatch", "theta 10000", 0.997, 3.49, 1.2),)
    replays = (
        Replay({1: 1.0}, 1.0, good, good, 1.0, good, best=good),
        Replay({1: 0.3}, 0.3, good, bad, 1.0, bad, best=good, found=found),
    )
    plain, proved = diff(a, b), diff(a, b, replays)
    assert plain.causes.gained == () and plain.explanations[0].cause is None
    assert proved.causes.gained == ("rope.mismatch",) and "gained rope.mismatch" in proved.why
    (told,) = proved.explanations
    assert [c.key for c in told.changes] == ["draft.rope.theta", "target.rope.theta"]
    assert told.to_json()["proof"] == {
        "reproduces_served": 0.997, "served_accept_length": 1.2, "repaired_accept_length": 3.49,
    }  # fmt: skip
    assert told.fix.startswith("Set rope_theta")
    assert not any("was replayed" in note for note in proved.notes)
    assert "run B was replayed and run A was not" in diff(a, b, (None, replays[1])).notes[0]
    (told,) = diff(b, a, replays[::-1]).explanations
    assert (told.delta, told.proof.repaired_accept_length, told.fix) == ("lost", 3.49, "")
    monkeypatch.setenv("COLUMNS", "200")
    print_diff(proved)
    out = capsys.readouterr().out
    assert "Cause gained: rope.mismatch (draft.rope.theta: " in out
    assert "Proof by replay: accept length 1.20 as served, 3.49 repaired; with this fault" in out
    assert "Fix: Set rope_theta" in out


def test_a_change_without_a_cause_lists_what_may_explain_it(written: Write) -> None:
    worse = configured(2, rates=(0.5, 0.6, 0.6)).fact("engine.version", "0.5.9")
    found = diff(written(configured(1)), written(worse))
    assert found.verdict == "changed" and not found.causes.gained
    (told,) = found.explanations
    assert told.cause is None and [c.key for c in told.changes] == ["engine.version"]


def test_a_fact_that_may_act_and_did_not_is_listed_with_the_verdict_same(written: Write) -> None:
    found = diff(written(configured(1)), written(configured(2).fact("engine.version", "0.5.9")))
    assert found.verdict == "same" and "without an effect" in found.why
    assert [(c.key, c.importance) for c in found.contract] == [("engine.version", "relevant")]


def test_another_checkpoint_is_a_change_even_where_nothing_shows(written: Write) -> None:
    other = configured(2)
    other.keys["fc.weight"]["checksum"] = "b" * 16
    found = diff(written(configured(1)), written(other))
    assert found.verdict == "changed" and "say what is drafted" in found.why
    assert [c.key for c in found.contract] == ["checkpoint_keys/fc.weight/checksum"]


def test_other_prompts_are_told(written: Write) -> None:
    found = diff(written(configured(1)), written(configured(2, prompts="q")))
    assert not found.paired and any("only 0 prompts" in note for note in found.notes)
    assert found.divergence.matched == 0 and found.to_json()["first_divergence"] is None


def test_a_run_of_facts_alone_is_compared_by_them(written: Write) -> None:
    empty = configured(1)
    empty.rounds = 0
    found = diff(written(empty), written(configured(2)))
    assert any("run A holds no rounds" in note for note in found.notes)
    assert all(d.p is None and not d.significant for d in found.behaviour)


def test_rows_of_the_batch_are_compared_apart(written: Write) -> None:
    def in_batches(seed: int, *, broken: bool) -> Synthetic:
        run = configured(seed)
        run.round_columns = lambda row: {"batch_size": 2, "row": row["round"] % 2}
        usual = run.rates_of
        assert usual is not None
        run.rates_of = lambda row: (0.02, 0.1, 0.1) if broken and row["row"] == 0 else usual(row)
        return run

    found = diff(written(in_batches(1, broken=False)), written(in_batches(2, broken=True)))
    rows = {d.name: d for d in found.behaviour if d.group == "row"}
    assert rows["accept_length.row.0"].significant and not rows["accept_length.row.1"].significant


def test_json_has_the_contracts_keys(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(written(configured(1))), str(written(configured(2, rates=POOR).fact("aux.count", 0)))
    assert main(["diff", a, b, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["schema_version"] == 1 and said["verdict"] == "changed"
    assert {"key", "a", "b", "kind"} <= said["contract"][0].keys()
    assert {"name", "a", "b", "difference", "ci_low", "ci_high", "significant"} <= said["behaviour"][0].keys()
    assert said["causes"].keys() == {"gained", "lost", "kept"} and said["causes"]["gained"]
    assert said["first_divergence"]["matched_requests"] == REQUESTS
    assert main(["diff", a, a, "--json"]) == 0


def test_the_terminal_says_it_in_words(
    written: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    a, b = str(written(configured(1))), str(written(configured(2, rates=POOR).fact("aux.count", 0)))
    assert main(["diff", a, b]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("CHANGED: behaviour changed significantly: accept length")
    assert "Cause gained: aux.not_captured (aux.count: 3 -> 0)" in out
    assert max(map(len, lines)) <= 100
    assert any("rate at depth 1" in line and line.endswith("changed") for line in lines)
    assert main(["diff", a, a]) == 0 and capsys.readouterr().out.startswith("NO SIGNIFICANT CHANGE")


def test_many_runs_are_a_table_against_the_first(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in (configured(1), configured(2), configured(3, rates=POOR).fact("aux.count", 0)):
        written(run)
    (tmp_path / "lab-models").mkdir()
    assert main(["diff", str(tmp_path / "*"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "changed" and [d["verdict"] for d in said["diffs"]] == ["same", "changed"]
    assert main(["diff", *(str(tmp_path / f"run-{n}") for n in range(3))]) == 1
    out = capsys.readouterr().out
    assert "+aux.not_captured" in out and "1: run run-0" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == ["run", "1", "2", "3"]


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "nowhere"], ["none-*", "x"]])
def test_bad_input_ends_with_2_and_what_to_do(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diff", *arguments]) == 2
    assert capsys.readouterr().err.startswith("eagletrace: ")


def test_strings_of_a_run_do_not_reach_the_terminal(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;x\x07[red]\u202e"
    bad = configured(2).fact("draft.architecture", hostile)
    bad.keys[hostile] = {**bad.keys["fc.weight"], "key": hostile}
    bad.request_columns = lambda seq: {"prompt_hash": f"p{seq}", "request_id": hostile}
    assert main(["diff", str(written(configured(1))), str(written(bad)), "--all"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b" in out and "[red]" in out


def test_python_has_the_same(written: Write) -> None:
    a, b = written(configured(1)), written(configured(2))
    with eagletrace.open_run(a) as one, eagletrace.open_run(b) as other:
        found = eagletrace.diff(one, other)
        assert isinstance(found, Diff) and found.to_json() == eagletrace.diff(str(a), b).to_json()
        assert one.execute("SELECT 1") == [(1,)]
    with pytest.raises(NotARunError):
        eagletrace.diff(a, a.parent / "nothing")
