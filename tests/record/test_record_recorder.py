"""The recorder: bounded, quiet, honest about what it dropped, and blind to tokens when redacting."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagletrace.record import recorder as module
from eagletrace.record.recorder import Recorder
from eagletrace.record.requests import is_sampled, prompt_hash
from eagletrace.record.rounds import Drafted, DraftedTogether, Values
from eagletrace.settings import Settings
from tests.record.packets import PROCESS, chain, rows, state

Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Recorders that are stopped at the end; `start=False` leaves the thread to the test."""
    made: list[Recorder] = []

    def call(*, start: bool = True, folder: Path = tmp_path, **settings: Any) -> Recorder:
        known: dict[str, Any] = {"flush_s": 0.05} | settings
        recorder = Recorder(folder, Settings(**known), PROCESS, {"service.name": "test"})
        made.append(recorder)
        if start:
            recorder.start()
        return recorder

    yield call
    for recorder in made:
        recorder.stop()


def dropped(run: Path) -> Counter[str]:
    """Rows that were not recorded, by reason, over all intervals."""
    return sum((Counter(json.loads(r["dropped_rows_by_reason"] or "{}")) for r in rows(run, "totals")), Counter())


def test_what_is_queued_is_readable_after_a_flush(make: Make, tmp_path: Path) -> None:
    recorder = make(flush_s=600)  # the flush alone writes
    recorder.event("serving", any_detail=[1, 2])
    recorder.fact("d2t.all_zero", False, None, "file")
    recorder.launch(chain([101, 102, 7], [101, 102, 103, 9]))
    recorder.request(state(prompt_ids=[1, 2]))
    assert recorder.flush(30)
    (event,) = rows(tmp_path, "events")
    assert (event["kind"], json.loads(event["detail"]), event["pid"]) == ("serving", {"any_detail": [1, 2]}, 7)
    (fact,) = rows(tmp_path, "contract")
    assert (fact["key"], fact["actual"], fact["expected"], fact["source"]) == ("d2t.all_zero", "false", None, "file")
    assert [r["accepted"] for r in rows(tmp_path, "rounds")] == [2] and len(rows(tmp_path, "verifies")) == 4
    (request,) = rows(tmp_path, "requests")
    assert request["prompt_hash"] == prompt_hash([1, 2]) and request["end_time_unix_nano"] is None
    (total,) = rows(tmp_path, "totals")
    assert (total["rounds"], total["accepted"], total["correct_drafts_histogram"]) == (1, 2, [0, 0, 1, 0])


def test_a_request_that_finishes_while_its_start_is_written_has_one_span(make: Make, tmp_path: Path) -> None:
    recorder, request = make(flush_s=600), state()
    recorder.request(request)
    request.end_ns = 50  # its end is not queued yet: finish_reason and output_tokens are still to be set
    assert recorder.flush(30)
    request.finish_reason = "length"
    recorder.request(request)
    assert recorder.flush(30)
    (span,) = [row for row in rows(tmp_path, "spans") if row["name"] == "eagle.request"]
    assert json.loads(span["attributes"])["gen_ai.response.finish_reasons"] == ["length"]


def test_rows_get_no_older_than_the_flush_interval(make: Make, tmp_path: Path) -> None:
    make(flush_s=0.2).event("serving")
    deadline = time.monotonic() + 20
    while not rows(tmp_path, "events") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert rows(tmp_path, "events")


def test_stop_writes_what_is_queued(make: Make, tmp_path: Path) -> None:
    recorder = make(flush_s=600)
    recorder.event("serving")
    recorder.stop(30)
    assert len(rows(tmp_path, "events")) == 1
    assert not recorder.flush()  # nobody is there to write; does not wait


