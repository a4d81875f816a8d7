"""`replay`, and `diagnose` with a draft and a target: what a user can give wrongly, and what is said then."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from eagletrace.cli.main import main
from eagletrace.replay.result import UnknownDraftError

DEMO = Path(__file__).parents[2] / "eagletrace" / "data" / "demo-run"
PAIR = Path("eagletrace/lab/pair/data/llama")
GOOD = ["--draft", str(PAIR / "drafts" / "default"), "--target", str(PAIR / "target")]
Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="a replay needs torch")


def test_a_run_without_states_says_what_to_record(capsys: Capture) -> None:
    assert main(["replay", str(DEMO), *GOOD]) == 3
    err = capsys.readouterr().err
    assert "no hidden states to replay" in err and "EAGLETRACE_LEVEL=tensors" in err and "Traceback" not in err


def test_diagnose_goes_on_without_states(capsys: Capture) -> None:
    assert main(["diagnose", str(DEMO), *GOOD, "--json"]) == 1
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert value["causes"][0]["id"] == "aux.not_captured"
    assert value["causes"][0]["proof"]["repaired_accept_length"] is None
    assert "no proof by replay" in err and any("EAGLETRACE_LEVEL=tensors" in w for w in value["warnings"])


def test_a_draft_without_a_reference_is_diagnosed_without_a_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def unknown(*_given: object, **_named: object) -> None:
        raise UnknownDraftError("a draft of class Step3p5MTP")

    monkeypatch.setattr("eagletrace.replay.engine.replay", unknown)
    assert main(["diagnose", str(DEMO), *GOOD, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["warnings"] == ["no proof by replay: a draft of class Step3p5MTP"]
    assert main(["replay", str(DEMO), *GOOD]) == 2


@pytest.mark.parametrize("command", [["replay"], ["diagnose"], ["diff", str(DEMO)]])
def test_one_of_the_two_folders_alone_is_refused(command: list[str], capsys: Capture) -> None:
    assert main([*command, str(DEMO), "--draft", "d"]) == 2
    assert "--target" in capsys.readouterr().err


@pytest.mark.parametrize("count", [2, 4])
def test_a_diff_takes_models_once_or_for_each_run(count: int, capsys: Capture) -> None:
    runs, drafts = [str(DEMO)] * 3, ["--draft", "d"] * count
    assert main(["diff", *runs, *drafts, "--target", "t"]) == 2
    err = capsys.readouterr().err
    assert f"--draft is given {count} times for 3 runs: give it once, or once for each run" in err


def test_a_diff_goes_on_without_states(capsys: Capture) -> None:
    assert main(["diff", str(DEMO), str(DEMO), *GOOD, "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["warnings"]) == 2 and err.count("no proof by replay") == 2


def test_a_diff_of_a_draft_that_is_not_there_is_refused(capsys: Capture) -> None:
    assert main(["diff", str(DEMO), str(DEMO), "--draft", "nowhere", "--target", "nowhere"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_positions_are_a_number_from_one(count: str, capsys: Capture) -> None:
    assert main(["replay", str(DEMO), *GOOD, "--positions", count]) == 2
    assert "--positions" in capsys.readouterr().err


def test_without_torch_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(__import__("sys").modules, "eagletrace.replay.engine", None)
    assert main(["replay", str(DEMO), *GOOD]) == 2
    assert "a replay needs torch: pip install" in capsys.readouterr().err
