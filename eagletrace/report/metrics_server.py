"""Serves the metrics of a run while it is recorded. Each scrape reads what is new; the diagnosis runs beside it."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eagletrace.errors import EagletraceError
from eagletrace.report.diagnoser import Diagnoser
from eagletrace.report.metrics import CONTENT_TYPE, metrics_text
from eagletrace.report.text import safe
from eagletrace.store import find_run
from eagletrace.store.folder import user_path
from eagletrace.store.live import LiveRun

METRICS_PATH = "/metrics"


class Metrics:
    """The metrics of the newest run of a folder, now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._live: LiveRun | None = None
        self._lock = threading.Lock()
        self._diagnosed_rounds = -1
        self._diagnoser = Diagnoser()
        self.text()

    def start(self) -> None:
        """Begin to diagnose beside it."""
        self._diagnoser.start()

    def text(self) -> str:
        """The metrics; EagletraceError where there is no run to be read."""
        with self._lock:
            info, _ = find_run(self._folder)
            if self._live is None or self._live.path != info.path:
                self._live = LiveRun(info.path, with_phases=False)
                self._diagnoser.follow(info.path, self._changed)
            self._live.poll()
            newest = self._diagnoser.newest
            if newest is None or newest.diagnosis is None:
                return metrics_text(self._live)
            return metrics_text(self._live, newest.diagnosis, newest.at)

    def _changed(self) -> bool:
        """Whether rounds came since the last diagnosis."""
        rounds = self._live.counts.rounds if self._live is not None else 0
        changed, self._diagnosed_rounds = rounds != self._diagnosed_rounds, rounds
        return changed

    def close(self) -> None:
        """Stop diagnosing."""
        self._diagnoser.stop()


def make_server(metrics: Metrics, host: str, port: int) -> ThreadingHTTPServer:
    """A server for one folder's metrics; EagletraceError where the address cannot be had."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "eagletrace", ""
        timeout = 30  # a client that says nothing

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == METRICS_PATH:
                try:
                    self._answer(200, metrics.text(), CONTENT_TYPE)
                except EagletraceError as error:
                    self._answer(503, f"{error}\n")
            elif path == "/":
                self._answer(200, f"eagletrace: see {METRICS_PATH}\n")
            else:
                self._answer(404, f"only {METRICS_PATH} is here\n")

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server_class = type("_Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
        return server_class((host, port), Handler)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise EagletraceError(f"cannot serve on {host}, port {port}: {why}; choose another --host or --port") from None


def serve(folder: str, host: str, port: int) -> int:
    """Serve until a signal; returns the exit status."""
    metrics = Metrics(user_path(folder))
    try:
        server = make_server(metrics, host, port)
        metrics.start()
        stop = threading.Thread(target=server.shutdown, daemon=True)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.start())
        shown = f"[{server.server_address[0]}]" if ":" in str(server.server_address[0]) else server.server_address[0]
        url = f"http://{shown}:{server.server_address[1]}{METRICS_PATH}"
        print(safe(f"serving {url} (Ctrl-C ends it)"), file=sys.stderr, flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
    finally:
        metrics.close()
    return 0
