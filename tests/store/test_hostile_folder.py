"""Run folders that no server wrote: cut, random, or made to lead elsewhere. An error, or a partial read that names the
loss; nothing outside the folder is read or written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagletrace.cli.main import main
from eagletrace.diagnose import diagnose
from eagletrace.errors import EagletraceError
from eagletrace.store import files as store_files
from eagletrace.store import open_run
from eagletrace.store.files import large_files, read_table
from eagletrace.store.folder import MAX_RUN_JSON_BYTES
from eagletrace.store.slots import Slots
from tests.store.runs import make_folder, small_run, writer

Capture = pytest.CaptureFixture[str]
PLACES = st.sampled_from(
    ["rounds", "verifies", "requests", "totals", "contract", "events", "run.json", "process", "control"]
)
MANY = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def full_run(path: Path) -> Path:
    """A run with every kind of file."""
    small_run(path)
    w = writer(path)
    w.write("contract", [{"key": "engine.version", "actual": '"0.5.23"', "time_unix_nano": 1}])
    w.write("events", [{"time_unix_nano": 1, "kind": "control", "detail": "{}"}])
    (path / "process-node-7.json").write_text(json.dumps({"host": "node", "pid": 7}))
    (path / "control.json").write_text(json.dumps({"level": "tokens"}))
    return path


def file_of(run: Path, place: str) -> Path:
    if place in ("run.json", "control"):
        return run / f"{place.removesuffix('.json')}.json"
    return next(iter(sorted(run.glob("process-*.json")))) if place == "process" else sorted((run / place).iterdir())[0]


def read(run: Path, *, large: bool = False) -> list[str]:
    """Diagnose the run and list it: no error but ours; the warnings."""
    before = store_files.LARGE_FILE_BYTES
    store_files.LARGE_FILE_BYTES = 1 if large else before
    try:
        with open_run(run) as opened:
            diagnose(opened).to_json()
            opened.query("SELECT * FROM acceptance_by_depth").rows()
            opened.query("SELECT * FROM all_ranks.rounds").rows()
            return opened.warnings
    except EagletraceError as error:
        assert str(error) and error.exit_code == 2
        return [str(error)]
    finally:
        store_files.LARGE_FILE_BYTES = before
        assert main(["runs", str(run), "--json"]) in (0, 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_run(tmp_path_factory.mktemp("whole") / "run")


def changed(whole: Path, place: str, change: Callable[[bytes], bytes]) -> tuple[Path, Path]:
    """A copy of the run with one file changed, and that file."""
    copy = whole.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    file = file_of(copy, place)
    file.write_bytes(change(file.read_bytes()))
    return copy, file


@pytest.mark.parametrize("large", [False, True], ids=["copied", "in place"])
def test_a_table_cut_at_every_byte(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is left of the one file, the other one is read, and the loss is named."""
    monkeypatch.setattr(store_files, "LARGE_FILE_BYTES", 1 if large else 1 << 30)
    path = make_folder(tmp_path / "run")
    w = writer(path)
    w.write("events", [{"time_unix_nano": 1, "kind": "control"}])
    file = w.write("events", [{"time_unix_nano": 2, "kind": "control"}])
    assert file is not None
    data = file.read_bytes()
    for size in range(len(data)):
        file.write_bytes(data[:size])
        slots = Slots(large_files(path))
        files = read_table(path, "events", slots)
        assert len(list(files.batches())) + len(files.large) == 1
        assert [file.name in w for w in files.warnings] == [True]
        slots.close()
        if size % 250 == 0:
            with open_run(path) as run:
                assert run.rows("SELECT count(*) n FROM events") == [{"n": 1}]
                assert [file.name in w for w in run.warnings_so_far] == [True]
    file.write_bytes(data)
    with open_run(path) as run:
        assert run.rows("SELECT count(*) n FROM events") == [{"n": 2}] and run.warnings_so_far == []


