"""The report of a diagnosis: on a terminal, narrow, piped, and as a picture."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from eagletrace.diagnose.result import (
    Acceptance,
    Cause,
    Check,
    DepthRate,
    Diagnosis,
    Evidence,
    Proof,
    RunInfo,
    Verdict,
)
from eagletrace.report.charts import bar
from eagletrace.report.evidence import evidence_rows
from eagletrace.report.picture import diagnosis_svg
from eagletrace.report.tables import plain_table
from eagletrace.report.terminal import plain_text
from eagletrace.report.text import cell, safe
from tests.cli.commands import environ
from tests.store.runs import small_run

ROWS = tuple({"key": f"layers.0.{name}.weight", "fate": "dropped", "rms": float("nan")} for name in "qkvogud")


def diagnosis(verdict: Verdict = "fault", title: str = "Tensors landed nowhere") -> Diagnosis:
    depths = (DepthRate(1, 400, 20, 400), DepthRate(2, 20, 5, 400), DepthRate(3, 5, 0, 400))
    evidence = (Evidence("weights_not_loaded", "7 tensors were dropped", ROWS), Evidence("x", "and so on"))
    cause = Cause("weights.not_loaded", 0.95, "critical", title, evidence, "Rename `layers.0.*`.", Proof())
    checks = (
        Check("vocab.t2d", "alarm", "t2d disagrees, which costs nothing"),
        Check("weights.not_loaded", "alarm", "7 tensors were dropped (an effect of x)"),
        Check("fc.norm", "unknown", "record EAGLETRACE_LEVEL=tensors"),
        *(Check(f"ok.{n}", "ok", "fine") for n in range(4)),
    )
    return Diagnosis(
        RunInfo("run-1", "0.5.9", "/draft", "/target"), verdict,
        Acceptance(400, 1200, 25, depths, 1.11, "it counts the prefill's token"),
        (cause,) if verdict == "fault" else (), checks, "The layer was never loaded.", "Rename the tensors.",
    )  # fmt: skip


def test_the_verdict_comes_first() -> None:
    lines = plain_text(diagnosis()).splitlines()
    assert lines[0] == "FAULT: Tensors landed nowhere"
    assert lines[1] == "Cause: weights.not_loaded (critical, confidence 95%)"
    assert "Accept length: 1.06 over 400 rounds" in lines
    assert lines.index("Why: The layer was never loaded.") < lines.index("Next: Rename the tensors.")
    order = [next(i for i, line in enumerate(lines) if line.startswith(h)) for h in
             ("Acceptance by depth", "Correct drafts per round", "Cause 1: weights.not_loaded", "Checks", "Warnings")
             if h != "Warnings"]  # fmt: skip
    assert order == sorted(order)


def test_both_rates_are_named_and_right() -> None:
    text = plain_text(diagnosis())
    header = next(line for line in text.splitlines() if line.startswith("depth"))
    assert "conditional" in header and "unconditional" in header and "95 % interval" in header
    depth2 = next(line for line in text.splitlines() if line.split()[:1] == ["2"] and "5/20" in line)
    assert [word for word in depth2.split() if "%" in word] == ["25.0%", "11.2%", "46.9%", "1.2%"]
    assert "accept length 1.062 = 1 + 25 accepted / 400 rounds" in text
    assert "accept length as the engine reports it 1.110: it counts the prefill's token" in text


def test_evidence_fix_and_checks() -> None:
    text = plain_text(diagnosis(), ["skipped x.parquet"])
    assert "- 7 tensors were dropped  [weights_not_loaded]" in text
    assert "layers.0.q.weight" in text and "5 of 7 rows" in text and "nan" in text
    assert "Fix: Rename `layers.0.*`." in text
    assert "eagletrace explain weights.not_loaded" in text
    assert "alarm vocab.t2d: t2d disagrees, which costs nothing" in text
    assert "unknown fc.norm: record EAGLETRACE_LEVEL=tensors" in text
    assert "alarm, see cause 1: weights.not_loaded" in text and text.count("7 tensors were dropped") == 1
    assert "ok.1" not in text and "4 ok, 2 alarm, 1 unknown" in text
    assert text.rstrip().endswith("- skipped x.parquet")


@pytest.mark.parametrize("verdict", ["healthy", "weak_draft", "inconclusive", "no_speculation"])
def test_every_verdict_has_words(verdict: Verdict) -> None:
    first = plain_text(diagnosis(verdict)).splitlines()[0]
    assert first.startswith(verdict.replace("_", " ").upper() + ": ")


def test_no_rounds_draw_no_chart() -> None:
    empty = Diagnosis(RunInfo("r"), "inconclusive", Acceptance(), why="no rounds", next="send requests")
    text = plain_text(empty)
    assert "Acceptance by depth" not in text and "INCONCLUSIVE" in text and "over 0 rounds" not in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_plain_text_has_no_escapes_boxes_or_trailing_spaces(width: int) -> None:
    text = plain_text(diagnosis(), width=width)
    assert text.isascii() and "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    rows = [line for line in text.splitlines() if "layers.0." not in line]
    assert max(map(len, rows)) <= width


def test_markup_and_escapes_of_a_trace_are_text() -> None:
    text = plain_text(diagnosis(title="[bold red]x[/] \x1b[31mred\x07 [link=http://x]y[/link]"))
    assert "[bold red]x[/] \\x1b[31mred\\x07 [link=http://x]y[/link]" in text
    assert safe("a\u202eb\x9b") == "a\\u202eb\\x9b"
    assert safe("naïve 漢字\u00a0x\n") == "naïve 漢字\u00a0x\n"


def terminal(path: Path, columns: int, **extra: str) -> str:
    """What `eagletrace diagnose` shows on a terminal so many columns wide."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "eagletrace.cli", "diagnose", str(path)], stdout=follower, stderr=subprocess.PIPE,
        env=environ(COLUMNS=str(columns), TERM="xterm-256color", PYTHONUTF8="1", **extra),
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    process.communicate(timeout=60)
    return shown.decode()


