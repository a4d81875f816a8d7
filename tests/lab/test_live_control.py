"""Live control of a real server: what is asked holds within moments, and no answer changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagletrace.cli.ctl import change, wait_for
from eagletrace.lab.server import LabServer
from eagletrace.store import open_run
from tests.cli.commands import eagletrace
from tests.lab.test_recording import BODY, probe, start

pytestmark = [pytest.mark.lab, pytest.mark.slow]
FLUSHED_S = 1.5
PATIENCE_S = 30.0
"""A busy machine writes later; what must come is waited for so long."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabServer, Path]]:
    folder = tmp_path_factory.mktemp("live")
    with start(folder, EAGLETRACE_FLUSH_S="0.5") as served:
        served.post("/generate", BODY)
        yield served, folder
        served.kill()


def run_of(folder: Path) -> Path:
    (run,) = {path.parent for path in (folder / "runs").glob("*/run.json")}
    return run


def ask(folder: Path, *arguments: str) -> None:
    answer = eagletrace("ctl", folder / "runs", *arguments)
    assert answer.returncode == 0, answer.stderr


def request(served: LabServer) -> dict[str, Any]:
    answer = served.post("/generate", BODY)
    assert answer.status == 200
    return answer.body


def counted(folder: Path) -> dict[str, int]:
    """Rounds by the totals, rounds in detail, and nodes reached by the totals, as they are on disk after a flush."""
    time.sleep(FLUSHED_S)
    with open_run(run_of(folder)) as run:
        totals = run.rows("SELECT coalesce(sum(rounds), 0)::BIGINT AS n FROM totals")[0]["n"]
        rounds = run.rows("SELECT count(*) AS n FROM rounds")[0]["n"]
        reached = run.rows("SELECT coalesce(sum(list_sum(reached_by_depth)), 0)::BIGINT AS n FROM totals")[0]["n"]
    return {"totals": totals, "rounds": rounds, "reached": reached}