@pytest.mark.parametrize("place", ["run.json", "process", "control"])
def test_json_cut_at_every_byte(place: str, whole: Path, capsys: Capture) -> None:
    data = file_of(whole, place).read_bytes()
    for size in range(0, len(data.rstrip()), 1 if place != "run.json" else 3):
        copy, _ = changed(whole, place, lambda data, size=size: data[:size])
        assert main(["runs", str(copy), "--json"]) == (2 if place == "run.json" else 0)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["copied", "in place"])
@MANY
@given(place=PLACES, data=st.binary(max_size=300))
def test_random_files(large: bool, place: str, data: bytes, whole: Path) -> None:
    copy, file = changed(whole, place, lambda _: data)
    warnings = read(copy, large=large)
    if file.suffix == ".parquet" or place == "run.json":
        assert any(file.name in w for w in warnings)


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["copied", "in place"])
@MANY
@given(place=PLACES, at=st.floats(0, 1), data=st.binary(min_size=1, max_size=40), insert=st.booleans())
def test_random_bytes_in_files(large: bool, place: str, at: float, data: bytes, insert: bool, whole: Path) -> None:
    def change(content: bytes) -> bytes:
        start = int(at * (len(content) - 1))
        return content[:start] + data + content[start + (0 if insert else len(data)) :]

    copy, _ = changed(whole, place, change)
    read(copy, large=large)


def outside(tmp_path: Path) -> Path:
    """A whole run outside of the one that is read, with other rows."""
    path = make_folder(tmp_path / "outside", start=9)
    writer(path, pid=9).write("events", [{"time_unix_nano": 1, "kind": "secret"}])
    return path


@pytest.mark.parametrize("what", ["folder", "file", "relative", "fifo", "socket", "null", "zero", "folder as file"])
def test_what_is_no_file_of_the_run(what: str, tmp_path: Path) -> None:
    secret = outside(tmp_path)
    run = make_folder(tmp_path / "run")
    if what == "folder":
        (run / "events").symlink_to(secret / "events")
    else:
        (run / "events").mkdir()
        bad = run / "events" / "node-7-00000000-00000000.parquet"
        if what == "file":
            bad.symlink_to(next((secret / "events").iterdir()))
        elif what == "relative":
            bad.symlink_to(f"../../outside/events/{next((secret / 'events').iterdir()).name}")
        elif what == "fifo":
            os.mkfifo(bad)
        elif what == "socket":
            import socket

            before = Path.cwd()
            with socket.socket(socket.AF_UNIX) as listening:
                os.chdir(bad.parent)  # a socket's path must be short
                listening.bind(bad.name)
            os.chdir(before)
        elif what == "folder as file":
            bad.mkdir()
        else:
            bad.symlink_to(f"/dev/{what}")
    with open_run(run) as opened:
        assert opened.rows("SELECT * FROM events") == []
        (warning,) = opened.warnings
        assert str(run / "events") in warning


