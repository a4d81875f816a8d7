"""The live view in a terminal emulator and in tmux, of runs that the real recorder writes while it is watched."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagletrace.cli.demo import DEMO_RUN
from eagletrace.report.watch.draw import chart, duration, sparkline
from eagletrace.report.watch.frame import _heights  # pyright: ignore[reportPrivateUsage]
from eagletrace.report.watch.session import Session
from eagletrace.report.watch.terminal import parse_keys
from tests.cli.commands import environ
from tests.report.screen import Screen
from tests.store.runs import make_folder, request, small_run, writer

ROOT = Path(__file__).resolve().parents[2]
LEFT, RIGHT, UP, DOWN, SHIFT_TAB = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B", "\x1b[Z"


class Servers:
    """Processes that record until they are ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, run_id: str, *arguments: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "tests.report.live_writer", str(self.folder), run_id, *arguments]
        self.running.append(subprocess.Popen(line, env=environ(), cwd=ROOT))
        return self.running[-1]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path / "runs")
    yield made
    for process in made.running:
        process.kill()
    for process in made.running:
        process.wait(10)


def value(shown: str) -> float:
    match = re.search(r"(\d\.\d\d) now", shown)
    return float(match[1]) if match else -1.0


# -- live -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_live_server_is_shown_as_it_is(servers: Servers) -> None:
    servers.start("first", "40", "0.9")
    with Screen(servers.folder, "--interval", "0.3") as screen:
        shown = screen.wait_for(lambda s: value(s) > 3 and "verify " in s and "HEALTHY" in s, 60)
        assert "live 00:0" in shown and "SGLang 0.5.23" in shown and "level tokens" in shown
        assert re.search(r"[\d.]+ tokens/s +[\d.]+ rounds/s", shown) and "1 requests running, 0 finished" in shown
        assert [line for line in screen.text if re.search(r"│ +[123]  █+.? +\d\d\.\d%", line)] != []
        phases = re.findall(r"│ (verify|draft) +(\d+)%", shown)
        assert phases == [("verify", "80"), ("draft", "20")]  # the slowest first: 8 and 2 ms each
        assert "1 hooks, 0 not in this engine, 1 of" in shown and "no rows dropped" in shown and "serving" in shown
        assert len(screen.text) == 24 and max(map(len, screen.text)) <= 80
        screen.press("q")
        assert screen.ended() == 0 and screen.restored
    assert servers.running[0].poll() is None, "the server was disturbed"


@pytest.mark.slow
def test_a_server_that_is_started_again_is_followed(servers: Servers) -> None:
    first = servers.start("first", "40", "0.9")
    with Screen(servers.folder, "--interval", "0.3") as screen:
        screen.wait_for(lambda s: "first" in s and "live" in s)
        first.terminate()
        screen.wait_for("ended")
        servers.start("second", "40", "0.1")
        shown = screen.wait_for(lambda s: "second" in s and 1 <= value(s) < 1.5 and "run 2 of 2" in s)
        assert "live" in shown and "first" not in shown
        screen.press(LEFT)  # and stays there although the second goes on
        screen.wait_for(lambda s: "first" in s and "ended" in s and "run 1 of 2" in s)
        time.sleep(1)
        screen.wait_for("first")
        screen.press("7")
        shown = screen.wait_for("this run was chosen; n follows the newest")
        assert re.search(r"> first", shown)
        screen.press("n")
        screen.wait_for(lambda s: "the newest run is followed" in s and "* second" in s)


@pytest.mark.slow
def test_an_empty_folder_is_waited_for(servers: Servers) -> None:
    with Screen(servers.folder, "--interval", "0.3", columns=200) as screen:
        screen.wait_for(f"{servers.folder} does not exist yet")
        servers.folder.mkdir()
        asked = f"start a server with EAGLETRACE=1 EAGLETRACE_DIR={servers.folder}"
        screen.wait_for(lambda s: asked in " ".join(s.split()))
        servers.start("first")
        screen.wait_for(lambda s: "first" in s and value(s) > 1)
        shutil.rmtree(servers.folder)
        screen.wait_for(lambda s: "does not exist yet" in s or "no run in" in s or "first" in s)
        screen.press("q")
        assert screen.ended() == 0


