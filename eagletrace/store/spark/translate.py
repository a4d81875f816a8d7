"""DuckDB's SQL as Spark's: read, macros and parameters put in, rules applied, written by sqlglot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from eagletrace.store.run import QueryError
from eagletrace.store.spark.dialect import Macro, bind, expand, macros, parse
from eagletrace.store.spark.rules import rewrite
from eagletrace.store.spark.steps import Step, split
from eagletrace.store.views import view_files


class Writer(Spark):
    """Spark's dialect as its release 4 has it: QUALIFY stays, and what is left of lists was rewritten before."""

    class Generator(Spark.Generator):
        """Writes a query as it stands."""

        EXPRESSIONS_WITHOUT_NESTED_CTES = set()  # noqa: RUF012
        TRANSFORMS = {kind: how for kind, how in Spark.Generator.TRANSFORMS.items() if kind is not exp.Select}  # noqa: RUF012


@cache
def _macros() -> Mapping[str, Macro]:
    return macros(view_files())


@dataclass(frozen=True)
class Translated:
    """A statement in Spark's SQL, and the steps that it reads, each with its name and SQL."""

    steps: tuple[Step, ...]
    sql: str


def to_spark(sql: str, params: Mapping[str, Any] | None = None) -> Translated:
    """The statement in Spark's SQL; QueryError where it cannot be read or has no counterpart."""
    return _translated(sql, tuple((params or {}).items()))


@cache
def _translated(sql: str, params: tuple[tuple[str, Any], ...]) -> Translated:
    try:
        steps, tree = split(bind(expand(parse(sql), _macros()), dict(params)), _write)
        return Translated(tuple(steps), _write(tree))
    except SqlglotError as error:
        raise QueryError(f"this SQL has no translation for Spark: {str(error).splitlines()[0]}") from None


def _write(tree: exp.Expr) -> str:
    return rewrite(tree).sql(dialect=Writer, identify=True)