def counted_once(folder: Path, written: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """`counted` as soon as `written` holds, or as it is when patience ends: the caller asserts what it needs."""
    deadline = time.monotonic() + PATIENCE_S
    while not written(counts := counted(folder)) and time.monotonic() < deadline:
        pass
    return counts


def wrapped(served: LabServer, folder: Path) -> set[str]:
    """Functions of the scheduler's process that have a wrapper now."""
    for earlier in (folder / "probe").glob("*.json"):
        earlier.unlink()
    return set(probe(served, folder)["scheduler"][0]["wrapped"])


def gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


def test_level_sampling_and_pauses_follow_at_once_and_tokens_stay(server: tuple[LabServer, Path]) -> None:
    served, folder = server
    first = request(served)
    rounds = first["meta_info"]["spec_verify_ct"]
    start_counts = counted_once(folder, lambda now: now["totals"] == now["rounds"] >= 2 * rounds)
    assert start_counts["totals"] == start_counts["rounds"] >= 2 * rounds  # the fixture sent the same request

    ask(folder, "--pause")
    paused = request(served)
    built = "sglang.srt.managers.scheduler.Scheduler.__init__"
    loaded = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
    assert wrapped(served, folder) == {built, loaded}  # neither is called in a round
    assert counted(folder) == start_counts

    ask(folder, "--resume")
    resumed = request(served)
    after_resume = counted_once(
        folder, lambda now: min(gained(start_counts, now)[name] for name in ("totals", "rounds")) >= rounds
    )
    assert gained(start_counts, after_resume) | {"reached": 0} == {"totals": rounds, "rounds": rounds, "reached": 0}

    ask(folder, "--level", "contract")
    contract = request(served)
    after_contract = counted_once(folder, lambda now: gained(after_resume, now)["totals"] >= rounds)
    assert gained(after_resume, after_contract)["totals"] == rounds
    assert gained(after_resume, after_contract)["rounds"] == 0
    # The engine's counts agree with those that were made from verdicts.
    assert gained(after_resume, after_contract)["reached"] == gained(start_counts, after_resume)["reached"]
    assert wrapped(served, folder) == {built, loaded}
    with open_run(run_of(folder)) as run:
        (row,) = run.rows(f"FROM requests WHERE request_id = '{contract['meta_info']['id']}'")
    meta = contract["meta_info"]
    ended = row["engine_rounds"], row["output_tokens"], row["finish_reason"]
    assert ended == (rounds, meta["completion_tokens"], "length")
    assert 0 < row["end_time_unix_nano"] - row["start_time_unix_nano"] < 1.5e9 * max(1.0, meta["e2e_latency"])

    ask(folder, "--level", "tokens", "--sample", "0")
    unsampled = request(served)
    after_unsampled = counted_once(folder, lambda now: gained(after_contract, now)["totals"] >= rounds)
    assert gained(after_contract, after_unsampled) == gained(after_resume, after_contract)

    ask(folder, "--sample", "1")
    again = request(served)
    last = counted_once(folder, lambda now: gained(after_unsampled, now)["rounds"] >= rounds)
    assert gained(after_unsampled, last)["rounds"] == rounds

    outputs = [answer["output_ids"] for answer in (first, paused, resumed, contract, unsampled, again)]
    assert all(output == outputs[0] for output in outputs)


def test_who_asked_for_what_and_when_is_an_event(server: tuple[LabServer, Path]) -> None:
    _, folder = server
    with open_run(run_of(folder)) as run:
        events = run.rows(
            "SELECT detail->>'level' AS level, detail->>'paused' AS paused, detail->>'by' AS who, time_unix_nano AS t "
            "FROM events WHERE kind = 'control' ORDER BY t"
        )
    assert [(e["level"], e["paused"]) for e in events] == [
        ("tokens", "true"), ("tokens", "false"), ("contract", "false"), ("tokens", "false"), ("tokens", "false"),
    ]  # fmt: skip
    assert all("process" in e["who"] for e in events)


def test_nonsense_in_the_control_file_changes_nothing(server: tuple[LabServer, Path]) -> None:
    served, folder = server
    before = counted(folder)
    (run_of(folder) / "control.json").write_text('{"level": "loud"}')
    time.sleep(1)
    rounds = request(served)["meta_info"]["spec_verify_ct"]
    after = counted_once(folder, lambda now: gained(before, now)["rounds"] >= rounds)
    assert gained(before, after)["rounds"] == rounds
    assert "control file ignored: level 'loud'" in (folder / "log").read_text(errors="replace")


def test_a_pause_in_the_middle_of_a_request_leaves_its_rounds_in_order(server: tuple[LabServer, Path]) -> None:
    """Rounds that ran unseen are a gap: numbered on, no draft facts from before it, the verdicts right."""
    served, folder = server
    import threading

    ask(folder, "--level", "tokens", "--sample", "1", "--resume")
    (writer,) = (path.stem.removeprefix("process-") for path in run_of(folder).glob("process-*.json"))
    body = {**BODY, "sampling_params": {**BODY["sampling_params"], "max_new_tokens": 900}}  # type: ignore[dict-item]
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(served.post("/generate", body)))
    thread.start()
    time.sleep(0.5)
    for pause in (True, False):  # no process is started for it: the request must not have ended by then
        asked = change(run_of(folder), level=None, sample=None, pause=pause, resume=not pause)
        assert wait_for(run_of(folder), [writer], asked)
    thread.join()
    meta = answers[0].body["meta_info"]
    of_request = f"SELECT max(request_round) AS n FROM rounds WHERE request_id = '{meta['id']}'"
    for _attempt in range(8):  # a busy machine writes later
        time.sleep(FLUSHED_S)
        with open_run(run_of(folder)) as run:
            if (run.rows(of_request)[0]["n"] or 0) >= meta["spec_verify_ct"] - 1:
                break
    with open_run(run_of(folder)) as run:
        rows = run.rows(
            f"SELECT request_round AS n, round, accepted, engine_reported_accepted AS engine FROM rounds "
            f"WHERE request_id = '{meta['id']}' ORDER BY round"
        )
        expected = run.rows(
            f"SELECT count(*) FILTER (WHERE accepted AND draft_token <> expected_token) AS wrong FROM verifies "
            f"JOIN (SELECT DISTINCT host, pid, request_seq FROM rounds WHERE request_id = '{meta['id']}') "
            "USING (host, pid, request_seq)"
        )
    numbers = [row["n"] for row in rows]
    assert 0 < len(rows) < meta["spec_verify_ct"], "nothing was left out: the pause came too late or too early"
    assert numbers == sorted(set(numbers)) and numbers[0] == 1
    assert numbers[-1] in (meta["spec_verify_ct"], meta["spec_verify_ct"] - 1)
    assert all(row["accepted"] == row["engine"] for row in rows) and expected[0]["wrong"] == 0