@pytest.mark.slow
def test_a_server_that_stands_still_shows_nothing_now(servers: Servers, tmp_path: Path) -> None:
    servers.start("first", "40", "0.9", "hold")
    with Screen(servers.folder, "--interval", "0.3") as screen:
        shown = screen.wait_for(lambda s: "- now" in s and "INCONCLUSIVE" in s)
        assert "0 tokens/s" in shown and "no rounds of user requests yet" in shown


# -- keys, sizes, signals -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_run(tmp_path / "runs" / "old", start=1)
    make_folder(tmp_path / "runs" / "new", start=2)
    return tmp_path / "runs"


def test_views_help_and_scrolling() -> None:
    with Screen(DEMO_RUN) as screen:
        screen.wait_for("FAULT")
        for key, title in zip("1234567", ("accept length", "conditional rates", "phases of the engine",
                                         "checks of the newest diagnosis", "hooks and dropped rows",
                                         "events, the newest first", "runs of this folder"), strict=True):  # fmt: skip
            screen.press(key)
            screen.wait_for(title)
        screen.press("\t")
        screen.wait_for("acceptance by depth, last 10 s")
        screen.press(SHIFT_TAB)
        screen.wait_for("runs of this folder")
        screen.press("4")
        first = screen.wait_for("alarm          aux.asked")
        assert re.search(r"lines 1 to 19 of \d\d", first)
        screen.press(DOWN * 3)
        shown = screen.wait_for("lines 4 to 22 of")
        assert "aux.asked" not in shown
        screen.press(UP * 9 + "h")
        screen.wait_for("q, Ctrl-C             end")
        screen.press("h")
        screen.wait_for("alarm          aux.asked")
        screen.press("q")
        assert screen.ended() == 0 and screen.restored


def test_a_paused_view_stands_still_and_goes_on(folder: Path) -> None:
    with Screen(folder / "old", "--interval", "0.2") as screen:
        screen.wait_for("of 3 rounds")
        screen.press("p")
        screen.wait_for("view paused")
        w = writer(folder / "old")
        w.claim("totals")
        w.write("totals", [{"time_unix_nano": 2, "rounds": 7, "accepted": 7}])
        time.sleep(1)
        screen.read(0.3)
        assert "of 3 rounds" in screen.whole
        screen.press("p")
        screen.wait_for(lambda s: "of 10 rounds" in s and "view paused" not in s)


def test_arrows_choose_a_run(folder: Path) -> None:
    with Screen(folder, "--interval", "0.2") as screen:
        screen.wait_for(lambda s: "new" in s and "run 2 of 2" in s)
        screen.press(LEFT)
        screen.wait_for(lambda s: "run 1 of 2" in s and "of 3 rounds" in s)
        screen.press(LEFT)
        screen.read(0.5)
        assert "run 1 of 2" in screen.whole
        screen.press(RIGHT)
        screen.wait_for("run 2 of 2")
        make_folder(folder / "newest", start=3)
        screen.wait_for(lambda s: "newest" in s and "run 3 of 3" in s)


SIZES = [(80, 24), (200, 50), (100, 30), (76, 20), (60, 24), (50, 16), (40, 40), (30, 10), (30, 8), (24, 5), (10, 2)]


def test_it_fits_every_size_and_follows_the_window() -> None:
    with Screen(DEMO_RUN, columns=80, lines=24) as screen:
        screen.wait_for("FAULT")
        for columns, lines in SIZES:
            screen.resize(columns, lines)
            most = "2.23" if columns >= 24 else "acc"
            shown = screen.wait_for(lambda s, most=most: most in s)
            screen.read(0.5)
            assert len(screen.text) == lines and max(map(len, screen.text)) <= columns
            if columns >= 40 and lines >= 10:
                bottom = screen.text[-1]
                assert bottom.startswith(" q  quit"), (columns, lines, shown)
                assert screen.text[0].startswith(("eagletrace watch", "ended")), (columns, lines, shown)
                assert screen.whole.count("╭") == screen.whole.count("╯") > 0, (columns, lines, shown)
        screen.press("q")
        assert screen.ended() == 0


