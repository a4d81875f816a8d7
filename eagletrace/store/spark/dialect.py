"""Reads DuckDB's SQL into sqlglot's trees, with the macros of `queries/views` and the parameters put in.

Spark has no macros: a scalar macro becomes its expression in parentheses, a table macro a subquery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError

from eagletrace.store.run import QueryError
from eagletrace.store.sqlfile import SqlFile

MAX_EXPANSIONS = 10_000  # a macro that names itself would never end


def _anonymous(name: str) -> Any:
    return lambda args: exp.Anonymous(this=name, expressions=args)  # pyright: ignore[reportUnknownLambdaType]


class Dialect(DuckDB):
    """DuckDB's dialect; `row` may be a column, and functions that differ by what they are given keep their names."""

    class Tokenizer(DuckDB.Tokenizer):
        """`row` is a plain word."""

        KEYWORDS = {word: token for word, token in DuckDB.Tokenizer.KEYWORDS.items() if word != "ROW"}  # noqa: RUF012

    class Parser(DuckDB.Parser):
        """`json_object('value', value)` has no keywords; `len` is of lists and `length` of text."""

        FUNCTION_PARSERS = {n: p for n, p in DuckDB.Parser.FUNCTION_PARSERS.items() if n != "JSON_OBJECT"}  # noqa: RUF012
        FUNCTIONS = {  # noqa: RUF012
            **DuckDB.Parser.FUNCTIONS, "LEN": _anonymous("len"), "JSON_OBJECT": _anonymous("json_object"),
        }  # fmt: skip


@dataclass(frozen=True)
class Macro:
    """A macro: names of its parameters and its tree, a query where it is a table macro."""

    name: str
    parameters: tuple[str, ...]
    body: exp.Expr


def parse(sql: str) -> exp.Expr:
    """The tree of one statement; QueryError where sqlglot cannot read it."""
    try:
        return sqlglot.parse_one(sql, read=Dialect)
    except SqlglotError as error:
        raise QueryError(f"sqlglot cannot read this SQL, which Spark needs: {str(error).splitlines()[0]}") from None


def macros(files: Mapping[str, SqlFile]) -> dict[str, Macro]:
    """The macros among view files, by name."""
    found: dict[str, Macro] = {}
    for name, file in files.items():
        if file.meta.get("kind") == "macro":
            tree = parse(f"CREATE MACRO {name} {file.sql}")
            parameters = tuple(p.name.lower() for p in tree.this.expressions)
            found[name] = Macro(name, parameters, tree.expression)
    return found


def bind(tree: exp.Expr, params: Mapping[str, Any]) -> exp.Expr:
    """Put values in place of `$name`; QueryError for one that has none."""
    for node in list(tree.find_all(exp.Placeholder, exp.Parameter)):
        name = node.name
        if name not in params:
            raise QueryError(f"the parameter ${name} has no value: add --param {name}=VALUE")
        node.replace(exp.convert(params[name]))
    return tree


def expand(tree: exp.Expr, known: Mapping[str, Macro]) -> exp.Expr:
    """Put macros in place of their calls, until none is left."""
    for _ in range(MAX_EXPANSIONS):
        call = next((n for n in tree.find_all(exp.Anonymous) if n.name.lower() in known), None)
        if call is None:
            return tree
        macro = known[call.name.lower()]
        if len(call.expressions) != len(macro.parameters):
            raise QueryError(f"{macro.name} takes {len(macro.parameters)} arguments, not {len(call.expressions)}")
        body = _filled(macro, dict(zip(macro.parameters, call.expressions, strict=True)))
        if isinstance(call.parent, exp.Table):
            _put_table(call.parent, body)
        else:
            call.replace(exp.Subquery(this=body) if isinstance(body, exp.Query) else exp.Paren(this=body))
    raise QueryError("a macro names itself")


def _filled(macro: Macro, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """The macro's tree with arguments in place of its parameters, all at once."""
    body = exp.Paren(this=macro.body.copy())
    for column in list(body.find_all(exp.Column)):
        if not column.table and column.name.lower() in values:
            value = values[column.name.lower()].copy()
            column.replace(value if isinstance(value, exp.Literal | exp.Array | exp.Boolean) else exp.Paren(this=value))
    return body.this.unnest() if isinstance(body.this, exp.Subquery) else body.this


def _put_table(table: exp.Table, query: exp.Expr) -> None:
    """Replace a call in FROM by a subquery that keeps its alias and joins."""
    alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(f"_{table.name or 'macro'}"))
    subquery = exp.Subquery(this=query, alias=alias.copy())
    if joins := table.args.get("joins"):
        subquery.set("joins", [join.copy() for join in joins])
    table.replace(subquery)
