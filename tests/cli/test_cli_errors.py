"""What users get wrong: a clear message, the contract's exit status, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagletrace.cli.main import main
from tests.cli.commands import eagletrace, environ
from tests.store.runs import make_folder, small_run

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("command", [["diagnose"], ["query", "--sql", "SELECT 1"], ["runs"]])
def test_no_such_folder(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main([command[0], str(tmp_path / "absent"), *command[1:]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "no such folder" in err and "Traceback" not in err


@pytest.mark.parametrize("command", ["diagnose", "query"])
def test_what_is_no_run(command: str, tmp_path: Path, capsys: Capture) -> None:
    more = ["histogram"] if command == "query" else ["--json"]
    assert main([command, str(tmp_path), *more]) == 2
    assert "is empty" in capsys.readouterr().err
    make_folder(tmp_path / "new", schema_version=99)
    assert main([command, str(tmp_path / "new"), *more]) == 2
    out, err = capsys.readouterr()
    assert "newer eagletrace" in err and out == ""


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["diagnos", "x"], "diagnose"),
        (["explain", "weights.notloaded"], "weights.not_loaded"),
        (["queries", "histogrm"], "histogram"),
    ],
)
def test_unknown_names_suggest_the_nearest(arguments: list[str], near: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert f"did you mean {near}" in capsys.readouterr().err


def test_unknown_query_and_parameter(tmp_path: Path, capsys: Capture) -> None:
    path = str(small_run(tmp_path / "run"))
    for arguments, message in (
        (["histogrm"], "did you mean histogram"),
        (["worst-requests", "--param", "limt=3"], "did you mean limit"),
        (["worst-requests", "--param", "limit=many"], "limit is of type int"),
        (["worst-requests", "--param", "limit"], "NAME=VALUE"),
        (["histogram", "--param", "limit=3"], "no parameters"),
        (["histogram", "--sql", "SELECT 1"], "either"),
        ([], "either"),
        (["--sql", "DROP TABLE all_ranks.rounds"], "only SELECT"),
        (["--sql", "SELECT nonsense FROM rounds"], "nonsense"),
        (["histogram", "-o", str(tmp_path / "no" / "file")], "cannot write"),
        (["histogram", "--format", "xml"], "invalid choice"),
    ):
        assert main(["query", path, *arguments]) == 2, arguments
        out, err = capsys.readouterr()
        assert message in err and "Traceback" not in err and out == ""


def test_without_a_command_help_is_shown(capsys: Capture) -> None:
    assert main([]) == 2
    assert "diagnose" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "explain" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("eagletrace ")


def test_broken_pipe_is_quiet(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "eagletrace.cli", "query", str(path), "--sql", "SELECT * FROM range(200000)",
         "--format", "csv"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(),
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"range\r\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


def test_a_reader_that_left_at_once(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "eagletrace.cli", "query", str(small_run(tmp_path / "run")), "histogram"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environ())
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eagletrace.store.summary.list_runs", interrupted)
    assert main(["runs", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_server_of_another_python_can_be_run(tmp_path: Path) -> None:
    script = 'echo "$EAGLETRACE $EAGLETRACE_DIR $EAGLETRACE_LEVEL -- $0"; exit 7'
    settings = ("--dir", "traces", "--level", "contract")
    shown = eagletrace("run", *settings, "--", "sh", "-c", script, "--dir", cwd=tmp_path)
    assert shown.returncode == 7
    assert shown.stdout == f"1 {tmp_path.resolve()}/traces contract -- --dir\n"
    missing = eagletrace("run", "--", "no-such-command")
    assert missing.returncode == 127 and "command not found" in missing.stderr
    plain = tmp_path / "plain.txt"
    plain.write_text("x")
    refused = eagletrace("run", "--", plain)
    assert refused.returncode == 126 and "Traceback" not in refused.stderr
    assert eagletrace("run").returncode == 2
    assert eagletrace("run", "--level", "everything", "--", "true").returncode == 2
    killed = eagletrace("run", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == -9


def test_importing_costs_nothing() -> None:
    heavy = "['pyarrow', 'duckdb', 'rich', 'torch', 'sglang', 'numpy', 'opentelemetry']"
    check = f"import sys; sys.exit(' '.join(set({heavy}) & set(sys.modules)) or None)"
    for module in ("eagletrace", "eagletrace.cli.main"):
        done = subprocess.run([sys.executable, "-c", f"import {module}; {check}"], capture_output=True, env=environ())
        assert (done.returncode, done.stderr) == (0, b""), module


def test_public_names() -> None:
    """The subpackage and the function of the same name do not hide each other, whichever comes first."""
    code = """
import eagletrace
before = eagletrace.diagnose
from eagletrace.diagnose import CAUSES, diagnose
assert before is diagnose and callable(eagletrace.diagnose) and CAUSES
assert eagletrace.open_run.__module__.startswith("eagletrace.store")
try:
    eagletrace.nothing
except AttributeError as error:
    assert "nothing" in str(error)
class Asked(Exception): pass
class Run:
    def __getattr__(self, name): raise Asked
try:
    eagletrace.diagnose(Run())
except Asked:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ())
    assert done.returncode == 0, done.stderr
