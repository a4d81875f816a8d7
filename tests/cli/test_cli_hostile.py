"""Input that no server writes and places that cannot be written to: a message, the right exit status, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagletrace.cli.main import main
from tests.store.runs import make_folder, small_run, writer

Capture = pytest.CaptureFixture[str]
UNREADABLE_PATHS = ("a" * 5000, "a\0b", "", "~nosuchuser/x")


@pytest.mark.parametrize("path", UNREADABLE_PATHS, ids=["long", "nul", "empty", "no such user"])
@pytest.mark.parametrize("command", [("diagnose",), ("runs",), ("query", "contract")], ids=lambda c: c[0])
def test_paths_that_cannot_be(path: str, command: tuple[str, ...], capsys: Capture) -> None:
    assert main([command[0], path, *command[1:], "--json"]) == 2
    out, err = capsys.readouterr()
    assert not out and 0 < len(err) < 500 and err.startswith("eagletrace: ") and "\0" not in err


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"schema_version": true}', '{"schema_version": 0}', '{"schema_version": 1.0}'],
    ids=["deep", "bool", "zero", "float"],
)
def test_run_json_that_is_none(text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "run.json").write_text(text)
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "run.json" in capsys.readouterr().err


def test_a_run_json_that_leads_nowhere(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "run.json").symlink_to("run.json")
    assert main(["runs", str(tmp_path)]) == 2
    assert "run.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [{"settings": {"sample": "half"}}, {"settings": {"sample": None}}, {"start_time_unix_nano": 10**40},
     {"start_time_unix_nano": -(10**30)}, {"run_id": "\udcff", "host": "\ud800"}],
    ids=["sample text", "sample null", "late", "early", "surrogates"],
)  # fmt: skip
def test_odd_values_in_run_json(wrong: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    path = small_run(tmp_path / "run")
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, **wrong}))
    for command, status in (("diagnose", 3), ("runs", 0)):
        assert main([command, str(path), "--json"]) == status
        json.loads(capsys.readouterr().out.encode())


def test_values_that_cannot_be_counted_with(tmp_path: Path, capsys: Capture) -> None:
    path = make_folder(tmp_path / "run")
    writer(path).write("params", [{"side": "draft", "name": "a", "elements": 1}])
    for file in (path / "params").glob("*.parquet"):
        table = pq.read_table(file)
        index = table.schema.get_field_index("tp_rank")
        largest = pa.array([32767] * len(table), table.schema.field(index).type)
        pq.write_table(table.set_column(index, "tp_rank", largest), file)
    assert main(["diagnose", str(path), "--json"]) in (2, 3)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["a file", "a loop"])
def test_a_table_folder_that_is_none_is_named(kind: str, tmp_path: Path, capsys: Capture) -> None:
    path = make_folder(tmp_path / "run")
    if kind == "a file":
        (path / "hooks").write_text("x")
    else:
        (path / "hooks").symlink_to("hooks")
    assert main(["diagnose", str(path), "--json"]) == 3
    out, err = capsys.readouterr()
    assert "hooks" in err and "hooks" in json.loads(out)["warnings"][0]


def test_sql_that_is_no_text(tmp_path: Path, capsys: Capture) -> None:
    path = small_run(tmp_path / "run")
    assert main(["query", str(path), "--sql", "SELECT '\udcff'"]) == 2
    assert main(["query", str(path), "--sql", "SELECT $x", "--param", "x=\udcff"]) == 2
    capsys.readouterr()


def test_results_that_have_no_value_outside_duckdb(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    for sql in ("SELECT 'infinity'::date", "SELECT '290000-01-01'::timestamp"):
        assert main(["query", path, "--json", "--sql", sql]) == 2
        out, err = capsys.readouterr()
        assert not out and "VARCHAR" in err
    output = tmp_path / "o.parquet"
    output.write_text("what stood there")
    parquet = ["--format", "parquet", "-o", str(output)]
    assert main(["query", path, "--sql", "SELECT INTERVAL '3 months'", *parquet]) == 2
    assert "VARCHAR" in capsys.readouterr().err and output.read_text() == "what stood there"


def test_columns_of_one_name_are_all_kept(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    assert main(["query", path, "--json", "--sql", "SELECT 1 AS a, 2 AS a, 3 AS a_1"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["rows"] == [{"a": 1, "a_2": 2, "a_1": 3}] and value["columns"] == ["a", "a_2", "a_1"]


def test_messages_quote_no_escape_sequences(capsys: Capture) -> None:
    assert main(["diagnose", "/no\x1b[31mpe"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\\x1b[31mpe" in err


@pytest.mark.parametrize("directory", ["", "~nosuchuser/x"])
def test_run_into_no_folder(directory: str, capsys: Capture) -> None:
    assert main(["run", "--dir", directory, "--", "true"]) == 2
    assert "--dir" in capsys.readouterr().err
    assert main(["run", "--", ""]) == 2


def test_an_empty_name_is_unknown(capsys: Capture) -> None:
    assert main(["queries", ""]) == 2
    assert "unknown query" in capsys.readouterr().err


def _shell(command: str, limit: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    line = f'{limit}"{sys.executable}" -m eagletrace.cli {command}'
    environment = {**os.environ, **environ}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environment)


def test_full_and_closed_streams(tmp_path: Path) -> None:
    full = _shell(f"explain --json >'{tmp_path / 'out'}'", limit="ulimit -f 0; ")  # as on a full disk
    assert full.returncode == 2 and full.stderr == "eagletrace: cannot read or write: File too large\n"
    closed = _shell("explain >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    no_stderr = _shell("explain nosuch 2>&-")
    assert (no_stderr.returncode, no_stderr.stdout) == (2, "")


def test_streams_that_cannot_show_a_character(tmp_path: Path) -> None:
    sql = f"query {small_run(tmp_path / 'run')} --sql 'SELECT chr(9608) AS a'"
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    shown = _shell(sql, **ascii_only)
    assert shown.returncode == 0 and "\\u2588" in shown.stdout
    assert json.loads(_shell(f"{sql} --json", **ascii_only).stdout)["rows"] == [{"a": "█"}]
    assert _shell(f"{sql} --format csv", **ascii_only).stdout == "a\n█\n"