def test_run_json_and_runs_that_lead_out(tmp_path: Path, capsys: Capture) -> None:
    secret = outside(tmp_path)
    traces = tmp_path / "traces"
    make_folder(traces / "run")
    (traces / "latest").symlink_to("run")
    (traces / "else").symlink_to(secret)
    linked = traces / "linked"
    linked.mkdir()
    (linked / "run.json").symlink_to(secret / "run.json")
    assert main(["runs", str(traces), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [r["id"] for r in json.loads(out)["runs"]] == ["run"]
    assert "else: is a symbolic link out of the folder" in err and "linked" in err
    (traces / "run" / "process-a.json").symlink_to(secret / "run.json")
    os.mkfifo(traces / "run" / "process-b.json")
    assert main(["runs", str(traces / "run"), "--json"]) == 0
    with open_run(traces / "latest") as run:  # what the user names may be a link
        assert run.info.id == "run"


@pytest.mark.parametrize("footer", [b"", b"\xff\xff\xff\x7fPAR1", b"\x00\x00\x00\x00PAR1", b"\x10\x27\x00\x00PAR1"])
def test_a_sparse_file(footer: bytes, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with (run / "rounds" / "big.parquet").open("wb") as file:
        file.write(b"PAR1")
        file.truncate((10 << 30) - len(footer))
        file.seek(0, os.SEEK_END)
        file.write(footer)
    with open_run(run) as opened:
        assert opened.rows("SELECT count(*) n FROM rounds") == [{"n": 3}]
        assert ["big.parquet" in w for w in opened.warnings] == [True]


def test_no_descriptor_is_left_for_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for which the limit has no room are copied; one too large for that is named."""
    monkeypatch.setattr(store_files, "LARGE_FILE_BYTES", 1)
    monkeypatch.setattr("eagletrace.store.slots._affordable", lambda: 1)
    run = small_run(tmp_path / "run")
    with open_run(run) as opened:
        assert opened.rows("SELECT rounds, accepted FROM acceptance") == [{"rounds": 3, "accepted": 5}]
    monkeypatch.setattr(store_files, "MAX_COPIED_BYTES", 1)
    with open_run(run) as opened:
        assert any("ulimit -n" in w for w in opened.warnings)


@pytest.mark.parametrize("name", ["it's", 'a "b"', "a;b--c", "$(touch x)", "é…", "a\nb", "[x]", "*", "%s"])
@pytest.mark.parametrize("large", [False, True], ids=["copied", "in place"])
def test_odd_names_of_folders(name: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "LARGE_FILE_BYTES", 1 if large else 1 << 30)
    with open_run(small_run(tmp_path / name)) as run:
        assert run.query("SELECT rounds, accepted FROM acceptance").rows() == [{"rounds": 3, "accepted": 5}]
        assert run.warnings == []


def test_sql_in_values_is_data(tmp_path: Path, capsys: Capture) -> None:
    run = make_folder(tmp_path / "run", run_id="'; DROP SCHEMA all_ranks CASCADE; --")
    evil = "x'); COPY (SELECT 1) TO '/tmp/never'; --"
    w = writer(run)
    w.write("contract", [{"key": key, "actual": json.dumps(evil)} for key in (evil, "engine.version")])
    lost = json.dumps({"reason": evil, "table": evil})
    w.write("events", [{"time_unix_nano": 1, "kind": "rows_dropped", "detail": lost}])
    w.write("totals", [{"rounds": 0, "dropped_rows_by_reason": json.dumps({evil: 3, '$."': 1})}])
    w.write("hooks", [{"target": evil, "status": "missing", "required": True}])
    assert main(["diagnose", str(run), "--json"]) == 3
    checks = {c["id"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert evil in checks["trace.rows_dropped"]["reason"] and evil in checks["trace.hooks"]["reason"]
    assert main(["query", str(run), "dropped-rows"]) == 0
    assert not Path("/tmp/never").exists()


def test_huge_and_deep_json(tmp_path: Path, capsys: Capture) -> None:
    run = make_folder(tmp_path / "run")
    deep = "[" * 100_000 + "]" * 100_000
    w = writer(run)
    keys = ("draft.config", "aux.config_ids", "engine.version", "d2t.as_ids", "draft.fc")
    w.write("contract", [{"key": key, "actual": deep, "expected": deep} for key in keys])
    w.write("events", [{"time_unix_nano": 1, "kind": "rows_dropped", "detail": deep}])
    w.write("totals", [{"rounds": 0, "dropped_rows_by_reason": deep}])
    (run / "process-a.json").write_text(deep)
    assert main(["diagnose", str(run), "--json"]) in (2, 3)
    assert main(["runs", str(run)]) == 0
    capsys.readouterr()
    with (run / "run.json").open("ab") as file:
        file.truncate(MAX_RUN_JSON_BYTES + 1)
    assert main(["diagnose", str(run)]) == 2
    assert "larger than 16 MiB" in capsys.readouterr().err
