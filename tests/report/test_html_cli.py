"""The command: where the file goes, what is said when it cannot be made, and that nothing half-written stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.cli.main import main
from tests.cli.commands import environ
from tests.report.html_parse import Page
from tests.report.html_runs import hostile_run
from tests.store.runs import small_run

Capture = pytest.CaptureFixture[str]
TARGET = Path(eagletrace.__file__).parent / "lab" / "pair" / "data" / "llama" / "target"


def test_the_default_name_is_the_runs_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    run = small_run(tmp_path / "a-run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("wrote a-run.html (") and not err
    assert Page((tmp_path / "a-run.html").read_text(encoding="utf-8")).text.startswith("INCONCLUSIVE")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-run", "a-run.html"]


def test_an_id_that_is_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["report", str(hostile_run(tmp_path / "run"))]) == 0
    (file,) = (tmp_path / "here").iterdir()
    assert file.suffix == ".html" and "<" not in file.name and "/" not in file.name
    assert "\x1b" not in capsys.readouterr().out


def test_a_file_that_is_there_is_replaced(tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "page.html"
    output.write_text("what stood there")
    assert main(["report", str(DEMO_RUN), "-o", str(output)]) == 0
    assert output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert f"wrote {output}" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["a folder", "no folder", "a file"])
def test_where_nothing_can_be_written(place: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    output = {"a folder": tmp_path, "no folder": tmp_path / "no" / "x.html", "a file": tmp_path / "file" / "x.html"}[
        place
    ]
    run = small_run(tmp_path / "run")
    before = sorted(tmp_path.iterdir())
    assert main(["report", str(run), "-o", str(output)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("eagletrace: cannot write") and sorted(tmp_path.iterdir()) == before


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    output.write_text("what stood there")
    run = small_run(tmp_path / "run")
    line = f'ulimit -f 100; "{sys.executable}" -m eagletrace.cli report "{run}" -o "{output}"'
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environ())
    assert ended.returncode == 2 and ended.stderr == f"eagletrace: cannot write {output}: File too large\n"
    assert output.read_text() == "what stood there" and sorted(p.name for p in tmp_path.iterdir()) == [
        "page.html",
        "run",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/no/such/run"], "/no/such/run"),
        ([str(DEMO_RUN), "--tokenizer", "/no/such/tokenizer.json"], "--tokenizer /no/such/tokenizer.json: cannot read"),
        ([str(DEMO_RUN), "--tokenizer", str(DEMO_RUN / "run.json")], "is no tokenizer"),
        ([str(DEMO_RUN), "--draft", "/x"], "--draft alone proves nothing"),
        ([str(DEMO_RUN), *("--draft", "/x") * 2, "--target", "/y"], "--draft is given 2 times for one run"),
        ([str(DEMO_RUN), str(DEMO_RUN), *("--draft", "/x") * 3, "--target", "/y"], "--draft is given 3 times"),
        ([str(DEMO_RUN), "/no/such/run"], "/no/such/run"),
    ],
    ids=["no run", "no tokenizer", "other JSON", "draft alone", "two drafts", "three drafts", "no second run"],
)
def test_what_cannot_be_reported(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and "Traceback" not in err and not list(tmp_path.iterdir())


def test_a_draft_without_recorded_states_is_a_note(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "page.html"
    draft = TARGET.parent / "drafts" / "default"
    assert main(["report", str(DEMO_RUN), "-o", str(output), "--draft", str(draft), "--target", str(TARGET)]) == 0
    assert "no proof by replay" in capsys.readouterr().err
    page = Page(output.read_text(encoding="utf-8"))
    assert "no proof by replay" in page.text and f"--draft {draft}" in page.text


def test_two_runs_are_replayed_each(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("torch")
    output, drafts = tmp_path / "page.html", TARGET.parent / "drafts"
    models = ["--draft", str(drafts / "default"), "--draft", str(drafts / "full_vocab"), "--target", str(TARGET)]
    assert main(["report", str(DEMO_RUN), str(DEMO_RUN), "-o", str(output), *models]) == 0
    assert capsys.readouterr().err.count("no proof by replay") == 2
    text = Page(output.read_text(encoding="utf-8")).text
    assert text.count("no proof by replay") == 2
    for variant in ("default", "full_vocab"):
        assert f"--draft {drafts / variant} --target {TARGET}" in text


def test_two_runs_and_what_differs(tmp_path: Path, capsys: Capture) -> None:
    a, b = small_run(tmp_path / "a"), DEMO_RUN
    output = tmp_path / "page.html"
    assert main(["report", str(a), str(b), "-o", str(output)]) == 0
    with eagletrace.open_run(b) as run:
        cause = eagletrace.diagnose(run).causes[0]
    page = Page(output.read_text(encoding="utf-8"))
    assert page.text.index("A against B") < page.text.index("Run A: INCONCLUSIVE") < page.text.index("Run B: FAULT")
    assert cause.id in page.text and "aux.use_aux_hidden_state" in page.text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    capsys.readouterr()
