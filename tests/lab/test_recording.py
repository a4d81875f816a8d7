"""Recording in a real server: what it loads, what it survives, what it never does to the server."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagletrace.diagnose import diagnose
from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.server import EngineDiedError, LabServer
from eagletrace.store import open_run

pytestmark = [pytest.mark.lab, pytest.mark.slow]
PROBE = str(Path(__file__).parent / "probe")
BODY = {
    "text": "def parse(self, text):\n    ",
    "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True},
}
BAD = {
    "EAGLETRACE_LEVEL": "loud", "EAGLETRACE_SAMPLE": "1.5", "EAGLETRACE_HIDDEN_EVERY": "0",
    "EAGLETRACE_MAX_BYTES": "much",
    "EAGLETRACE_FLUSH_S": "-1", "EAGLETRACE_REDACT": "maybe", "EAGLETRACE_RUN_ID": "../../x",
}  # fmt: skip


def start(folder: Path, tracing: str = "on", **env: str) -> LabServer:
    """A server with the probe in every process; its log is `folder/log`."""
    plan = serving(ServeOptions(dir=folder / "runs", tracing="on" if tracing == "on" else "off"))
    paths = f"{PROBE}{os.pathsep}{plan.env['PYTHONPATH']}"
    (folder / "probe").mkdir()
    settings = {**plan.env, "PYTHONPATH": paths, "PROBE_DIR": str(folder / "probe"), **env}
    return LabServer(plan.engine, plan.flags, settings, log=folder / "log")


def children(pid: int) -> list[int]:
    """A process and all that came of it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            todo += [int(p) for p in task.read_text().split()]
    return found


def probe(server: LabServer, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Facts of each process that has the probe, schedulers apart from the others."""
    for pid in children(server.pid):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
        if caught >> (signal.SIGUSR2 - 1) & 1:
            os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + 60
    facts: dict[str, list[dict[str, Any]]] = {"scheduler": [], "other": []}
    while time.monotonic() < deadline and len(list((folder / "probe").glob("*.json"))) < 3:
        time.sleep(0.2)
    for file in (folder / "probe").glob("*.json"):
        one = json.loads(file.read_text())
        facts["scheduler" if one["scheduler"] else "other"].append(one)
    assert len(facts["scheduler"]) == 1, [f["title"] for f in facts["other"]]
    assert len(facts["other"]) >= 2
    return facts


def ours(modules: list[str]) -> set[str]:
    """Modules of ours that an idle process has no use for."""
    heavy = ("eagletrace.record", "eagletrace.instrumentations", "eagletrace.store", "eagletrace.format")
    return {m for m in modules if m.startswith(heavy)}


def log(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")


def test_unset_leaves_no_trace(tmp_path: Path) -> None:
    with start(tmp_path, tracing="off") as server:
        server.post("/generate", BODY)
        facts = probe(server, tmp_path)
        server.kill()
    for process in facts["scheduler"] + facts["other"]:
        assert process["wrapped"] == []
        assert ours(process["modules"]) == set()
        assert "duckdb" not in process["modules"]
    assert list((tmp_path / "runs").glob("*/run.json")) == []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A traced server with a bad value in every variable, killed with SIGKILL at a random moment under load."""
    folder = tmp_path_factory.mktemp("killed")
    answers: list[tuple[float, str]] = []
    with start(folder, **BAD) as server:
        facts = probe(server, folder)

        def load() -> None:
            while True:
                try:
                    answer = server.post("/generate", BODY)
                except EngineDiedError:
                    return
                answers.append((time.time(), answer.body["meta_info"]["id"]))

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(answers) < 6:
            time.sleep(0.1)
        time.sleep(1.5 + random.random())
        at = time.time()
        server.kill()
        for thread in threads:
            thread.join()
    run = next((folder / "runs").glob("*/run.json")).parent
    yield {"folder": folder, "facts": facts, "answers": answers, "killed": at, "run": run}


def test_only_the_scheduler_is_instrumented(killed: dict[str, Any]) -> None:
    (scheduler,) = killed["facts"]["scheduler"]
    ends = {name.rpartition(".")[2] for name in scheduler["wrapped"]}
    needed = {"__init__", "process_batch_result", "forward_batch_generation", "verify_tree_greedy_func", "forward"}
    assert ends >= needed
    assert not ends & {"draft", "verify", "_draft_extend_for_decode"}  # what runs in these phases tells of them
    for process in killed["facts"]["other"]:
        assert ours(process["modules"]) == set()
        assert "duckdb" not in process["modules"]


def test_each_bad_value_is_named_once_and_the_server_serves(killed: dict[str, Any]) -> None:
    text = log(killed["folder"])
    for name, value in BAD.items():
        assert text.count(f"{name}={value!r} is not allowed") == 1
    with open_run(killed["run"]) as run:
        ignored = run.rows("SELECT detail->>'variable' AS name FROM events WHERE kind = 'setting_ignored'")
    assert {row["name"] for row in ignored} == set(BAD)


def test_what_is_older_than_a_second_survives_sigkill(killed: dict[str, Any]) -> None:
    with open_run(killed["run"]) as run:
        assert run.warnings == []
        seen = {
            row["request_id"] for row in run.rows("SELECT request_id FROM requests WHERE finish_reason IS NOT NULL")
        }
        newest = run.rows("SELECT max(time_unix_nano) AS t FROM rounds")[0]["t"]
        diagnosis = diagnose(run)
    # A slow machine may write late; half a second is granted for that.
    due = {request for when, request in killed["answers"] if when < killed["killed"] - 1.5}
    assert due
    assert due <= seen
    assert newest > (killed["killed"] - 1.5) * 1e9
    assert diagnosis.acceptance.rounds > 0
    assert diagnosis.verdict in ("healthy", "inconclusive")
    assert list(killed["run"].rglob("*.tmp")) == [] or seen  # leftovers are allowed, and ignored


def test_an_unwritable_folder_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with start(tmp_path, EAGLETRACE_DIR=str(tmp_path / "file" / "runs")) as server:
        assert server.post("/generate", BODY).status == 200
        server.kill()
    text = log(tmp_path)
    assert text.count("eagletrace: cannot write a trace") == 1
    assert "Set EAGLETRACE_DIR to a folder that can be written to" in text
    assert "Traceback" not in text


def test_being_shut_out_is_said_at_once(tmp_path: Path) -> None:
    with start(tmp_path, SGLANG_PLUGINS="somebody_else") as server:
        assert server.post("/generate", BODY).status == 200
        server.kill()
    text = log(tmp_path)
    assert text.count("tracing is shut out: SGLANG_PLUGINS='somebody_else' does not name 'eagletrace'") >= 1
    assert not list((tmp_path / "runs").glob("*/run.json"))
