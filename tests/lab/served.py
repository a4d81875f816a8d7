"""A lab server that tests break: told what to do from outside, streamed from, and judged by the run it leaves."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from eagletrace.lab.options import ServeOptions, serving
from eagletrace.lab.server import LabServer
from eagletrace.store import open_run

REMOTE = str(Path(__file__).parent / "remote")
PROMPTS = ("def parse(self, text):\n    ", "import re\n\nclass ", "for key, value in ", "raise ValueError(")
STREAMS = 3
ANSWER_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 60.0
STREAM_TIMEOUT_S = 300.0
FLUSH_S = 1.0
"""The default of EAGLETRACE_FLUSH_S."""
KEYS = {
    "rounds": "host, pid, round, request_seq",
    "drafts": "host, pid, round, request_seq, node",
    "verifies": "host, pid, round, request_seq, node",
    "hidden": "host, pid, round, request_seq, stage, slot",
    "spans": "host, pid, trace_id, span_id",
}  # fmt: skip


class Served:
    """A server whose processes answer calls (`remote/in_server.py`), as a context manager; its log is `folder/log`."""

    def __init__(
        self, folder: Path, *, tracing: bool = True, start: Sequence[str] = (), runs: Path | None = None, **env: str
    ) -> None:
        self.folder, self.runs = folder, runs or folder / "runs"
        self._remote = folder / "remote"
        self._remote.mkdir(parents=True)
        plan = serving(ServeOptions(dir=self.runs, tracing="on" if tracing else "off"))
        settings = {
            **plan.env, "PYTHONPATH": f"{REMOTE}{os.pathsep}{plan.env['PYTHONPATH']}",
            "REMOTE_DIR": str(self._remote), "REMOTE_START": ",".join(start), **env,
        }  # fmt: skip
        self.server = LabServer(plan.engine, plan.flags, settings, log=folder / "log")
        self.scheduler = 0
        self._calls = itertools.count()

    def __enter__(self) -> Served:
        self.server.__enter__()
        schedulers = [pid for pid in descendants(self.server.pid) if b"sglang::scheduler" in _title(pid)]
        if len(schedulers) != 1:
            self.server.kill()
            raise AssertionError(f"{len(schedulers)} schedulers")
        self.scheduler = schedulers[0]
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.kill()

    @property
    def log(self) -> str:
        """What the server printed."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def run(self) -> Path:
        """The one run folder."""
        (info,) = self.runs.glob("*/run.json")
        return info.parent

    def call(self, function: str, *arguments: Any, wait: bool = True) -> Any:
        """Call a function of `remote/in_server.py` in the scheduler; its result, or AssertionError with its error."""
        number = next(self._calls)
        content = json.dumps({"number": number, "function": function, "arguments": arguments})
        (self._remote / "call.json").write_text(content)
        os.kill(self.scheduler, signal.SIGUSR2)
        path = self._remote / f"answer-{number}.json"
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while wait and not path.exists():
            assert time.monotonic() < deadline, f"the scheduler did not answer {function}"
            time.sleep(0.01)
        result: dict[str, Any] = json.loads(path.read_text()) if wait else {}
        assert "error" not in result, result["error"]
        return result.get("value")

    def outputs(self, name: str | None = None) -> list[list[int]]:
        """Output token ids of the same requests, one at a time, with an empty prefix cache; their ids `name-0` ..."""
        # Refused while a batch runs, and under the overlap scheduler one runs after the last answer.
        assert self.wait_for(lambda: self.server.post("/flush_cache", {}).status == 200)
        ids = [f"{name}-{n}" if name else None for n in range(len(PROMPTS))]
        return [self.generate(prompt, 24, rid) for prompt, rid in zip(PROMPTS, ids, strict=True)]

    def generate(self, prompt: str, tokens: int, rid: str | None = None) -> list[int]:
        """Output token ids of one greedy request."""
        answer = self.server.post("/generate", body(prompt, tokens, **({"rid": rid} if rid else {})))
        assert answer.status == 200, answer.body
        return answer.body["output_ids"]

    def recorded(self, name: str) -> list[list[int]]:
        """What the run has now of the requests of `outputs(name)`."""
        with open_run(self.run) as run:
            query = f"SELECT output_ids FROM outputs WHERE request_id LIKE '{name}-%' ORDER BY request_id"
            return [row["output_ids"] for row in run.rows(query)]

    def wait_for(self, what: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Whether something becomes true before long (a busy machine writes late)."""
        deadline = time.monotonic() + seconds
        while not (holds := what()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return holds


def body(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy request of exactly so many tokens."""
    return {
        "text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}, **more
    }  # fmt: skip


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(pid: int) -> list[int]:
    """A process and all that came of it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                todo += [int(p) for p in task.read_text().split()]
    return found


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody reaps does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Streamed:
    """One streamed request: its tokens so far, and how many there were at which time."""

    rid: str
    ids: list[int] = field(default_factory=list[int])
    seen: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def due(self, before: float) -> int:
        """Tokens that had arrived before a time."""
        return max((count for when, count in self.seen if when < before), default=0)


class Streams:
    """Clients that stream one request after another until the server is gone, or the `with` block ends."""

    def __init__(self, server: LabServer, tokens: int = 160) -> None:
        self._server, self._tokens, self._stop = server, tokens, False
        self.requests: list[Streamed] = []
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(STREAMS)]

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join()

    def finish(self) -> None:
        """Send no more requests."""
        self._stop = True

    def wait_for(self, tokens: int) -> None:
        """Wait until so many tokens have arrived in all."""
        deadline = time.monotonic() + STREAM_TIMEOUT_S
        while sum(len(r.ids) for r in self.requests) < tokens:
            assert time.monotonic() < deadline, "the clients get no tokens"
            time.sleep(0.02)

    def _client(self, number: int) -> None:
        for count in itertools.count():
            if self._stop:
                return
            request = Streamed(f"stream-{number}-{count}")
            self.requests.append(request)
            try:
                for ids in self._stream(request.rid, PROMPTS[(number + count) % len(PROMPTS)]):
                    request.ids = ids
                    request.seen.append((time.time(), len(ids)))
            except (OSError, ValueError, http.client.HTTPException):
                return

    def _stream(self, rid: str, prompt: str) -> Iterator[list[int]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=EXIT_TIMEOUT_S)
        with contextlib.closing(connection):
            content = json.dumps(body(prompt, self._tokens, rid=rid, stream=True))
            connection.request("POST", "/generate", content, {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])["output_ids"]


def check_run(run_dir: Path, requests: Sequence[Streamed], died: float) -> int:
    """Everything that a user had seen a second and a flush before the end is in the run, once, and all of it reads.

    Returns how many tokens were due.
    """
    for file in run_dir.glob("*/*.parquet"):
        pq.ParquetFile(file).read()
    with open_run(run_dir) as run:
        assert run.warnings == []
        for table, key in KEYS.items():
            twice = run.rows(f"SELECT {key}, count(*) AS n FROM all_ranks.{table} GROUP BY ALL HAVING n > 1 LIMIT 3")
            assert twice == [], f"{table} has rows twice"
        rebuilt = {row["request_id"]: row["output_ids"] for row in run.rows("SELECT * FROM outputs")}
    due = 0
    for request in requests:
        count = request.due(died - FLUSH_S - 1.0)
        due += count
        written = rebuilt.get(request.rid, [])
        assert written[:count] == request.ids[:count], f"{request.rid}: {len(written)} tokens written, {count} due"
    return due


def engine_error(log: str) -> tuple[list[str], list[str]]:
    """The exception that ended the scheduler: its frames without ours, and the lines that are no frame."""
    text = log.partition("Scheduler hit an exception: ")[2].partition("\n\n")[0]
    frames = re.findall(r'^  File "(.+)", line (\d+), in (.+)$', text, re.MULTILINE)
    ours = re.compile(r"/(eagletrace|instrumentations|wrapt)/")
    engine = [f"{file}:{line} {name}" for file, line, name in frames if not ours.search(file)]
    return engine, [line for line in text.splitlines() if line and not line.startswith(" ")]


def seconds_to_exit(served: Served, end: Callable[[], Any]) -> float:
    """How long the server's main process takes to go after `end`."""
    start = time.monotonic()
    end()
    while served.server.alive:
        assert time.monotonic() - start < EXIT_TIMEOUT_S, "the server did not end"
        time.sleep(0.01)
    return time.monotonic() - start
