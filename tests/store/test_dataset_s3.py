"""Every reading command on a run behind an S3 server says what it says of the run folder."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

import eagletrace
from eagletrace.cli.main import main
from tests.store.runs import small_run
from tests.store.s3_server import s3_server

DEMO = Path(__file__).parents[2] / "eagletrace" / "data" / "demo-run"
DEMO_ID = json.loads((DEMO / "run.json").read_text())["run_id"]
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with s3_server("traces"):
        folder = tmp_path_factory.mktemp("runs")
        for run in (DEMO, small_run(folder / "small", start=1)):
            assert main(["export", str(run), "--to", "dataset", "-o", "s3://traces/team/set"]) == 0
        yield "s3://traces/team/set"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.setenv("EAGLETRACE_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


@pytest.mark.parametrize(
    "command",
    [
        ["diagnose", "RUN", "--json"], ["query", "RUN", "acceptance-by-depth", "--json"],
        ["query", "RUN", "--sql", "SELECT count(*) FROM all_ranks.verifies"], ["diff", "RUN", str(DEMO), "--json"],
        ["replay", "RUN", "--draft", "/nowhere", "--target", "/nowhere"],
    ],
    ids=lambda c: c[0],
)  # fmt: skip
def test_a_command_reads_the_url_as_it_reads_the_folder(url: str, said: Said, command: list[str]) -> None:
    there = said(*[f"{url}/{DEMO_ID}" if a == "RUN" else a for a in command])
    here = said(*[str(DEMO) if a == "RUN" else a for a in command])
    assert "Traceback" not in there[2]
    assert there[:2] == here[:2]


def test_the_newest_run_of_a_data_set_is_read(url: str, said: Said) -> None:
    status, out, _ = said("diagnose", url, "--json")
    assert status == 1 and json.loads(out)["run"]["id"] == DEMO_ID
    assert said("query", f"{url}/small", "--sql", "SELECT count(*) AS n FROM rounds", "--json")[1].count('"n": 3') == 1


def test_report_metrics_and_exports_read_a_url(url: str, said: Said, tmp_path: Path) -> None:
    run = f"{url}/{DEMO_ID}"
    page, trace = tmp_path / "page.html", tmp_path / "run.pftrace"
    assert said("report", run, "-o", str(page))[0] == 0 and DEMO_ID in page.read_text()
    assert said("export", run, "--to", "perfetto", "-o", str(trace))[0] == 0 and trace.stat().st_size > 1000
    assert said("export", run, "--to", "dataset", "-o", str(tmp_path / "set"))[0] == 0
    assert said("diagnose", str(tmp_path / "set"), "--json")[1] == said("diagnose", str(DEMO), "--json")[1]

    def steady(text: str) -> list[str]:
        return [line for line in text.splitlines() if "timestamp" not in line]

    there, here = said("metrics", run), said("metrics", str(DEMO))
    assert steady(there[1]) == steady(here[1]) and "eagletrace_rounds_total 346" in there[1]


def test_runs_lists_a_data_set(url: str, said: Said) -> None:
    status, out, _ = said("runs", url, "--json")
    assert status == 0
    found = {run["id"]: run for run in json.loads(out)["runs"]}
    assert set(found) == {"small", DEMO_ID} and found["small"]["rounds"] == 3
    assert found["small"]["path"] == f"{url}/small"


def test_python_opens_a_url(url: str, said: Said) -> None:
    with eagletrace.open_run(f"{url}/{DEMO_ID}") as run:
        assert run.arrow("rounds").num_rows == 346
        assert eagletrace.diagnose(run).verdict == "fault"


def test_only_the_tables_that_are_read_are_fetched(url: str, said: Said, tmp_path: Path) -> None:
    said("query", f"{url}/{DEMO_ID}", "contract")
    assert {p.parent.name for p in (tmp_path / "cache").rglob("*.parquet")} == {"contract"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("s3://nosuchbucket/set", "bucket does not exist"),
        ("s3://traces/elsewhere", "holds no run"),
        ("s3://traces/team/set/another", "no run 'another'"),
    ],
)
def test_a_url_without_a_run(url: str, said: Said, given: str, says: str) -> None:
    status, out, err = said("diagnose", given)
    assert (status, out) == (2, "") and says in err and "Traceback" not in err


def test_commands_of_a_live_folder_refuse_a_url(url: str, said: Said) -> None:
    for command in (["watch", url], ["repair", url], ["metrics", url, "--port", "0"]):
        status, _, err = said(*command)
        assert status == 2 and "is a URL" in err


def test_no_credentials(url: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    status, _, err = said("diagnose", url)
    assert status == 2 and "AWS_ACCESS_KEY_ID" in err


def test_a_server_that_refuses_and_one_that_never_answers(
    url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        status, _, err = said("diagnose", url)
        assert status == 2 and "cannot be reached" in err
    monkeypatch.setattr("eagletrace.store.dataset.place.LOOK_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        status, _, err = said("diagnose", url)
        assert status == 2 and "does not answer within 1 s" in err


def test_keys_in_a_url_are_not_shown(said: Said) -> None:
    status, _, err = said("diagnose", "nosuch://me:secret@host/set")
    assert status == 2 and "secret" not in err
    assert re.search(r"no kind of URL", err)
