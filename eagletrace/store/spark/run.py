"""A run on Spark: its tables as temporary views, the views of `queries/views` translated, queries in DuckDB's SQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from eagletrace.errors import EagletraceError
from eagletrace.format import TABLES
from eagletrace.format.schema import PROCESS_COLUMNS
from eagletrace.store.files import read_names
from eagletrace.store.run import QueryError, Run, check_select
from eagletrace.store.spark.selects import spark_name
from eagletrace.store.spark.translate import to_spark
from eagletrace.store.views import ALL_RANKS, names_in, needed, view_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

HINT = (
    "pip install 'eagletrace[spark]' and a Java runtime from version 17 "
    "(Debian: apt-get install openjdk-17-jre-headless)"
)
_TYPES = {
    "string": "STRING", "json": "STRING", "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT",
    "int64": "BIGINT", "float32": "FLOAT", "float64": "DOUBLE", "binary": "BINARY", "list<string>": "ARRAY<STRING>",
    "list<int64>": "ARRAY<BIGINT>",
}  # fmt: skip
HELD = frozenset({
    "all_requests", "aux_layers", "contract", "depth_rates", "draft_counts", "draft_params", "dropped_keys",
    "dropped_rows", "first_draft_entropy", "first_draft_tokens", "hooks", "late_from", "position_stats", "rank_facts",
    "rope_offsets", "round_counts", "round_kinds", "round_split_pairs", "round_splits", "rounds",
})  # fmt: skip
"""Views that many queries read, or that read others more than once."""
_SETTINGS = {
    "spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4", "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}  # fmt: skip


class SparkError(EagletraceError):
    """Spark is not installed, or does not start."""


def schema(table: str) -> StructType:
    """Spark's schema of a table: every column of this release, NULL where a file has none."""
    from pyspark.sql.types import StructType

    columns = (*PROCESS_COLUMNS, *TABLES[table].columns)
    return cast("StructType", StructType.fromDDL(", ".join(f"`{c.name}` {_TYPES[c.type]}" for c in columns)))


def local_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on this machine, or what `SPARK_CONF_DIR` says; SparkError where there is none.

    What the Java process writes to stderr goes into a file for as long as it runs.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkError(f"pyspark is not installed ({error}): {HINT}") from None
    if not has_java():
        raise SparkError(f"there is no Java, which Spark runs on: {HINT}")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = SparkSession.builder.appName("eagletrace")
    if "SPARK_CONF_DIR" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _stderr_into(log.fileno()), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as error:
            log.seek(0)
            said = [line for line in log.read().splitlines() if "Exception" in line or "rror" in line]
            what = (said or str(error).splitlines() or [type(error).__name__])[0]
            raise SparkError(f"Spark does not start ({what}): {HINT}") from None


@contextlib.contextmanager
def _stderr_into(file: int) -> Generator[None, None, None]:
    """Start processes with another stderr."""
    kept = os.dup(2)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def has_java() -> bool:
    """Whether there is a `java` that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None) is not None


class SparkRun:
    """One run in a session of its own, so that the temporary views of two runs do not meet.

    `paths` gives the Parquet files of each table, in any place that the session can read. Views of `HELD`, and parts of
    a query that are read more than once, are computed once and kept where Spark's executors keep data.
    """

    def __init__(self, session: SparkSession, paths: Mapping[str, list[str]]) -> None:
        self._session = session.newSession()
        self._paths = paths
        self._open: set[str] = set()
        for key, value in {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}.items():
            self._session.conf.set(key, value)

    def open(self, names: Iterable[str]) -> None:
        """Make temporary views of tables and views by name, with what they need."""
        tables, views = needed(names)
        for table in tables:
            self._name(spark_name(table), lambda table=table: self._table(table))
        files = view_files()
        for name in views:
            if name not in files:
                self._name(name, lambda name=name: self._sql(f"SELECT * FROM {ALL_RANKS}.{name}"))
            elif files[name].meta.get("kind") != "macro":
                self._name(name, lambda name=name: self._sql(files[name].sql), hold=name in HELD)

    def frame(self, sql: str, params: Mapping[str, Any] | None = None) -> DataFrame:
        """The rows of a SELECT in DuckDB's SQL, as a Spark DataFrame."""
        self.open(names_in(sql))
        return self._sql(sql, params)

    def _sql(self, sql: str, params: Mapping[str, Any] | None = None) -> DataFrame:
        translated = to_spark(sql, params)
        for name, step in translated.steps:
            self._name(name, lambda step=step: self._session.sql(step), hold=True)
        return self._session.sql(translated.sql)

    def _name(self, name: str, make: Callable[[], DataFrame], *, hold: bool = False) -> None:
        """Make a temporary view, once; where its rows are held they are computed when they are first read."""
        if name not in self._open:
            frame = make()
            (frame.localCheckpoint(eager=False) if hold else frame).createOrReplaceTempView(name)
            self._open.add(name)

    def arrow(self, sql: str, params: Mapping[str, Any] | None = None) -> pa.Table:
        """The rows of a SELECT in DuckDB's SQL; QueryError with what Spark says where it fails."""
        from pyspark.errors import PySparkException

        check_select(sql)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return self.frame(sql, params).toArrow()
        except PySparkException as error:
            raise QueryError(f"Spark does not run this query: {str(error).splitlines()[0]}") from None

    def _table(self, table: str) -> DataFrame:
        paths = self._paths.get(table) or []
        if not paths:
            return self._session.createDataFrame([], schema(table))
        return self._session.read.schema(schema(table)).parquet(*paths)


class LocalFiles:
    """Files of a run under plain names, which stay readable while a server merges them away: those that a query needs.

    Opening the tables fetches them where the run is in a data set. Use as a context manager.
    """

    def __init__(self, run: Run, sql: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="eagletrace-spark-", ignore_cleanup_errors=True)
        self.paths: dict[str, list[str]] = {}
        tables, _ = needed(names_in(sql))
        run.open(tables)
        for table in tables:
            self.paths[table] = []
            for number, name in enumerate(read_names(run.path, table)):
                place = Path(self._folder.name) / f"{table}-{number}.parquet"
                if _link(run.path / table / name, place):
                    self.paths[table].append(place.as_uri())

    def __enter__(self) -> LocalFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def _link(source: Path, place: Path) -> bool:
    """Name a file a second time, or copy it where that cannot be; False where it is no file of ours, or gone."""
    if source.is_symlink():
        return False
    try:
        place.hardlink_to(source)
    except FileNotFoundError:
        return False
    except OSError:  # another file system
        shutil.copyfile(source, place, follow_symlinks=False)
    try:
        pq.read_schema(place)
    except (OSError, pa.ArrowException):  # the run's warnings name it
        return False
    return True
