"""What commands print, and what they leave to stderr."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from eagletrace.cli import demo
from eagletrace.cli.main import main
from eagletrace.cli.output import plain
from tests.cli.commands import eagletrace, environ
from tests.store.runs import make_folder, small_run, writer

Capture = pytest.CaptureFixture[str]


def one_object(text: str) -> dict[str, Any]:
    value = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert value["schema_version"] == 1
    return value


def test_query_formats(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    assert main(["query", path, "histogram", "--json"]) == 0
    value = one_object(capsys.readouterr().out)
    assert value["columns"] == ["correct_drafts", "rounds", "share"]
    assert [r["rounds"] for r in value["rows"]] == [1, 0, 1, 1]
    assert main(["query", path, "histogram", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [r["rounds"] for r in rows] == ["1", "0", "1", "1"]
    assert main(["query", path, "histogram", "--format", "parquet", "-o", str(tmp_path / "h.parquet")]) == 0
    assert pq.read_table(tmp_path / "h.parquet")["rounds"].to_pylist() == [1, 0, 1, 1]
    assert main(["query", path, "histogram"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["correct_drafts", "rounds", "share"] and len(lines) == 5


def test_parquet_to_a_pipe(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    target = tmp_path / "out.parquet"
    with target.open("wb") as file:
        command = [sys.executable, "-m", "eagletrace.cli", "query", str(path), "outputs", "--format", "parquet"]
        assert subprocess.run(command, stdout=file, env=environ()).returncode == 0
    assert pq.read_table(target)["output_ids"].to_pylist() == [list(range(100, 108))]


def test_values_that_json_lacks(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    sql = (
        "SELECT 'nan'::DOUBLE AS n, '-inf'::DOUBLE AS i, TIMESTAMP_NS '2026-01-02 03:04:05.123456789' AS t, "
        "'\\x01\\xff'::BLOB AS b, 1.5::DECIMAL(4,2) AS d, {'a': [1, NULL]} AS s, 2::HUGEINT ** 3 AS h"
    )
    assert main(["query", path, "--sql", sql, "--json"]) == 0
    (row,) = one_object(capsys.readouterr().out)["rows"]
    assert row == {
        "n": "NaN", "i": "-Infinity", "t": "2026-01-02T03:04:05.123456", "b": "01ff", "d": 1.5,
        "s": {"a": [1, None]}, "h": 8,
    }  # fmt: skip
    assert plain({"x": (float("inf"), b"\x02")}) == {"x": ["Infinity", "02"]}


def test_an_empty_answer_says_what_was_not_recorded(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    assert main(["query", path, "phases", "--json"]) == 0
    out, err = capsys.readouterr()
    assert one_object(out)["rows"] == [] and "no rows in spans" in err


def test_parameters(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    assert main(["query", path, "rejected-tokens", "--param", "limit=1", "--json"]) == 0
    assert len(one_object(capsys.readouterr().out)["rows"]) == 1
    assert main(["query", path, "--sql", "SELECT $a AS a", "--param", "a=x", "--json"]) == 0
    assert one_object(capsys.readouterr().out)["rows"] == [{"a": "x"}]


def test_runs(tmp_path: Path, capsys: Capture) -> None:
    for file in small_run(tmp_path / "first", start=1_700_000_000 * 10**9).rglob("*.parquet"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    live = make_folder(tmp_path / "second", start=1_700_000_001 * 10**9, host=os.uname().nodename)
    process = {"host": os.uname().nodename, "pid": os.getpid()}
    (live / "process-x.json").write_text(json.dumps(process))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    first, second = one_object(out)["runs"]
    assert "broken" in err
    assert first == {
        "id": "first", "path": str(tmp_path / "first"), "start": "2023-11-14T22:13:20+00:00", "sglang": "0.5.23",
        "level": "tokens", "rounds": 3, "state": "ended",
    }  # fmt: skip
    assert (second["id"], second["rounds"], second["state"]) == ("second", 0, "live")
    (live / "process-x.json").write_text(json.dumps({**process, "pid": 2**22 + 1}))
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert one_object(capsys.readouterr().out)["runs"][1]["state"] == "ended"


def test_a_later_process_of_the_same_number_is_not_the_server(tmp_path: Path, capsys: Capture) -> None:
    run = make_folder(tmp_path / "run", host=os.uname().nodename)
    file = run / "process-x.json"
    file.write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid()}))
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert one_object(capsys.readouterr().out)["runs"][0]["state"] == "ended"


def test_runs_of_an_empty_folder(tmp_path: Path, capsys: Capture) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out


def test_queries_and_explain(capsys: Capture) -> None:
    assert main(["queries", "--json"]) == 0
    entries = {q["name"]: q for q in one_object(capsys.readouterr().out)["queries"]}
    assert entries["worst-requests"]["params"]["limit"]["default"] == 20
    assert entries["histogram"]["needs"] == ["verifies"] and entries["histogram"]["title"]
    assert main(["queries", "worst-requests"]) == 0
    out = capsys.readouterr().out
    assert "LIMIT $limit" in out and "--param limit=20" in out
    assert main(["explain", "weights.not_loaded"]) == 0
    out = capsys.readouterr().out
    assert "How to fix it" in out and "https://github.com/sgl-project/sglang/issues/35797" in out and "{" not in out
    assert main(["explain"]) == 0
    assert "vocab.d2t_encoding" in capsys.readouterr().out


def test_diagnose_names_skipped_files(tmp_path: Path, capsys: Capture) -> None:
    path = small_run(tmp_path / "run")
    (path / "rounds" / "cut.parquet").write_bytes(b"PAR1")
    status = main(["diagnose", str(path), "--json"])
    out, err = capsys.readouterr()
    value = one_object(out)
    assert status == {"healthy": 0, "fault": 1, "weak_draft": 1}.get(value["verdict"], 3)
    assert value["run"]["id"] == "run" and value["acceptance"]["accepted"] == 5
    assert "cut.parquet" in err and "cut.parquet" in value["warnings"][0]
    main(["diagnose", str(path)])
    assert "cut.parquet" in capsys.readouterr().out
    assert main(["diagnose", str(path), "--draft", "d"]) == 2
    assert "a replay needs --target too" in capsys.readouterr().err


def test_diagnose_of_a_run_without_anything(tmp_path: Path, capsys: Capture) -> None:
    assert main(["diagnose", str(make_folder(tmp_path / "run")), "--json"]) == 3
    value = one_object(capsys.readouterr().out)
    assert value["verdict"] == "inconclusive" and value["acceptance"]["rounds"] == 0


def test_demo_is_a_diagnosis(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_RUN", tmp_path / "absent")
    assert main(["demo"]) == 2
    assert "install eagletrace again" in capsys.readouterr().err
    monkeypatch.setattr(demo, "DEMO_RUN", small_run(tmp_path / "run"))
    assert main(["demo", "--json"]) == 3
    assert one_object(capsys.readouterr().out)["run"]["id"] == "run"


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def environment(status: str) -> dict[str, Any]:
        hooks = [{"target": "a.b", "required": True, "status": status, "detail": "x"},
                 {"target": "a.c", "required": False, "status": "missing", "detail": None}]  # fmt: skip
        return {"sglang": "0.5.23", "activation": {"entry_point": True}, "hooks": hooks}

    module = ModuleType("doctor")
    monkeypatch.setitem(sys.modules, "eagletrace.instrumentations.sglang.doctor", module)
    for status, code in (("found", 0), ("missing", 3), ("shut_out", 3)):
        monkeypatch.setattr(module, "inspect_environment", lambda s=status: environment(s), raising=False)
        assert main(["doctor", "--json"]) == code
        value = one_object(capsys.readouterr().out)
        assert value["hooks"][0]["status"] == status and value["sglang"] == "0.5.23"
        assert main(["doctor"]) == code
        assert "a.b" in capsys.readouterr().out


def test_escape_sequences_of_a_trace_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    writer(path, pid=9).write("contract", [{"key": "\x1b[2Jevil [red]x[/red]", "actual": '"\x9b1m"'}])
    shown = eagletrace("query", path, "contract")
    assert "\x1b" not in shown.stdout and "\x9b" not in shown.stdout
    assert "\\x1b[2Jevil [red]x[/red]" in shown.stdout
