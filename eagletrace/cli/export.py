"""`eagletrace export RUN --to perfetto | otlp | dataset`: a run for other tools, or into one data set of many runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagletrace.cli.limits import many_files
from eagletrace.cli.output import warn
from eagletrace.cli.parsers import RUN_HELP, Subparsers
from eagletrace.errors import EagletraceError, UnknownNameError
from eagletrace.format import TABLES

if TYPE_CHECKING:
    from rich.progress import Progress

    from eagletrace.store import Run

PERFETTO_UI = "https://ui.perfetto.dev"


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "export",
        help="a run for other tools: Perfetto, an OpenTelemetry collector, a data set of many runs",
        description="perfetto: a file for the Perfetto UI. otlp: the spans as they were recorded, sent to an "
        "OpenTelemetry collector; headers, certificates and protocol come from the OTEL_EXPORTER_OTLP_* variables. "
        "dataset: the closed files of the run in a Hive-partitioned data set, in a folder or behind a URL such as "
        "s3://bucket/prefix; a second export adds what is new.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--to", required=True, metavar="|".join(FORMATS), help="where to")
    parser.add_argument("-o", "--out", "--output", dest="output", metavar="FILE|URL",
                        help="perfetto: the file, compressed if its name ends in .gz, replaced if it exists; "
                        "default: RUN's id with .pftrace, which must not exist. dataset: the data set")  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="dataset: go on until the run has ended")
    parser.add_argument("--move", action="store_true",
                        help="dataset: remove each closed file from the run once its copy was read back")  # fmt: skip
    collector = "otlp: the collector, such as http://localhost:4318; default: the OTEL_* variables"
    parser.add_argument("--endpoint", metavar="URL", help=collector)
    parser.set_defaults(handler=export)


def export(options: argparse.Namespace) -> int:
    """Export one run."""
    if options.to not in FORMATS:
        raise UnknownNameError("format", options.to, FORMATS)
    if options.to != "dataset" and (options.follow or options.move):
        raise EagletraceError("--follow and --move belong to --to dataset")
    from eagletrace.store import open_run

    with many_files(), open_run(options.run) as run:
        FORMATS[options.to](run, options)
        warn(run.warnings_so_far)
    return 0


def _perfetto(run: Run, options: argparse.Namespace) -> None:
    from eagletrace.report.perfetto import PerfettoTrace
    from eagletrace.report.replace import replacing
    from eagletrace.report.text import safe

    if options.endpoint is not None:
        raise EagletraceError("--endpoint belongs to --to otlp; --to perfetto writes a file (-o FILE)")
    path = Path(options.output or f"{run.info.path.name}.pftrace")
    if options.output is None and path.exists():
        raise EagletraceError(f"{path} exists; name the file with -o to replace it")
    with replacing(path) as file, progress(path.name) as show:
        trace = PerfettoTrace(run, show.advance)
        show.begin(trace.size())
        for part in trace.packets():
            file.write(part)
    what = ", ".join(f"{n:,} {name}" for name, n in trace.counts.items() if n and name != "counter values")
    print(safe(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB): {what or 'nothing was recorded'}"))
    print(f"open it at {PERFETTO_UI}")


def _otlp(run: Run, options: argparse.Namespace) -> None:
    from eagletrace.format.otel import ENDPOINTS, make_exporter, with_path
    from eagletrace.report.otlp import count_spans, send
    from eagletrace.report.text import safe

    if options.output is not None:
        raise EagletraceError("-o belongs to --to perfetto and dataset; --to otlp sends to --endpoint URL")
    where = next(filter(None, (options.endpoint, *(os.environ.get(name) for name in ENDPOINTS))), None)
    if where is None:
        raise EagletraceError(f"say where the collector is: --endpoint http://localhost:4318, or {ENDPOINTS[1]}")
    exporter = make_exporter(options.endpoint)
    total = count_spans(run)
    where = with_path(options.endpoint) if options.endpoint else where
    with progress("spans") as show:
        show.begin(total)
        sent = send(run, exporter, where, show.advance)
    print(safe(f"sent {sent.spans:,} spans to {where}"))
    if sent.invalid:
        warn([f"{sent.invalid:,} rows of `spans` are no valid spans and were left out"])


def _dataset(run: Run, options: argparse.Namespace) -> None:
    from eagletrace.report.dataset import DatasetExport
    from eagletrace.report.text import safe
    from eagletrace.store.dataset.layout import is_dataset

    if options.endpoint is not None or not options.output:
        raise EagletraceError("say where the data set is: --to dataset -o URL, such as s3://bucket/prefix or a folder")
    if is_dataset(options.run):
        if options.move or options.follow:
            raise EagletraceError("--move and --follow are for a run folder, and RUN is in a data set")
        run.open(TABLES)  # fetches them
    export = DatasetExport(run.info, options.output, move=options.move)
    done = export.follow(lambda text: warn([text])) if options.follow else export.once()
    warn(dict.fromkeys(done.warnings))
    moved = f"; {done.removed:,} files were removed from the run" if options.move else ""
    print(safe(f"exported {done.files:,} files ({done.bytes / 1e6:.1f} MB) of {run.info.id} to {export.place.shown}, "
               f"{done.present:,} were there{moved}"))  # fmt: skip
    print(safe(f"read it: eagletrace diagnose {export.place.shown}/{run.info.id}"))


FORMATS: dict[str, Callable[[Run, argparse.Namespace], None]] = {
    "perfetto": _perfetto, "otlp": _otlp, "dataset": _dataset,
}  # fmt: skip


class _Progress:
    """How far long work has come; says nothing until it is given a bar."""

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self._task: Any = None

    def begin(self, total: int) -> None:
        """`total` rows are to be written."""
        if self.bar is not None:
            self._task = self.bar.add_task("", total=total)

    def advance(self, rows: int) -> None:
        """So many more are."""
        if self.bar is not None:
            self.bar.advance(self._task, rows)


@contextlib.contextmanager
def progress(title: str) -> Generator[_Progress, None, None]:
    """A progress bar on stderr."""
    shown = _Progress()
    if not sys.stderr.isatty():
        yield shown
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from eagletrace.report.text import safe

    name = TextColumn(safe(title), markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown.bar:
        yield shown