def test_a_terminal_gets_a_card_that_fits(tmp_path: Path) -> None:
    shown = terminal(small_run(tmp_path / "run"), 60)
    assert "╭" in shown and "\x1b[" in shown
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(len(line.rstrip()) for line in bare.splitlines()) <= 60
    assert bare.index("╭") < bare.index("Acceptance by depth") < bare.index("Correct drafts per round")


def test_no_color_is_respected(tmp_path: Path) -> None:
    shown = terminal(small_run(tmp_path / "run"), 80, NO_COLOR="1")
    colours = [m for m in re.findall(r"\x1b\[([0-9;]*)m", shown) if set(m.split(";")) - {"0", "1", "2", "4", ""}]
    assert colours == [] and "╭" in shown


def test_a_pipe_gets_plain_text(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "eagletrace.cli", "diagnose", str(small_run(tmp_path / "run"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environ())
    assert done.stdout.isascii() and "\x1b" not in done.stdout and "Acceptance by depth" in done.stdout


def test_the_picture_is_self_contained() -> None:
    svg = diagnosis_svg(diagnosis(title="a < b & [c]"), width=90)
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    text = "".join(root.itertext()).replace("\u00a0", " ")
    assert "FAULT" in text and "a < b & [c]" in text and "weights.not_loaded" in text
    assert "@font-face" not in svg and "url(http" not in svg


def test_wide_evidence_becomes_lines_and_long_evidence_is_counted() -> None:
    wide = (
        {"subject": "d2t", "served": {"length": 358, "in_range": False}, **{f"column_{n}": "x" * 30 for n in range(5)}},
    )
    many = tuple({"key": f"k{n}", "a": "y" * 40, "b": "z" * 40, "c": 1} for n in range(7))
    single = list(evidence_rows(wide, 80, fancy=False))
    assert len(single) == 7
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        for part in (*single, *evidence_rows(many, 80, fancy=False)):
            console.print(part)
    lines = [line.strip() for line in capture.get().splitlines()]
    assert "served: length=358, in_range=no" in lines and "5 of 7 rows (--json has all)" in lines
    assert f"k4   {'y' * 40}" in lines and "z" not in capture.get()
    assert max(map(len, capture.get().splitlines())) <= 80
    assert list(evidence_rows((), 80, fancy=True)) == []


def test_bars() -> None:
    assert bar(0.5, 10, fancy=False) == "#####"
    assert bar(0.0, 10, fancy=True) == "" and bar(1.0, 10, fancy=True) == "█" * 10
    assert bar(0.0625, 10, fancy=True) == "▋"
    assert bar(7.0, 4, fancy=False) == "####"


def test_cells_and_plain_tables() -> None:
    assert [cell(v) for v in (None, True, 0.123456, 3, [1, None])] == ["-", "yes", "0.1235", "3", "[1, null]"]
    assert cell("x" * 100) == "x" * 77 + "..." and cell("a\nb") == "a b"
    assert plain_table([{"a": 1, "b": "x"}, {"a": None, "b": "yy"}], ["a", "b"]) == ["a  b", "1  x", "-  yy"]
    assert plain_table([], ["a"]) == ["a", "(no rows)"]
