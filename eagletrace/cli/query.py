"""`eagletrace query RUN NAME | --sql "…"`: a bundled query or your own SELECT over a run."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from eagletrace.cli.limits import bounded_memory, many_files
from eagletrace.cli.output import plain, print_json, warn
from eagletrace.cli.parsers import RUN_HELP, Subparsers
from eagletrace.errors import EagletraceError, UnknownNameError

if TYPE_CHECKING:
    from eagletrace.store import QueryResult, Run
    from eagletrace.store.sqlfile import SqlFile

FORMATS = ("table", "json", "csv", "parquet")
ENGINES = ("duckdb", "spark")
TIMEOUT_S, MEMORY_MIB = 600, 1024
OWN_BYTES = 1 << 30  # for the libraries, and for the rows as Python has them


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "query",
        help="run a bundled query or your own SQL on a run",
        description="Run a bundled query (see `eagletrace queries`), a check by its id, or one read-only SELECT in "
        "DuckDB's SQL. `SHOW TABLES` lists the views, `DESCRIBE rounds` the columns of one.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a bundled query")
    parser.add_argument("--sql", metavar="SQL", help="your own SELECT")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="parameter of the query")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="duckdb",
        help="default: duckdb; spark: the same SQL, translated, on a local Spark",
    )
    parser.add_argument("--timeout", type=_positive(float), default=TIMEOUT_S, metavar="SECONDS",
                        help=f"stop the query after so long; default: {TIMEOUT_S}")  # fmt: skip
    parser.add_argument("--memory", type=_positive(int), default=MEMORY_MIB, metavar="MIB",
                        help=f"memory for the query and for its result; default: {MEMORY_MIB}")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE")
    parser.set_defaults(handler=query)


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value <= 1 << 30:
            raise argparse.ArgumentTypeError(f"{text} is not between 0 and {1 << 30}")
        return value

    return parse


def query(options: argparse.Namespace) -> int:
    """Run one query."""
    from eagletrace.store import open_run

    if (options.name is None) == (options.sql is None):
        raise EagletraceError("give either the NAME of a bundled query or --sql (`eagletrace queries` lists the names)")
    file = _file(options.name) if options.name is not None else None
    params = _params(options.param, file)
    _check_output(options)
    if options.engine == "spark":
        return _on_spark(options, file, params)
    try:
        with many_files(), bounded_memory((options.memory << 20) * 2 + OWN_BYTES):
            with open_run(options.run, memory=f"{options.memory}MiB") as run:
                sql = options.sql if file is None else file.sql
                result = run.query(sql, params or None, timeout_s=options.timeout, max_bytes=options.memory << 20)
                warn(run.warnings_so_far)
                if file is not None:
                    _note_missing(run, file)
            _write(result, options.format, options.output)
    except MemoryError:
        raise EagletraceError(
            f"the result does not fit into memory as {options.format}: add LIMIT, aggregate, write --format parquet, "
            f"or give more than --memory {options.memory}"
        ) from None
    return 0


def _file(name: str) -> SqlFile:
    """A bundled query, or a check by its id."""
    from eagletrace.store.sqlfile import load_folder

    files = load_folder("explore")
    if name in files:
        return files[name]
    checks = {file.meta["id"]: file for file in load_folder("checks").values()}
    if name not in checks:
        raise UnknownNameError("query", name, {**files, **checks})
    return checks[name]


def _on_spark(options: argparse.Namespace, file: SqlFile | None, params: dict[str, Any]) -> int:
    """The same on a Spark of this machine; `--timeout` and `--memory` are DuckDB's."""
    from eagletrace.store import QueryResult, open_run
    from eagletrace.store.spark.run import LocalFiles, SparkRun, local_session

    sql = options.sql if file is None else file.sql
    with many_files(), open_run(options.run) as run:
        session = local_session()
        with LocalFiles(run, sql) as files:
            table = SparkRun(session, files.paths).arrow(sql, params)
        warn(run.warnings_so_far)
        if file is not None:
            _note_missing(run, file)
    _write(QueryResult(table), options.format, options.output)
    return 0


def _params(given: list[str], file: SqlFile | None) -> dict[str, Any]:
    """Values of the parameters: defaults from the front matter, text for the user's own SQL."""
    params: dict[str, Any] = {p.name: p.default for p in file.params.values()} if file else {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise EagletraceError(f"--param {text}: expected NAME=VALUE")
        if file is None:
            params[name] = value
        elif name not in file.params:
            if not file.params:
                raise EagletraceError(f"the query {file.name!r} has no parameters")
            raise UnknownNameError("parameter", name, file.params)
        else:
            try:
                params[name] = file.params[name].parse(value)
            except ValueError:
                message = f"--param {text}: {name} is of type {file.params[name].type}"
                raise EagletraceError(message) from None
    return params


def _note_missing(run: Run, file: SqlFile) -> None:
    """Say which tables of the query the run does not have, so that an empty answer is not taken for a fact."""
    for name in file.words("needs"):
        if not run.rows(f"SELECT 1 FROM {name} LIMIT 1"):
            print(f"eagletrace: note: the run has no rows in {name}", file=sys.stderr)


def _check_output(options: argparse.Namespace) -> None:
    if options.format == "parquet" and options.output is None and sys.stdout.isatty():
        raise EagletraceError("--format parquet writes binary data: add -o FILE or redirect the output")


def _write(result: QueryResult, form: str, output: Path | None) -> None:
    try:
        if form == "parquet":
            _write_parquet(result, output)
        elif output is None:
            if form == "csv" and isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")  # data, whatever the terminal speaks
            _write_text(result, form, sys.stdout)
        else:
            with output.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                _write_text(result, form, file)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EagletraceError(f"cannot write {output or 'the output'}: {error.strerror or error}") from None


def _write_parquet(result: QueryResult, output: Path | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if output is None:
            pq.write_table(result.table, sys.stdout.buffer)
        else:
            data = io.BytesIO()  # pyarrow removes a path that it cannot write to, whatever stood there before
            pq.write_table(result.table, data)
            output.write_bytes(data.getbuffer())
    except pa.ArrowNotImplementedError as error:
        what = str(error).splitlines()[0]
        raise EagletraceError(f"Parquet has no such column; cast it to VARCHAR in the query ({what})") from None


def _write_text(result: QueryResult, form: str, file: TextIO) -> None:
    from eagletrace.report.tables import print_rows

    if form == "json":
        print_json({"columns": result.columns, "rows": result.rows()}, file)
    elif form == "csv":
        writer = csv.writer(file)
        writer.writerow(result.columns)
        for part in result.parts():
            writer.writerows([_cell(row[c]) for c in result.columns] for row in part.rows())
    else:
        print_rows(result.rows(), columns=result.columns, file=file)


def _cell(value: Any) -> Any:
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
