"""Opens a run for reading: DuckDB views over the Parquet files."""

from eagletrace.store.folder import RunInfo, find_run, list_runs
from eagletrace.store.run import QueryError, QueryResult, Run, open_run

__all__ = ["QueryError", "QueryResult", "Run", "RunInfo", "find_run", "list_runs", "open_run"]
