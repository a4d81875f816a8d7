"""The trace format: what a run on disk looks like. Writer, reader, README and tests all take it from here."""

from eagletrace.format.schema import SCHEMA_VERSION, TABLES, Column, Table, arrow_schema

__all__ = ["SCHEMA_VERSION", "TABLES", "Column", "Table", "arrow_schema"]
