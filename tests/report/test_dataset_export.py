"""Runs in data sets: what an export writes, that it adds only what is new, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pytest

from eagletrace.cli.main import main
from eagletrace.errors import EagletraceError
from eagletrace.format import TABLES, arrow_schema
from eagletrace.record.files import file_at
from eagletrace.record.merge import merge_into
from eagletrace.report.dataset import DatasetExport
from eagletrace.store import open_run
from eagletrace.store.dataset.layout import MARKER, Group, Stored, covered, current, groups
from eagletrace.store.dataset.place import Place, RemoteError
from eagletrace.store.folder import read_info
from tests.store.runs import chain, make_folder, request, small_run, writer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLETRACE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["folder", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "memory":
        yield (name := f"memory://{uuid.uuid4().hex}")
        fsspec.filesystem("memory").rm(name, recursive=True)
    else:
        yield ("file://" if request.param == "file" else "") + str(tmp_path / "set")


def contents(path: Path | str) -> dict[str, Counter[str]]:
    """Rows of every table, in any order."""
    with open_run(path) as run:
        tables = [t.removeprefix("all_ranks.") for t in run.names() if t.startswith("all_ranks.")]
        return {t: Counter(map(str, run.arrow(f"all_ranks.{t}").to_pylist())) for t in tables}


def files(run: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(run)): (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}


def export(run: Path, url: str, **options: Any) -> Any:
    return DatasetExport(read_info(run), url, **options).once()


def test_a_run_comes_back_whole_and_stays_where_it_was(tmp_path: Path, url: str) -> None:
    run = small_run(tmp_path / "runs" / "run a")
    before = files(run)
    done = export(run, url)
    assert done.files == len(list(run.glob("*/*.parquet")))
    assert files(run) == before
    assert contents(f"{url}/run a") == contents(url) == contents(run)
    with open_run(url) as there:
        assert there.info.raw == json.loads((run / "run.json").read_text())


def test_a_second_export_adds_only_what_is_new(tmp_path: Path, url: str) -> None:
    run = small_run(tmp_path / "run")
    first = export(run, url)
    assert (again := export(run, url)).files == 0 and again.present == first.files
    w = writer(run, pid=8)
    w.write("rounds", [chain(9, 30, 1, [2], [2, 3], seq=1)[0]])
    assert export(run, url).files == 1
    assert contents(url) == contents(run)


def test_what_was_merged_after_the_export_is_not_exported_again(tmp_path: Path, url: str) -> None:
    run = small_run(tmp_path / "run")
    requests = len(list((run / "requests").glob("*.parquet")))
    export(run, url)
    merge_files(run, "node-7")
    assert len(list((run / "requests").glob("*.parquet"))) < requests
    assert export(run, url).files == 0
    assert contents(url) == contents(run)


def test_a_merged_file_replaces_those_that_it_holds(tmp_path: Path, url: str) -> None:
    run = small_run(tmp_path / "run")
    export(run, url)
    writer(run, pid=9).write("requests", [request(3, time_unix_nano=5)])
    rename(run, "node-9-00000000-00000000", "node-7-00000002-00000002")
    merge_files(run, "node-7")
    assert export(run, url).files == 2  # the parts of both processes
    assert contents(url) == contents(run)
    assert {f.name for f in Place(url).find("requests")} == {
        f"node-7-00000000-00000002.{n}-of-2.parquet" for n in (1, 2)
    }


def test_rows_that_another_process_took_over_are_not_exported_twice(tmp_path: Path, url: str) -> None:
    run = make_folder(tmp_path / "run")
    (run / "process-node-7.json").write_text('{"host": "node", "pid": 7, "lock": "flock"}')
    writer(run, pid=7).write("requests", [request(1), request(2)])
    export(run, url)
    w = writer(run, pid=8, tp_rank=1)
    w.write("requests", [request(3)])
    rename(run, "node-7-00000000-00000000", "node-8-00000001-00000001")
    merge_files(run, "node-8")
    assert [p.name for p in (run / "requests").glob("*.parquet")] == ["node-8-00000000-00000001.parquet"]
    export(run, url)
    export(run, url)
    assert contents(url) == contents(run)


def rename(run: Path, old: str, new: str) -> None:
    """Take a file over, as upkeep does."""
    (run / "requests" / f"{old}.parquet").rename(run / "requests" / f"{new}.parquet")


def merge_files(run: Path, stem: str) -> None:
    """Merge the files of one writer into one, as upkeep does."""
    sources = sorted(
        (f for p in (run / "requests").glob(f"{stem}-*.parquet") if (f := file_at(p))), key=lambda f: f.first
    )
    target = run / "requests" / "merged.tmp"
    for _ in merge_into(target, "requests", arrow_schema(TABLES["requests"]), sources):
        pass
    for source in sources:
        source.path.unlink()
    target.rename(run / "requests" / f"{stem}-{sources[0].first:08}-{sources[-1].last:08}.parquet")


def test_rows_of_two_ranks_in_one_file_are_split(tmp_path: Path) -> None:
    run = make_folder(tmp_path / "run")
    writer(run, tp_rank=0).write("requests", [request(1)])
    writer(run, pid=8, tp_rank=1).write("requests", [request(2)])
    (run / "requests" / "node-8-00000000-00000000.parquet").rename(
        run / "requests" / "node-7-00000001-00000001.parquet"
    )
    merge_files(run, "node-7")
    export(run, str(tmp_path / "set"))
    found = rows(f"SELECT rank, tp_rank, host, run FROM {hive(tmp_path / 'set', 'requests')}")
    assert sorted(found) == [(0, 0, "node", "run"), (1, 1, "node", "run")]
    assert contents(tmp_path / "set") == contents(run)
    assert contents(export_again(tmp_path / "set", tmp_path / "other")) == contents(run)


def export_again(first: Path, second: Path) -> Path:
    """Copy a run from one data set into another."""
    assert main(["export", str(first), "--to", "dataset", "-o", str(second)]) == 0
    return second


def test_other_engines_read_the_hive_partitions(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    day = 1_790_000_000
    for path in run.rglob("*.parquet"):
        os.utime(path, (day, day))
    export(run, str(tmp_path / "set"))
    where = hive(tmp_path / "set", "verifies")
    assert rows(f"SELECT run, host, day::TEXT, rank, count(*) FROM {where} GROUP BY ALL") == [
        ("run", "node", "2026-09-21", 0, 20)
    ]


def rows(sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


def hive(root: Path, table: str) -> str:
    return f"read_parquet('{root}/{table}/**/*.parquet', hive_partitioning=true)"


def test_an_interrupted_export_leaves_no_run_and_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, place = small_run(tmp_path / "run"), tmp_path / "set"
    writes, write = iter(range(100)), Place.write

    def failing(self: Place, path: str, source: str | bytes, size: int) -> None:
        if next(writes) == 3:
            raise RemoteError("the network is gone")
        write(self, path, source, size)

    monkeypatch.setattr(Place, "write", failing)
    with pytest.raises(RemoteError):
        export(run, str(place))
    with pytest.raises(EagletraceError, match="without a run yet"), open_run(place):
        pass
    export(run, str(place))
    assert contents(place) == contents(run)


def test_a_copy_that_breaks_off_is_not_to_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    run, place = small_run(tmp_path / "run"), tmp_path / "set"

    def half(self: Any, source: str, target: str, **_: Any) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:50])
        raise OSError("disk full")

    monkeypatch.setattr(LocalFileSystem, "put_file", half)
    with pytest.raises(RemoteError, match="disk full"):
        export(run, str(place))
    assert [p.name for p in place.rglob("*") if p.is_file()] == [MARKER]


def test_parts_count_only_when_all_are_there() -> None:
    half = groups([Stored("x", "node-7-00000000-00000003.1-of-2.parquet", 1)])
    whole = groups(Stored("x", f"node-7-00000000-00000003.{n}-of-2.parquet", 1) for n in (1, 2))
    old = Group("node-7", 0, 1, files=[Stored("y", "node-7-00000000-00000001.parquet", 1)])
    assert current([*half, old]) == [old]
    assert current([*whole, old]) == whole
    assert not covered("node-7", 0, 3, half) and covered("node-7", 0, 3, whole)
    assert not covered("node-7", 0, 4, [*whole, old])


def test_moved_files_leave_the_run_only_when_their_copies_are_right(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "run")
    before = contents(run)
    digest = Place.digest

    def another(*_: Any) -> str:
        return "another"

    monkeypatch.setattr(Place, "digest", another)
    assert export(run, url, move=True).removed == 0
    monkeypatch.setattr(Place, "digest", digest)
    moved = export(run, url, move=True)
    assert moved.removed == 5 and not list(run.rglob("*.parquet"))
    assert (run / "run.json").exists()
    assert contents(url) == before


def test_following_ends_when_the_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, place = small_run(tmp_path / "run", host=os.uname().nodename), str(tmp_path / "set")
    (run / f"process-here-{os.getpid()}.json").write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid()}))
    old = time.time() - 100
    for path in run.rglob("*.parquet"):
        os.utime(path, (old, old))
    young = writer(run, pid=9)
    young.write("requests", [request(7)])
    seen: list[int] = []

    def wait(seconds: float) -> None:
        seen.append(len(Place(place).find("requests")))
        if len(seen) == 2:
            next(run.glob("process-*.json")).unlink()

    DatasetExport(read_info(run), place).follow(print, wait)
    assert seen == [2, 2]  # the young file waits, because it may be merged
    assert contents(place) == contents(run)


def test_a_place_that_cannot_be_reached_is_tried_again_while_the_run_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, place = small_run(tmp_path / "run"), str(tmp_path / "set")
    states = iter(["live", "live", "ended"])

    def state(_: Any) -> str:
        return next(states)

    monkeypatch.setattr("eagletrace.report.dataset.run_state", state)
    follow = DatasetExport(read_info(run), place)
    once, calls, said = follow.once, iter(range(9)), list[str]()

    def failing(**options: Any) -> Any:
        if next(calls) < 2:
            raise RemoteError("gone")
        return once(**options)

    monkeypatch.setattr(follow, "once", failing)
    follow.follow(said.append, lambda _: None)
    assert len(said) == 1 and "gone" in said[0]
    assert contents(place) == contents(run)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "dataset"], "say where the data set is"),
        (["--to", "dataset", "-o", "nosuch://x/y"], "no kind of URL"),
        (["--to", "perfetto", "--move"], "belong to --to dataset"),
        (["--to", "dataset", "-o", "RUN/below"], "lies in the run's own folder"),
    ],
)
def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    run = small_run(tmp_path / "run")
    assert main(["export", str(run), *(a.replace("RUN", str(run)) for a in arguments)]) == 2
    assert says in capsys.readouterr().err


def test_without_fsspec_the_message_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    run = small_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["export", str(run), "--to", "dataset", "-o", str(tmp_path / "set")]) == 2
    assert "eagletrace[dataset]" in capsys.readouterr().err


def test_a_place_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    stop = threading.Event()

    def hang(*_: Any) -> None:
        stop.wait(20)

    monkeypatch.setattr("eagletrace.store.dataset.place.LOOK_S", 0.2)
    monkeypatch.setattr(LocalFileSystem, "info", hang)
    try:
        with pytest.raises(RemoteError, match="does not answer"):
            Place(str(tmp_path)).exists("x")
    finally:
        stop.set()


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    for name in ("one", "two"):
        export(small_run(tmp_path / name), str(tmp_path / "set"))
    memory = f"memory://{uuid.uuid4().hex}"
    for name in ("one", "two"):
        export(tmp_path / name, memory)

    def size() -> int:
        return sum(p.stat().st_size for p in cache.rglob("*.parquet"))

    contents(f"{memory}/one")
    one = size()
    assert one > 0
    monkeypatch.setenv("EAGLETRACE_CACHE_BYTES", str(int(1.5 * one) + 3000))
    contents(f"{memory}/two")
    assert size() == one  # the first run made room
    monkeypatch.setenv("EAGLETRACE_CACHE_BYTES", "1000")
    with pytest.raises(EagletraceError, match="EAGLETRACE_CACHE_BYTES"):
        contents(f"{memory}/one")
