"""The matrix judges a diagnosis by the catalogue, and the commands print what the contract says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagletrace.lab import cli, matrix
from eagletrace.lab.faults import CASES, case
from eagletrace.lab.load import Answer, LoadOptions
from eagletrace.lab.matrix import Diagnosis, MatrixCase, healthy_name, judge
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.run import LabResult


def always(value: object) -> Callable[..., object]:
    return lambda *_given: value


def result(length: float | None, died: bool = False) -> LabResult:
    answers = [] if length is None else [Answer("r", {"id": "r"}, [1])]
    return LabResult(Path("/runs/r"), length, 100, died, answers)


def diagnosis(verdict: str, *causes: str, exit_code: int) -> Diagnosis:
    body: dict[str, Any] = {"verdict": verdict, "causes": [{"id": name, "proof": {}} for name in causes]}
    return Diagnosis(body, exit_code)


@pytest.mark.parametrize(
    ("name", "found", "right"),
    [
        ("d2t-zero", diagnosis("fault", "vocab.d2t_missing", exit_code=1), True),
        ("d2t-zero", diagnosis("fault", "vocab.d2t_mismatch", "vocab.d2t_missing", exit_code=1), False),
        ("d2t-zero", diagnosis("fault", exit_code=1), False),
        ("d2t-zero", diagnosis("fault", "vocab.d2t_missing", exit_code=0), False),
        ("tied-embeddings", diagnosis("fault", "lm_head.replaced", exit_code=1), True),
        ("random-embed", diagnosis("healthy", exit_code=0), True),
        ("random-embed", diagnosis("fault", "embed.mismatch", exit_code=1), False),
        ("random-embed", Diagnosis({}, 2), False),
    ],
)
def test_judging(name: str, found: Diagnosis, right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "diagnose", always(found))
    row = judge(case(name), result(1.1), result(2.6))
    assert row.right is right
    assert row.found == found.causes
    assert (row.accept_length, row.healthy_accept_length) == (1.1, 2.6)


def test_the_proof_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = {"reproduces_served": 0.98, "served_accept_length": 1.1, "repaired_accept_length": 2.5}
    body = {"verdict": "fault", "causes": [{"id": "vocab.d2t_missing", "proof": proof}]}
    monkeypatch.setattr(matrix, "diagnose", always(Diagnosis(body, 1)))
    row = judge(case("d2t-zero"), result(1.1), result(2.6))
    assert (row.fidelity, row.regained_accept_length) == (0.98, 2.5)


def test_every_case_is_compared_with_its_own_engine() -> None:
    for entry in CASES.values():
        base = case(healthy_name(entry))
        assert (base.engine, base.worker, base.kind) == (entry.engine, entry.worker, "control")


def test_json_and_markdown() -> None:
    row = MatrixCase(
        "d2t-absolute", "fault", ["vocab.d2t_encoding"], ["vocab.d2t_encoding"], "fault", None, 2.6, None, None, True,
        engine_died=True,
    )  # fmt: skip
    body = matrix.to_json([row])
    assert set(body["cases"][0]) == {
        "name", "kind", "expected", "found", "verdict", "accept_length", "healthy_accept_length", "fidelity",
        "regained_accept_length", "right",
    }  # fmt: skip
    json.dumps(body, allow_nan=False)
    table = matrix.markdown([row])
    assert "| `d2t-absolute` | fault | died | 2.60 | - | - | fault | `vocab.d2t_encoding` |" in table
    proved = replace(row, accept_length=1.1, fidelity=0.991, regained_accept_length=2.55)
    assert "| `d2t-absolute` | fault | 1.10, died | 2.60 | 2.55 | 0.991 | fault |" in matrix.markdown([proved])
    control = MatrixCase("healthy", "control", [], [], "healthy", 3.4, 3.4, None, None, True)
    page = matrix.page([control, row], "a pair")
    assert page.startswith("# Faults and controls on the real engine\n\n2 of 2 cases are right.")
    assert page.index("| `d2t-absolute` |") < page.index("| `healthy` |")


def matrix_row(
    kind: str, verdict: str, right: bool, fidelity: float | None = None, regained: float = 2.5
) -> MatrixCase:
    found = ["vocab.coverage"] if verdict == "fault" else []
    return MatrixCase("some", kind, [], found, verdict, 1.2, 2.6, fidelity, regained, right)


def test_the_totals_count_names_proofs_and_what_stayed_open() -> None:
    rows = [
        matrix_row("fault", "fault", True, 0.98, 0.95 * 2.6), matrix_row("fault", "fault", True, 0.97),
        matrix_row("fault", "fault", True, 0.99, 0.94 * 2.6), matrix_row("fault", "fault", False),
        matrix_row("fault", "inconclusive", False), matrix_row("fault", "error", False),
        matrix_row("control", "healthy", True), matrix_row("control", "fault", False),
    ]  # fmt: skip
    assert matrix.totals(rows) == (
        "3 of 6 faults named first by an expected cause (1 with a proof), 1 of 2 controls without a cause; "
        "1 inconclusive, 1 not diagnosed."
    )
    assert matrix.markdown(rows).endswith(f"\n\n{matrix.totals(rows)}\n")


@pytest.mark.parametrize("name", ["healthy", "no-fc"])
def test_the_diagnosis_is_given_the_models(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that were served, or the trainer's draft where the served file has lost what nothing else holds."""
    given: list[list[str]] = []

    def run(command: list[str], **_more: object) -> SimpleNamespace:
        given.append(command)
        return SimpleNamespace(stdout='{"verdict": "healthy", "causes": []}', stderr="", returncode=0)

    served: list[ServeOptions] = []

    def serve(options: ServeOptions, _load: LoadOptions) -> LabResult:
        served.append(options)
        return replace(result(2.6), draft=Path("/models/draft-1"), target=Path("/models/target-1"))

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(matrix, "lab_run", serve)
    matrix.run_matrix(ServeOptions(dir=tmp_path), LoadOptions(rounds=20), [name], print)
    draft = "/models/draft-1" if name == "healthy" else str(shipped_pair() / "drafts" / "default")
    assert given[-1][-5:] == ["--draft", draft, "--target", "/models/target-1", "--json"]
    assert {options.level for options in served} == {"tensors"}
    assert {options.extra_env["EAGLETRACE_AUX_LAYERS"] for options in served} == {"all"}


def test_faults_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "faults", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema_version"] == 1
    assert len(body["faults"]) == len(CASES)


@pytest.mark.parametrize("command", [["run", "--fault", "d2t-absolut"], ["matrix", "--only", "d2t-absolut"]])
def test_unknown_names_exit_2_and_suggest(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["lab", *command, "--dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean d2t-absolute" in captured.err


def test_run_prints_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagletrace.lab.run.lab_run", always(result(2.5)))
    assert cli.main(["lab", "run", "--json", "--rounds", "7"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert set(body) == {"schema_version", "run", "accept_length", "rounds", "engine_died", "requests"}
    assert body["requests"] == [{"request_id": "r", "meta_info": {"id": "r"}, "output_ids": [1]}]


def test_a_dead_engine_is_said_and_exits_0(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagletrace.lab.run.lab_run", always(result(None, died=True)))
    assert cli.main(["lab", "run", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["engine_died"] is True
    assert "the engine died" in captured.err


@pytest.mark.parametrize("given", [["--rounds", "0"], ["--topk", "x"], ["--level", "all"], ["--pair", "gpt"]])
def test_bad_options_exit_2(given: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["lab", "run", *given])
    assert caught.value.code == 2