@pytest.mark.parametrize("how", ["key", "Ctrl-C", "SIGTERM", "SIGHUP"])
def test_it_ends_cleanly(how: str) -> None:
    with Screen(DEMO_RUN) as screen:
        screen.wait_for("accept length")
        if how == "key":
            screen.press("q")
        elif how == "Ctrl-C":
            screen.press("\x03")
        else:
            screen.process.send_signal(getattr(signal, how))
        assert screen.ended() == 0
        assert screen.restored and b"Traceback" not in screen.raw


def test_it_stops_and_goes_on_as_the_shell_says() -> None:
    with Screen(DEMO_RUN) as screen:
        screen.wait_for("FAULT")
        os.kill(screen.process.pid, signal.SIGTSTP)
        pid, status = os.waitpid(screen.process.pid, os.WUNTRACED)
        screen.read(0.2)
        assert pid == screen.process.pid and os.WIFSTOPPED(status) and screen.restored
        os.kill(screen.process.pid, signal.SIGCONT)
        screen.wait_for(lambda _: not screen.restored)
        screen.press("3")
        screen.wait_for("phases of the engine")
        assert not screen.restored
        screen.press("q")
        assert screen.ended() == 0 and screen.restored


def test_strings_of_a_trace_do_not_reach_the_terminal(tmp_path: Path) -> None:
    nasty = "\x1b[2J\x1b]0;x\x07[bold]<b>\u202e"
    path = make_folder(tmp_path / "run", run_id=nasty, sglang=nasty)
    w = writer(path)
    w.write("events", [{"time_unix_nano": 1, "kind": nasty, "detail": nasty}])
    w.write("hooks", [{"target": nasty, "status": nasty, "calls": 1, "errors": 0, "time_unix_nano": 1}])
    w.write("spans", [{"name": nasty, "start_time_unix_nano": 1, "duration_time_unix_nano": 1}])
    w.write("requests", [request(finish_reason=nasty, end_time_unix_nano=3)])
    w.write("totals", [{"time_unix_nano": 1, "rounds": 1, "dropped_rows_by_reason": '{"\\u001b[2J": 4}'}])
    with Screen(path, columns=120) as screen:
        screen.wait_for("rows dropped")
        for key in "1234567":
            screen.press(key)
            screen.read(0.4)
        assert b"\x1b]0;" not in screen.raw and b"\x07" not in screen.raw and b"\x1b[2J" not in screen.raw
        screen.press("6")
        assert "\\x1b[2J\\x1b]0;x\\x07[bold]<b>\\u202e" in screen.wait_for("events, the newest first")


# -- one frame ------------------------------------------------------------------------------------


def once(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "eagletrace.cli", "watch", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environ(**variables), timeout=120)


@pytest.mark.parametrize("arguments", [["--once"], []])
def test_one_frame_where_stdout_is_no_terminal(arguments: list[str]) -> None:
    done = once(DEMO_RUN, *arguments)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.isascii() and "\x1b" not in done.stdout
    assert "sglang-run-1796008871.6628847-77886402  SGLang 0.5.23  level tokens\n" in done.stdout
    for text in ("2.23 now", "FAULT", "aux.not_captured", "77 tokens/s", "verify", "no rows dropped"):
        assert text in done.stdout
    assert "quit" not in done.stdout


def test_one_frame_on_a_terminal() -> None:
    with Screen(DEMO_RUN, "--once", lines=60) as screen:
        assert screen.ended() == 0
        assert "╭─ accept length" in screen.whole and "FAULT" in screen.whole
        assert b"\x1b[?1049h" not in screen.raw


