"""`eagletrace check` and `eagletrace.check`: what they print, how they exit, what they need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from check_drafts import LLAMA, TARGET, target_tensors, tensors, write

import eagletrace
from eagletrace.cli.main import main


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    draft = write(tmp_path / "draft", LLAMA, tensors(LLAMA))
    target = write(tmp_path / "target", TARGET, target_tensors())
    return str(draft), str(target)


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    values = {key.replace("midlayer.", "layers.0."): array for key, array in tensors(LLAMA).items()}
    return str(write(tmp_path / "faulty", LLAMA, values))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["check", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_right_pair(capsys: pytest.CaptureFixture[str], pair: tuple[str, str]) -> None:
    status, out, err = run(capsys, pair[0], "--target", pair[1], "--engine", "sglang==0.5.23")
    assert status == 0 and not err
    assert out.startswith("HEALTHY") and "SGLang 0.5.23" in out and pair[1] in out.replace("\n", "")


def test_a_fault(capsys: pytest.CaptureFixture[str], faulty: str) -> None:
    status, out, _ = run(capsys, faulty, "--engine", "0.5.9")
    assert status == 1
    assert "FAULT" in out and "weights.not_loaded" in out and "--fix" in out
    assert "eagletrace explain weights.not_loaded" in out


def test_json_is_one_object_of_the_diagnosis_shape(capsys: pytest.CaptureFixture[str], faulty: str) -> None:
    status, out, _ = run(capsys, faulty, "--engine", "0.5.9", "--json")
    value: dict[str, Any] = json.loads(out)
    assert status == 1 and value["schema_version"] == 1 and value["verdict"] == "fault"
    assert value["run"] == {"id": None, "sglang": "0.5.9", "draft": faulty, "target": None, "engine": "sglang==0.5.9"}
    assert "acceptance" not in value and "repair" not in value
    cause = value["causes"][0]
    assert set(cause) == {"id", "confidence", "severity", "title", "evidence", "fix", "proof"}
    assert cause["evidence"][0]["query"] == "weights_not_loaded" and cause["evidence"][0]["rows"]
    assert all(set(c) == {"id", "status", "reason"} for c in value["checks"])


def test_fix_says_what_it_did(capsys: pytest.CaptureFixture[str], faulty: str, tmp_path: Path) -> None:
    out_folder = str(tmp_path / "out")
    status, out, _ = run(capsys, faulty, "--engine", "0.5.9", "--fix", out_folder)
    assert status == 1
    assert "passes this check" in out.replace("\n", " ") and "renamed to midlayer" in out.replace("\n", " ")
    status, out, _ = run(capsys, out_folder, "--engine", "0.5.9", "--json")
    assert status == 0 and json.loads(out)["verdict"] == "healthy"


def test_fix_in_json(capsys: pytest.CaptureFixture[str], faulty: str, tmp_path: Path) -> None:
    _, out, _ = run(capsys, faulty, "--engine", "0.5.9", "--fix", str(tmp_path / "out"), "--json")
    repair = json.loads(out)["repair"]
    assert repair["folder"] == str(tmp_path / "out") and repair["verdict"] == "healthy"
    assert len(repair["changed"]) == 10 and repair["left"] == []


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["org/name"], "hf download org/name"),
        (["{draft}", "--target", "{draft}"], "given as draft and as target"),
        (["{draft}", "--engine", "vllm==0.9"], "rules of vllm are not known"),
        (["{draft}", "--engine", "sglang==0.4.6"], "oldest release known is 0.5.3"),
        (["{draft}", "--engine", "latest"], "no version of SGLang"),
        (["{target}", "--target", "{draft}"], "no EAGLE draft"),
        (["{draft}", "--fix", "{target}"], "not an empty folder"),
        (["{draft}", "--target", "{draft}/config.json"], "give the folder"),
    ],
)
def test_bad_input_is_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str], pair: tuple[str, str], arguments: list[str], said: str
) -> None:
    status, out, err = run(capsys, *(a.format(draft=pair[0], target=pair[1]) for a in arguments))
    assert status == 2 and not out
    assert said in err and "Traceback" not in err and len(err.splitlines()) == 1


def test_a_release_between_or_after_those_known_is_said(capsys: pytest.CaptureFixture[str], faulty: str) -> None:
    _, out, _ = run(capsys, faulty, "--engine", "sglang==0.9.0", "--json")
    value = json.loads(out)
    assert value["verdict"] == "healthy" and value["run"]["sglang"] == "0.9.0"
    assert any("those of 0.5.23 are used" in warning for warning in value["warnings"])


def test_from_python(faulty: str) -> None:
    result = eagletrace.check(faulty, engine="sglang==0.5.9")
    assert result.verdict == "fault" and result.causes[0].id == "weights.not_loaded"
    assert result.exit_code == 1


def test_neither_torch_nor_an_engine_is_imported(pair: tuple[str, str]) -> None:
    program = (
        "import sys; from eagletrace.cli.main import main; status = main(['check', *sys.argv[1:]]); "
        "sys.exit(status or bool({'torch', 'sglang', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, pair[0], "--target", pair[1]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
