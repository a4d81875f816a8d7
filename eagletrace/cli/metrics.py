"""`eagletrace metrics RUN`: a run as Prometheus metrics, once or served on a port."""

from __future__ import annotations

import argparse
import sys

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import warn
from eagletrace.cli.parsers import RUN_HELP, Subparsers

MAX_PORT = 65_535


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "metrics",
        help="a run as Prometheus metrics",
        description="Print a run as Prometheus metrics, or serve them on a port while the run is recorded: of a trace "
        "folder always the newest run.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--port", type=_port, metavar="P", help="serve /metrics on this port (0: a free one)")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                        help="address to serve on; default: 127.0.0.1")  # fmt: skip
    parser.set_defaults(handler=metrics)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}")
    return int(text)


def metrics(options: argparse.Namespace) -> int:
    """Print or serve the metrics."""
    if options.port is not None:
        from eagletrace.report.metrics_server import serve

        with many_files():
            return serve(options.run, options.host, options.port)
    import time

    from eagletrace.diagnose import diagnose
    from eagletrace.report.metrics import metrics_text
    from eagletrace.store import open_run
    from eagletrace.store.live import LiveRun

    with many_files(), open_run(options.run) as run:
        run.open(("totals", "hooks", "events", "requests"))
        live = LiveRun(run.path, with_phases=False)
        live.poll()
        text = metrics_text(live, diagnose(run), time.time())
        warn(run.warnings_so_far)
    sys.stdout.buffer.write(text.encode())
    return 0
