"""The server context: nothing is left behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from eagletrace.lab import server as lab_server
from eagletrace.lab.engines import Engine, engine
from eagletrace.lab.load import Answer, LoadOptions, accept_length, send_load
from eagletrace.lab.server import LabServer, ServerFailedError, command, free_port

HERE = Path(__file__).parent


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("EAGLETRACE_LAB_SGLANG_0_5_23_PYTHON", sys.executable)
    return replace(engine("0.5.23"), module="fake_server")


def served(fake: Engine, log: Path, mode: str = "", start_timeout_s: float = 20.0) -> LabServer:
    env = {"PYTHONPATH": str(HERE), "FAKE": mode}
    return LabServer(fake, {"model-path": "m"}, env, log=log, start_timeout_s=start_timeout_s)


def child_of(log: Path) -> int:
    found = re.search(r"child (\d+)", log.read_text())
    assert found is not None
    return int(found[1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_a_free_port_is_free_and_differs() -> None:
    ports = {free_port() for _ in range(5)}
    assert len(ports) > 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", ports.pop()))


def test_a_free_port_is_none_that_a_connection_may_take_meanwhile() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < low for _ in range(50))


def test_a_port_that_another_process_has_is_refused_at_once(fake: Engine, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = LabServer(fake, {}, {"PYTHONPATH": str(HERE)}, port=port, log=tmp_path / "log")
        with pytest.raises(ServerFailedError, match=f"port {port} cannot be bound"), server:
            pass
    assert not (tmp_path / "log").exists()


def test_a_port_that_is_lost_while_the_server_starts_is_named(fake: Engine, tmp_path: Path) -> None:
    server = served(fake, tmp_path / "log", "no_port", start_timeout_s=60)
    with pytest.raises(ServerFailedError, match=f"port {server.port} cannot be bound"), server:
        pass
    assert wait_gone(child_of(tmp_path / "log"))


def test_the_command_line(fake: Engine) -> None:
    line = command(fake, {"device": "cpu", "disable-cuda-graph": True, "off": False, "unset": None, "steps": 3})
    assert line == [sys.executable, "-m", "fake_server", "--device", "cpu", "--disable-cuda-graph", "--steps", "3"]


def test_it_serves_and_leaves_nothing(fake: Engine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served(fake, log) as server:
        assert server.get("/health").status == 200
        pids = [server.pid, child_of(log)]
        assert all(is_running(pid) for pid in pids)
    assert all(wait_gone(pid) for pid in pids)
    assert f"'--port', '{server.port}'" in log.read_text()


def test_sigterm_ignored_is_followed_by_sigkill(fake: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_server, "STOP_GRACE_S", 0.2)
    with served(fake, tmp_path / "log", "stubborn") as server:
        pids = [server.pid, child_of(tmp_path / "log")]
    assert all(wait_gone(pid) for pid in pids)


def test_an_exception_stops_it(fake: Engine, tmp_path: Path) -> None:
    pids: list[int] = []
    with pytest.raises(RuntimeError, match="mine"), served(fake, tmp_path / "log") as server:
        pids += [server.pid, child_of(tmp_path / "log")]
        raise RuntimeError("mine")
    assert pids
    assert all(wait_gone(pid) for pid in pids)


def test_leaving_by_a_signal_stops_it_in_order(fake: Engine, tmp_path: Path) -> None:
    with pytest.raises(SystemExit), served(fake, tmp_path / "log") as server:
        raise SystemExit(143)
    assert server.exit_code == -signal.SIGTERM
    assert wait_gone(child_of(tmp_path / "log"))


def test_early_death_is_noticed_at_once_with_the_log(fake: Engine, tmp_path: Path) -> None:
    begin = time.monotonic()
    server = served(fake, tmp_path / "log", "die", start_timeout_s=60)
    with pytest.raises(ServerFailedError, match="status 7") as caught, server:
        pass
    assert "no such kernel" in str(caught.value)
    assert server.died
    assert time.monotonic() - begin < 20


def test_a_server_that_is_never_ready_is_killed(fake: Engine, tmp_path: Path) -> None:
    server = served(fake, tmp_path / "log", "never_ready", start_timeout_s=1.5)
    with pytest.raises(ServerFailedError, match="not ready after"), server:
        pass
    assert not server.died
    assert wait_gone(child_of(tmp_path / "log"))


def test_a_killed_parent_leaves_no_server(fake: Engine, tmp_path: Path) -> None:
    program = (
        "import sys, time; sys.path[:0] = sys.argv[1:2]\n"
        "from pathlib import Path\n"
        "from dataclasses import replace\n"
        "from eagletrace.lab.engines import engine\n"
        "from eagletrace.lab.server import LabServer\n"
        "fake = replace(engine('0.5.23'), module='fake_server')\n"
        "with LabServer(fake, {}, {'PYTHONPATH': sys.argv[1]}, log=Path(sys.argv[2])) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(HERE), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert wait_gone(pid)
    assert wait_gone(child_of(tmp_path / "log"))


def test_the_callers_tracing_variables_stay_out(fake: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLETRACE", "1")
    monkeypatch.setenv("EAGLETRACE_LAB_X", "1")
    server = served(fake, tmp_path / "log")
    assert not [name for name in server.env if name.startswith("EAGLETRACE")]


def test_marks_are_called_on_the_way(fake: Engine, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options = LoadOptions(
        rounds=30, concurrency=2, max_new_tokens=[10, 20], marks=[15, 10],
        at_mark=lambda mark, so_far: seen.append((mark, sum(answer.rounds for answer in so_far.answers))),
    )  # fmt: skip
    with served(fake, tmp_path / "log") as server:
        rounds = sum(answer.rounds for answer in send_load(server, options, ["a", "b", "c"]).answers)
    assert [mark for mark, _so_far in seen] == [10, 15]
    assert all(mark <= so_far < rounds for mark, so_far in seen)


def test_load_goes_on_until_enough_rounds(fake: Engine, tmp_path: Path) -> None:
    with served(fake, tmp_path / "log") as server:
        result = send_load(server, LoadOptions(rounds=30, concurrency=2, max_new_tokens=[10, 20]), ["a", "b", "c"])
    assert not result.engine_died
    assert [answer.request_id for answer in result.answers] == ["a", "b", "c", "a"]
    assert [answer.completion_tokens for answer in result.answers] == [10, 20, 10, 20]
    assert sum(answer.rounds for answer in result.answers) == 30
    assert accept_length(result.answers) == 2.0


def test_given_prompts_are_sent_once(fake: Engine, tmp_path: Path) -> None:
    with served(fake, tmp_path / "log") as server:
        result = send_load(server, LoadOptions(prompts=["x", "y", "z"], concurrency=2, max_new_tokens=4), [])
    assert [answer.request_id for answer in result.answers] == ["x", "y", "z"]


@pytest.mark.parametrize(("rounds", "called_after", "requests"), [(30, 4, 6), (6, 2, 4)])
def test_midway_is_called_once_between_two_waves(
    rounds: int, called_after: int, requests: int, fake: Engine, tmp_path: Path
) -> None:
    """Waves of two requests, five rounds each: after half of the rounds, and never after the last wave."""
    sent: list[int] = []
    with served(fake, tmp_path / "log") as server:
        log = tmp_path / "log"
        options = LoadOptions(
            rounds=rounds, concurrency=2, max_new_tokens=10, midway=lambda given: sent.append(requests_in(log, given))
        )
        result = send_load(server, options, ["a", "b"])
    assert sent == [called_after]
    assert len(result.answers) == requests


def requests_in(log: Path, server: LabServer) -> int:
    """How often the fake server was asked to generate, by the log that it writes."""
    assert server.alive
    return log.read_text().count("POST /generate")


def test_a_death_under_load_is_a_result(fake: Engine, tmp_path: Path) -> None:
    with served(fake, tmp_path / "log", "die_on_generate") as server:
        result = send_load(server, LoadOptions(rounds=30), ["a"])
    assert result.engine_died
    assert result.answers == []


def test_a_refused_request_is_an_error(fake: Engine, tmp_path: Path) -> None:
    from eagletrace.errors import EagletraceError

    with pytest.raises(EagletraceError, match="too long"), served(fake, tmp_path / "log", "refuse") as server:
        send_load(server, LoadOptions(rounds=30), ["a"])


def test_accept_length_without_rounds() -> None:
    assert accept_length([]) is None
    assert accept_length([Answer("a", {"completion_tokens": 5}, [])]) is None