@pytest.mark.parametrize(
    ("what", "says"),
    [("nothing", "does not exist yet"), ("folder", "no run in"), ("file", "is a file, not a run folder")],
)
def test_one_frame_of_nothing_is_an_error(tmp_path: Path, what: str, says: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    done = once(tmp_path / what, "--once")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_bad_interval_is_said(tmp_path: Path) -> None:
    done = once(tmp_path, "--interval", "0")
    assert done.returncode == 2 and "is not a number of seconds from 0.1 to 3600" in done.stderr


# -- parts ----------------------------------------------------------------------------------------


def test_keys_are_told_apart() -> None:
    assert parse_keys("q\t\x1b[A\x1b[5~\x1b[Z\x1bOB\x1b[999X \x1b") == [
        "q", "tab", "up", "page-up", "shift-tab", "down", "space", "escape",
    ]  # fmt: skip
    assert parse_keys("\x1b[") == [] and parse_keys("é") == ["é"]


def test_charts() -> None:
    assert sparkline([0, 0.5, 1, None, 2], 0, 1, fancy=True) == "▁▄█ █"
    assert sparkline([0, 0.5, 1], 0, 1, fancy=False) == ".=@"
    assert chart([0.5, 1.0, 0.0], 0, 1, 2, fancy=True) == [" █ ", "██▁"]
    assert duration(93_784) == "1 d 02:03:04" and duration(59.9) == "00:00:59"


@pytest.mark.parametrize("lines", range(1, 60))
def test_rows_share_all_lines(lines: int) -> None:
    heights = [h or 0 for h in _heights(lines, ((6, 3), (5, 4), (5, 1)))]
    assert sum(heights) == lines
    assert all(h == 0 or h >= 5 for h in heights) or lines < 6


def test_a_check_that_turns_is_noted(tmp_path: Path) -> None:
    from eagletrace.diagnose.result import Acceptance, Check, Diagnosis, RunInfo
    from eagletrace.report.diagnoser import Diagnosed

    path = small_run(tmp_path / "run")

    class Fixed:
        newest: Diagnosed | None = None

        def follow(self, path: Path, again: object) -> None:
            pass

    fixed = Fixed()
    session = Session(path, fixed)  # pyright: ignore[reportArgumentType]

    def say(at: float, **status: str) -> list[tuple[str, str, str]]:
        checks = tuple(Check(name, word, "why") for name, word in status.items())  # pyright: ignore[reportArgumentType]
        fixed.newest = Diagnosed(path, Diagnosis(RunInfo("r"), "healthy", Acceptance(), (), checks), "", at, 0.1)
        session.refresh()
        return [(t.check, t.before, t.after) for t in session.turned]

    assert say(1, a="ok", b="alarm", c="unknown") == []
    assert say(2, a="alarm", b="alarm", c="ok") == [("c", "unknown", "ok"), ("a", "ok", "alarm")]
    assert len(say(3, a="alarm", b="alarm", c="ok", d="alarm")) == 2


# -- tmux -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50), (48, 18)])
def test_in_tmux(servers: Servers, tmp_path: Path, columns: int, lines: int) -> None:
    servers.start("first", "40", "0.9")
    socket = str(tmp_path / "tmux")

    def tmux(*arguments: str) -> str:
        return subprocess.run(["tmux", "-S", socket, *arguments], capture_output=True, text=True, timeout=20).stdout

    command = f"{sys.executable} -m eagletrace.cli watch {servers.folder} --interval 0.3; echo ended with $?; cat"
    tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), command)
    try:
        until = time.monotonic() + 60
        while value(shown := tmux("capture-pane", "-p")) < 3 or "HEALTHY" not in shown:
            assert time.monotonic() < until, shown
            time.sleep(0.1)
        assert len(shown.splitlines()) == lines and max(map(len, shown.splitlines())) <= columns
        assert shown.splitlines()[-1].startswith(" q  quit")
        tmux("send-keys", "4")
        while "checks of the newest" not in (shown := tmux("capture-pane", "-p")):
            assert time.monotonic() < until, shown
            time.sleep(0.1)
        tmux("resize-window", "-x", "100", "-y", "30")
        while len((shown := tmux("capture-pane", "-p")).splitlines()) != 30 or " q  quit" not in shown:
            assert time.monotonic() < until, shown
            time.sleep(0.1)
        tmux("send-keys", "C-c")
        while "ended with 0" not in (shown := tmux("capture-pane", "-p")):
            assert time.monotonic() < until, shown
            time.sleep(0.1)
        assert "╭" not in shown  # the screen from before is back
    finally:
        tmux("kill-server")
