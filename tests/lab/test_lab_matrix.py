"""The matrix judges a diagnosis by the catalogue, and the commands print what the contract says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagletrace.errors import EagletraceError
from eagletrace.lab import cli, confusion, matrix
from eagletrace.lab.confusion import MatrixCase
from eagletrace.lab.faults import CASES, case
from eagletrace.lab.load import Answer, LoadOptions
from eagletrace.lab.matrix import Diagnosis, healthy_name, in_threads, judge
from eagletrace.lab.options import ServeOptions
from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.run import LabResult


def always(value: object) -> Callable[..., object]:
    return lambda *_given: value


def result(length: float | None, died: bool = False) -> LabResult:
    meta = {"id": "r", "completion_tokens": (length or 0) * 100, "spec_verify_ct": 100}
    answers = [] if length is None else [Answer("r", meta, [1])]
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
    row = judge(case(name), result(1.1), result(2.6), rounds=20)
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
        assert base.pair == entry.pair
        if entry.name == "kimi-0.5.9":  # nothing of that pair can be served there
            continue
        assert (base.engine, base.worker, base.kind) == (entry.engine, entry.worker, "control")


def test_json_and_markdown() -> None:
    row = MatrixCase(
        "d2t-absolute", "fault", ["vocab.d2t_encoding"], ["vocab.d2t_encoding"], "fault", None, 2.6, None, None, True,
        20, engine_died=True,
    )  # fmt: skip
    body = confusion.to_json([row])
    assert set(body["cases"][0]) == {
        "name", "kind", "expected", "found", "verdict", "accept_length", "healthy_accept_length", "fidelity",
        "regained_accept_length", "right", "rounds", "diff",
    }  # fmt: skip
    assert body["cases"][0]["diff"] is None
    json.dumps(body, allow_nan=False)
    table = confusion.markdown([row])
    assert "| `d2t-absolute` | fault | died | 2.60 | - | - | fault | `vocab.d2t_encoding` |" in table
    proved = replace(row, accept_length=1.1, fidelity=0.991, regained_accept_length=2.55)
    assert "| `d2t-absolute` | fault | 1.10, died | 2.60 | 2.55 | 0.991 | fault |" in confusion.markdown([proved])
    control = MatrixCase("healthy", "control", [], [], "healthy", 3.4, 3.4, None, None, True, 20)
    page = confusion.page([control, row], "a pair")
    assert page.startswith("# Faults and controls on the real engine\n\n2 of 2 cases are right.")
    assert page.index("| `d2t-absolute` |") < page.index("| `healthy` |")


COMPARED = {"verdict": "changed", "causes": {"gained": []}, "contract": [
    {"key": "draft.rope.theta", "importance": "decisive"}, {"key": "engine.version", "importance": "relevant"},
]}  # fmt: skip


def compared(name: str, bodies: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> tuple[MatrixCase, list[Any]]:
    """The row of a case whose diffs print these objects, and the commands that were given."""
    given: list[Any] = []

    def run(*command: str | Path) -> tuple[dict[str, Any], int]:
        given.append(command)
        return bodies[len(given) - 1], 1

    monkeypatch.setattr(matrix, "eagletrace", run)
    entry = case(name)
    row = MatrixCase(name, entry.kind, list(entry.expected), [], "fault", 1.0, 2.0, None, None, True, 20)
    served = [replace(result(2.0), run=Path(f"/runs/{n}"), draft=Path(f"/drafts/{n}")) for n in (1, 2)]
    return matrix.compared(entry, row, served[0], served[1], Path("/drafts/own")), given


def test_a_fault_is_compared_by_replay_only_where_the_recorded_facts_name_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {**COMPARED, "causes": {"gained": ["rope.mismatch"]}}
    row, given = compared("rope-theta", [named], monkeypatch)
    assert given == [("diff", Path("/runs/2"), Path("/runs/1"))]
    assert row.public()["diff"] == {"verdict": "changed", "names": ["rope.mismatch"], "replayed": False}
    assert confusion.markdown([row]).splitlines()[2].endswith("| yes | named |")
    row, given = compared("rope-theta", [COMPARED, named], monkeypatch)
    target = ("--target", result(2.0).target)
    assert given[1][3:] == ("--draft", Path("/drafts/2"), *target, "--draft", Path("/drafts/own"), *target)
    assert confusion.markdown([row]).splitlines()[2].endswith("| yes | named, by replay |")
    row, _ = compared("rope-theta", [COMPARED, COMPARED], monkeypatch)
    assert confusion.markdown([row]).splitlines()[2].endswith("| yes | **changed: none** |")


def test_a_control_is_told_by_the_facts_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    row, given = compared("tree", [COMPARED], monkeypatch)
    assert len(given) == 1 and confusion.markdown([row]).splitlines()[2].endswith(
        "| yes | changed: `draft.rope.theta` |"
    )
    row, _ = compared("tree", [{"verdict": "same", "contract": []}], monkeypatch)
    assert confusion.markdown([row]).splitlines()[2].endswith("| yes | same |")


@pytest.mark.parametrize(
    ("name", "other"),
    [("tree", "healthy"), ("healthy-0.5.9", "healthy"), ("healthy", "healthy"), ("layer-keys-0.5.9", "healthy-0.5.9"),
     ("rope-theta-of-the-target", "rope-theta-of-its-own"), ("kimi-tree", "kimi-healthy")],
)  # fmt: skip
def test_which_run_a_case_is_compared_with(name: str, other: str) -> None:
    assert matrix.compared_with(case(name)) == other


def matrix_row(
    kind: str, verdict: str, right: bool, fidelity: float | None = None, regained: float = 2.5
) -> MatrixCase:
    found = ["vocab.coverage"] if verdict == "fault" else []
    return MatrixCase("some", kind, [], found, verdict, 1.2, 2.6, fidelity, regained, right, 20)


def test_the_totals_count_names_proofs_and_what_stayed_open() -> None:
    rows = [
        matrix_row("fault", "fault", True, 0.98, 0.95 * 2.6), matrix_row("fault", "fault", True, 0.97),
        matrix_row("fault", "fault", True, 0.99, 0.94 * 2.6), matrix_row("fault", "fault", False),
        matrix_row("fault", "inconclusive", False), matrix_row("fault", "error", False),
        matrix_row("control", "healthy", True), matrix_row("control", "fault", False),
    ]  # fmt: skip
    assert confusion.totals(rows) == (
        "3 of 6 faults named first by an expected cause (1 with a proof), 1 of 2 controls without a cause; "
        "1 inconclusive, 1 not diagnosed."
    )
    assert confusion.markdown(rows).endswith(f"\n\n{confusion.totals(rows)}\n")


def test_the_page_says_from_how_many_rounds_on_a_case_is_right() -> None:
    base = matrix_row("fault", "fault", True)
    rows = [replace(base, name="no-fc", rounds=n) for n in (20, 100)]
    rows += [replace(base, name="d2t-zero", rounds=100), replace(base, name="d2t-zero", rounds=20, right=False)]
    rows += [
        replace(matrix_row("control", "inconclusive", False), name="tree"),
        replace(rows[0], name="tree", rounds=100),
    ]
    page = confusion.page(rows, "a pair")
    assert "3 of 3 cases are right." in page
    assert "| 20 | 1 | 1 | 0 | 1 | 0 | 0 |" in page and "| 100 | 3 | 0 | 0 | 0 | 0 | 0 |" in page
    assert page.endswith("| `d2t-zero` | **`vocab.coverage`** | right |\n| `tree` | open | right |\n")
    assert "With fewer rounds" not in confusion.page([base], "a pair")


def test_a_fault_that_has_not_acted_is_no_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "diagnose", always(diagnosis("healthy", exit_code=0)))
    row = judge(case("length-limit"), result(2.6), result(2.6), rounds=20)
    assert (row.right, row.dormant) == (False, True)
    other = result(2.6)
    other.answers[0].output_ids.append(2)
    assert not judge(case("length-limit"), result(2.6), other, rounds=20).dormant
    acted = replace(row, name="d2t-zero", accept_length=1.2, acted=True)
    assert not acted.dormant
    page = confusion.page([row, acted, replace(row, rounds=100, right=True), replace(acted, rounds=100)], "a pair")
    assert "| 20 | 0 | 0 | 1 | 1 | 0 | 0 |" in page
    assert "| `length-limit` | not yet | right |" in page and "| `d2t-zero` | **healthy** |" in page
    monkeypatch.setattr(matrix, "diagnose", always(diagnosis("fault", "aux.state", exit_code=1)))
    assert not judge(case("length-limit"), result(2.6), result(2.6), rounds=20).dormant
    monkeypatch.setattr(matrix, "diagnose", always(diagnosis("healthy", exit_code=0)))
    assert not judge(case("length-limit"), result(2.6, died=True), result(2.6), rounds=20).dormant


def test_the_page_says_why_a_fault_has_no_proof() -> None:
    whole = replace(matrix_row("fault", "fault", True, 0.99), name="no-fc", rounds=100)
    rows = [whole, replace(whole, name="undertrained", fidelity=1.0, regained_accept_length=None),
            replace(whole, name="last-row-only", fidelity=0.97)]  # fmt: skip
    page = confusion.page(rows, "a pair")
    assert "1 of the 2 faults that can have a proof have one. The others:" in page
    assert f"| `undertrained` | 1.000 | - | {case('undertrained').unproved} |" in page
    assert "| `last-row-only` | 0.970 | 2.50 | **one should be there** |" in page
    assert "can have a proof" not in confusion.page([whole], "a pair")


def test_cases_run_side_by_side_and_come_in_order() -> None:
    together = threading.Barrier(2, timeout=20)

    def work(item: int) -> int:
        together.wait()
        time.sleep(0.01 * (item == 0))
        return item

    assert in_threads(work, range(4), 2) == [0, 1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda item: 1 // item, [1, 0], 2)


def test_what_is_done_is_not_served_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[str | None] = []

    def serve(options: ServeOptions, _load: LoadOptions, rounds: list[int]) -> dict[int, LabResult]:
        served.append(options.fault)
        if options.fault == "d2t-zero" and len(served) < 4:
            raise SystemExit(143)
        return dict.fromkeys(rounds, result(2.6))

    monkeypatch.setattr(matrix, "lab_run_at", serve)
    monkeypatch.setattr(matrix, "eagletrace", always(({"verdict": "healthy"}, 0)))

    def run(rounds: list[int]) -> list[tuple[str, int]]:
        rows = matrix.run_matrix(
            ServeOptions(dir=tmp_path), LoadOptions(), ["no-fc", "d2t-zero"], print, rounds, resume=True
        )
        return [(row.name, row.rounds) for row in rows]

    with pytest.raises(SystemExit):
        run([20, 100])
    assert served == ["healthy", "no-fc", "d2t-zero"]
    assert run([20, 100]) == [("no-fc", 20), ("no-fc", 100), ("d2t-zero", 20), ("d2t-zero", 100)]
    assert served[3:] == ["healthy", "d2t-zero"]
    assert len(run([20])) == 2 and served[5:] == ["healthy", "no-fc", "d2t-zero"]  # other numbers of rounds
    (tmp_path / matrix.KEPT).write_text("[{}]\n")
    with pytest.raises(EagletraceError, match="leave --resume out"):
        run([20])


@pytest.mark.parametrize("name", ["healthy", "no-fc"])
def test_the_diagnosis_is_given_the_models(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that were served, or the trainer's draft where the served file has lost what nothing else holds."""
    given: list[list[str]] = []

    def run(command: list[str], **_more: object) -> SimpleNamespace:
        given.append(command)
        return SimpleNamespace(stdout='{"verdict": "healthy", "causes": {}}', stderr="", returncode=0)

    served: list[ServeOptions] = []

    def serve(options: ServeOptions, _load: LoadOptions, rounds: list[int]) -> dict[int, LabResult]:
        served.append(options)
        one = replace(result(2.6), draft=Path("/models/draft-1"), target=Path("/models/target-1"))
        return dict.fromkeys(rounds, one)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(matrix, "lab_run_at", serve)
    matrix.run_matrix(ServeOptions(dir=tmp_path), LoadOptions(rounds=20), [name], print)
    draft = "/models/draft-1" if name == "healthy" else str(shipped_pair() / "drafts" / "default")
    (command,) = (command for command in given if "diagnose" in command)
    assert command[-5:] == ["--draft", draft, "--target", "/models/target-1", "--json"]
    assert {options.level for options in served} == {"tensors"}
    assert {options.extra_env["EAGLETRACE_AUX_LAYERS"] for options in served} == {"all"}


@pytest.mark.parametrize(
    ("asked", "pairs"),
    [({}, {"llama", "kimi"}), ({"pair": "kimi"}, {"kimi"}), ({"pair_dir": shipped_pair()}, {"llama"})],
)
def test_the_cases_of_one_pair_or_of_all(
    asked: dict[str, Any], pairs: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: set[str] = set()

    def serve(options: ServeOptions, _load: LoadOptions, rounds: list[int]) -> dict[int, LabResult]:
        served.add(options.fault or "")
        assert options.pair is None  # the case says it
        return dict.fromkeys(rounds, result(2.6))

    monkeypatch.setattr(matrix, "eagletrace", always(({"verdict": "healthy"}, 0)))
    monkeypatch.setattr(matrix, "lab_run_at", serve)
    rows = matrix.run_matrix(ServeOptions(dir=tmp_path, **asked), LoadOptions(), [], print)
    assert {case(row.name).pair for row in rows} == {case(name).pair for name in served} == pairs
    assert len(rows) == sum(entry.pair in pairs for entry in CASES.values())


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
    assert [(r["request_id"], r["output_ids"]) for r in body["requests"]] == [("r", [1])]


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