def test_a_full_queue_drops_and_counts_and_never_blocks(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_LIMIT", 5)
    recorder = make(start=False)
    for number in range(7):
        recorder.event("control", number=number)
    recorder.start()
    assert recorder.flush(30) and recorder.flush(30)
    kept = [r for r in rows(tmp_path, "events") if r["kind"] == "control"]
    assert [json.loads(r["detail"])["number"] for r in kept] == [0, 1, 2, 3, 4]
    assert dropped(tmp_path) == {"queue full: events": 2}
    notes = [json.loads(r["detail"]) for r in rows(tmp_path, "events") if r["kind"] == "rows_dropped"]
    assert {(n["table"], n["rows"]) for n in notes} == {("events", 2)}


def test_launches_that_do_not_fit_keep_their_counts(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(start=False)
    monkeypatch.setattr(module, "QUEUE_BYTES", 4 * chain([1], [1, 2]).bytes)
    for number in range(10):
        recorder.launch(chain([1], [1, 2], number=number, requests=[state(number)]))
    recorder.start()
    assert recorder.flush(30) and recorder.flush(30)
    assert [r["round"] for r in rows(tmp_path, "rounds")] == [6, 7, 8, 9]  # the oldest went
    assert dropped(tmp_path) == {"queue full: rounds": 6, "queue full: drafts": 6, "queue full: verifies": 12}
    totals = rows(tmp_path, "totals")
    assert sum(r["rounds"] for r in totals) == 10 and sum(r["accepted"] for r in totals) == 10
    recorder.launch(chain([1], [1, 2], number=11))  # there is room again
    assert recorder.flush(30)
    assert len(rows(tmp_path, "rounds")) == 5


def test_a_launch_whose_values_are_still_on_the_device_is_not_folded(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them would wait for the device on the engine's thread."""
    recorder, late = make(start=False), chain([1], [1, 2])
    assert late.values is not None
    late.values.ready = lambda: False
    monkeypatch.setattr(module, "QUEUE_BYTES", 0)
    recorder.launch(late)
    recorder.start()
    assert recorder.flush(30) and len(rows(tmp_path, "rounds")) == 1


def test_a_launch_waits_for_facts_that_are_computed_with_later_ones(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(flush_s=600)
    together, packets = DraftedTogether(1, 1), [chain([1], [1, 2], number=n, requests=[state(n)]) for n in (1, 2, 3)]
    for packet in packets:
        packet.start_ns = time.time_ns()
    packets[1].drafted = (Drafted(together, 0),)
    for packet in packets:
        recorder.launch(packet)
    assert recorder.flush(30)
    assert [r["round"] for r in rows(tmp_path, "rounds")] == [1]
    together.launches, together.closed = 1, True
    together.ids, together.floats = (lambda: np.array([7])), (lambda: np.array([0, 0.5, 0, 0], dtype=np.float32))
    assert recorder.flush(30)
    assert [r["round"] for r in rows(tmp_path, "rounds")] == [1, 2, 3]
    assert [r["draft_vocab_id"] for r in rows(tmp_path, "drafts")] == [None, 7, None]
    monkeypatch.setattr(module, "HOLD_NS", 0)  # nothing waits for ever
    packets[2].drafted = (Drafted(DraftedTogether(1, 1), 0),)
    recorder.launch(packets[2])
    assert recorder.flush(30) and len(rows(tmp_path, "rounds")) == 4


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_counts_of_chains_are_exact_however_many_wait(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    recorder = make(start=False, level="contract")
    monkeypatch.setattr(module, "COUNTS_LIMIT", limit)
    for _ in range(5):
        recorder.counts([state(1), state(2), state(3, kind="warmup")], [3, 1, 2], [True, True, True], 3)
        recorder.counts([state(1)], [3], [False], 3)
    recorder.start()
    assert recorder.flush(30)
    (total,) = rows(tmp_path, "totals")
    assert (total["rounds"], total["drafted"], total["accepted"]) == (10, 30, 20)
    assert total["reached_by_depth"] == [10, 10, 5] and total["accepted_by_depth"] == [10, 5, 5]
    assert total["correct_drafts_histogram"] == [0, 5, 0, 5]


def test_launches_are_converted_in_slices_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [chain([1], [1, 2], number=n) for n in range(7)]
    monkeypatch.setattr(module, "SLICE_NODES", 4)
    assert [len(part) for part in module.slices(launches)] == [2, 2, 2, 1]
    monkeypatch.setattr(module, "SLICE_NODES", 1)
    assert [part[0].round for part in module.slices(launches)] == list(range(7))


def test_the_engines_thread_goes_on_while_the_disk_is_stuck(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, stuck = make(flush_s=0.05), threading.Event()

    def hangs(table: str, rows: Any) -> None:
        stuck.wait(60)

    monkeypatch.setattr(recorder.writer, "write", hangs)
    recorder.event("serving")
    time.sleep(0.3)  # the writer now hangs on the disk
    began = time.monotonic()
    for _ in range(1000):
        recorder.event("control")
    assert not recorder.flush(0.1)
    assert time.monotonic() - began < 5
    stuck.set()


def test_a_failing_disk_gives_one_warning_and_recording_goes_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = make(flush_s=600)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "eagletrace"):
        broken.setattr(Path, "rename", _no_space)
        for number in (1, 2, 3):
            recorder.event("control", number=number)
            recorder.launch(chain([101], [101, 102], number=number))
            assert recorder.flush(30)
    (warning,) = [r.message for r in caplog.records if "cannot write" in r.message]
    assert f"to {tmp_path}: [Errno 28] No space left on device; serving goes on" in warning
    recorder.event("control", number=4)
    assert recorder.flush(30)
    events = [(r["kind"], json.loads(r["detail"])) for r in rows(tmp_path, "events")]
    assert [d["number"] for kind, d in events if kind == "control"] == [1, 2, 3, 4]  # facts wait for the disk
    (stopped,) = [d for kind, d in events if kind == "recording_stopped"]
    (resumed,) = [d for kind, d in events if kind == "recording_resumed"]
    assert "No space left" in stopped["reason"] and resumed["rows_lost"]["verifies"] == 6
    told = [d for kind, d in events if kind == "rows_dropped"]
    assert {d["table"]: d["rows"] for d in told} == resumed["rows_lost"]
    assert sum(r["rounds"] for r in rows(tmp_path, "totals")) == 3  # and so do totals
    lost = dropped(tmp_path)
    assert (lost["write failed: events"], lost["write failed: rounds"], lost["write failed: verifies"]) == (0, 3, 6)
    recorder.launch(chain([101], [101, 102], number=5))
    assert recorder.flush(30)
    assert [r["round"] for r in rows(tmp_path, "rounds")] == [5]


def _no_space(self: Path, target: Path) -> Path:
    raise OSError(28, "No space left on device")


def test_one_tables_failure_does_not_cost_the_others(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(flush_s=600)
    write = recorder.writer.write

    def broken(table: str, rows: Any) -> Path | None:
        if table == "contract":
            raise OSError("this one fails")
        return write(table, rows)

    monkeypatch.setattr(recorder.writer, "write", broken)
    recorder.fact("d2t.all_zero", False)
    recorder.event("serving")
    recorder.request(state())
    assert recorder.flush(30)
    assert [r["kind"] for r in rows(tmp_path, "events")] == ["serving", "recording_stopped"]
    assert len(rows(tmp_path, "requests")) == 1


def test_one_launch_that_cannot_be_read_does_not_cost_the_others(make: Make, tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("the device is gone")

    recorder, shape = make(flush_s=600), chain([101], [101, 102]).values
    assert shape is not None
    for number in range(1, 5):
        packet = chain([101], [101, 102], number=number)
        packet.values = Values(shape.int_parts, broken if number == 2 else shape.ints, shape.float_parts)
        recorder.launch(packet)
    recorder.event("control", number={(1, 2): "no JSON has such a key"})
    recorder.fact("d2t.all_zero", False)
    assert recorder.flush(30)
    assert [r["round"] for r in rows(tmp_path, "rounds")] == [1, 3, 4]
    assert sum(r["rounds"] for r in rows(tmp_path, "totals")) == 3 and len(rows(tmp_path, "contract")) == 1
    assert dropped(tmp_path) == {"write failed: launch": 1, "write failed: events": 1}


def test_a_report_that_fails_does_not_stop_the_writing(make: Make, tmp_path: Path) -> None:
    recorder = make(flush_s=600)

    def broken() -> None:
        raise RuntimeError("report")

    recorder.on_flush = broken
    recorder.event("serving")
    assert recorder.flush(30) and len(rows(tmp_path, "events")) == 1


# -- what is recorded --------------------------------------------------------------------------------------------------

DETAIL = ("rounds", "drafts", "verifies")


def test_level_contract_keeps_totals_exact_and_no_detail(make: Make, tmp_path: Path) -> None:
    recorder = make(level="contract")
    recorder.launch(chain([101, 102, 7], [101, 102, 103, 9]))
    recorder.prefilled(2, state(), 12, 5)
    recorder.request(state())
    assert recorder.flush(30)
    assert [len(rows(tmp_path, table)) for table in DETAIL] == [0, 0, 0]
    assert rows(tmp_path, "totals")[0]["accepted"] == 2 and len(rows(tmp_path, "requests")) == 1


def test_sampling_keeps_totals_exact(make: Make, tmp_path: Path) -> None:
    recorder = make(sample=0.5)
    requests = [state(seq, sampled=seq % 2 == 0) for seq in range(4)]
    for request in requests:
        recorder.launch(chain([101, 7], [101, 102, 9], requests=[request], number=request.seq + 1))
        recorder.prefilled(9, request, 12, 5)
    assert recorder.flush(30)
    assert {r["request_seq"] for t in DETAIL for r in rows(tmp_path, t)} == {0, 2}
    assert sum(r["rounds"] for r in rows(tmp_path, "totals")) == 4


def test_sampling_is_by_the_id_alone() -> None:
    ids = [f"request-{n}" for n in range(4000)]
    half = {i for i in ids if is_sampled(i, 0.5)}
    assert half == {i for i in ids if is_sampled(i, 0.5)} and 0.45 < len(half) / len(ids) < 0.55
    assert {i for i in ids if is_sampled(i, 0.1)} < half  # a smaller share is part of a larger one
    assert not any(is_sampled(i, 0) for i in ids) and all(is_sampled(i, 1) for i in ids)


def test_a_token_that_only_a_prefill_gave(make: Make, tmp_path: Path) -> None:
    recorder = make()
    recorder.prefilled(4, state(), 12, 77)
    assert recorder.flush(30)
    (round_,), (node,) = rows(tmp_path, "rounds"), rows(tmp_path, "verifies")
    assert (round_["request_round"], round_["counted"], round_["drafted"]) == (0, False, 0)
    assert (node["node"], node["draft_token"], node["position"], node["accepted"]) == (0, 77, 12, None)
    assert not rows(tmp_path, "totals")


# -- redaction ---------------------------------------------------------------------------------------------------------

TOKENS = [90_017, 90_023, 90_031, 90_053]
PROMPT = [81_001, 81_002, 81_003]


def _record_tokens(recorder: Recorder) -> None:
    packet = chain(
        TOKENS[1:], [*TOKENS[1:3], 90_059, 90_067], root=TOKENS[0], requests=[state(prompt_ids=list(PROMPT))],
        draft_ids=[71_011, 71_013, 71_017],
    )  # fmt: skip
    recorder.launch(packet)
    recorder.prefilled(2, state(2, prompt_ids=list(PROMPT)), 12, 90_071)
    recorder.request(packet.requests[0])
    assert recorder.flush(30)


def _text(run: Path) -> str:
    return json.dumps([rows(run, p.name) for p in sorted(run.iterdir()) if p.is_dir()], default=str)


SECRET = re.compile(r"\b(900\d\d|810\d\d|710\d\d)\b")


def test_a_plain_trace_has_the_tokens(make: Make, tmp_path: Path) -> None:
    _record_tokens(make())
    assert set(SECRET.findall(_text(tmp_path))) >= {str(t) for t in TOKENS} | {"71011", "90071"}


def test_a_redacted_trace_has_no_token_id_anywhere(make: Make, tmp_path: Path) -> None:
    _record_tokens(make(redact=True, redact_key="secret-key"))
    text = _text(tmp_path)
    assert not SECRET.findall(text) and "secret-key" not in text
    verifies = [v for v in rows(tmp_path, "verifies") if v["round"] == 1]
    assert [v["accepted"] for v in verifies] == [None, True, True, False]  # verdicts stay
    assert verifies[1]["draft_token"] == verifies[1]["expected_token"] == verifies[0]["target_token"]
    assert verifies[3]["draft_token"] != verifies[3]["expected_token"]
    assert all(d["draft_vocab_id"] is None for d in rows(tmp_path, "drafts"))
    assert rows(tmp_path, "requests")[0]["prompt_hash"] != prompt_hash(PROMPT)


def _hashes(make: Make, folder: Path, key: str | None) -> list[tuple[Any, ...]]:
    _record_tokens(make(folder=folder, redact=True, redact_key=key))
    prompts = [r["prompt_hash"] for r in rows(folder, "requests")]
    return [*((v["draft_token"], v["target_token"]) for v in rows(folder, "verifies")), *((p,) for p in prompts)]


def test_the_same_key_makes_runs_comparable_and_another_does_not(make: Make, tmp_path: Path) -> None:
    a, b = _hashes(make, tmp_path / "a", "k1"), _hashes(make, tmp_path / "b", "k1")
    c, d = _hashes(make, tmp_path / "c", "k2"), _hashes(make, tmp_path / "d", None)
    assert a == b
    for other in (c, d, _hashes(make, tmp_path / "e", None)):
        assert not set(other) & set(a) and (other is d or not set(other) & set(d))
