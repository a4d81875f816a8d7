"""What sqlglot's translation from DuckDB to Spark leaves open: the same word with another meaning.

DuckDB's `concat` passes NULL over; it counts lists from 1, divides by zero to infinity, rounds when it casts to
integers and writes 0.0001 where Spark writes 1.0E-4. Each rule rewrites one kind of node, its children first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import sqlglot
from sqlglot import exp

from eagletrace.store.run import QueryError
from eagletrace.store.spark import selects
from eagletrace.store.spark.text import text

Node = TypeVar("Node", bound=exp.Expr)
Rule = Callable[[Any], exp.Expr]
INTEGERS = (exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.INT128)
TEXTS = (exp.DType.TEXT, exp.DType.VARCHAR)
OPEN = (exp.Column, exp.Div, exp.Mul, exp.Add, exp.Sub, exp.Paren, exp.Pow, exp.Neg)  # may be a fraction


def call(name: str, *args: exp.Expr | str | int) -> exp.Anonymous:
    """A call of one of Spark's functions."""
    values = [a if isinstance(a, exp.Expr) else exp.convert(a) for a in args]
    return exp.Anonymous(this=name, expressions=values)


def template(sql: str, **parts: exp.Expr) -> exp.Expr:
    """A tree from Spark's SQL, with trees in place of `:name`."""
    tree = sqlglot.parse_one(sql, read="spark")
    root = exp.Paren(this=tree)
    for node in list(root.find_all(exp.Placeholder)):
        node.replace(parts[node.name].copy())
    return root.this


def rewrite(tree: exp.Expr) -> exp.Expr:
    """Apply all rules; the tree is changed, and may be another one afterwards."""
    root = exp.Paren(this=tree)
    for node in reversed(list(root.this.dfs())):
        rule = RULES.get(type(node)) or (FUNCTIONS.get(node.name.lower()) if isinstance(node, exp.Anonymous) else None)
        if rule is not None:
            made = rule(node)
            if made is not node:
                node.replace(made)
    return root.this


# -- numbers --------------------------------------------------------------------------------------


def _literal(node: exp.Literal) -> exp.Expr:
    """Spark's literals with a point are decimals, DuckDB's behave as doubles."""
    fraction = not node.is_string and any(c in node.name for c in ".eE") and not node.name.endswith("D")
    return exp.Literal(this=f"{node.name}D", is_string=False) if fraction else node


def _divide(node: exp.Div) -> exp.Expr:
    """By zero DuckDB gives infinity or NaN, Spark an error."""
    if _never_zero(node.expression):
        return node
    if node.find(exp.Select):  # no query may stand inside a higher-order function
        sql = "(CASE WHEN :b = 0 THEN :a * DOUBLE('Infinity') ELSE :a / :b END)"
        return template(sql, a=node.this, b=node.expression)
    sql = "TRANSFORM(ARRAY(STRUCT(:a AS a, :b AS b)), _d -> IF(_d.b = 0, _d.a * DOUBLE('Infinity'), _d.a / _d.b))[0]"
    return template(sql, a=node.this, b=node.expression)


def _never_zero(node: exp.Expr) -> bool:
    """Whether the divisor is surely NULL or another number than 0, or a count, which divides NULL where it is 0."""
    node = node.unnest()
    if isinstance(node, exp.Mul):
        return _never_zero(node.this) and _never_zero(node.expression)
    if isinstance(node, exp.Literal):
        return node.name.strip("0.D") != ""
    return isinstance(node, exp.Nullif | exp.Count)


def _round(node: exp.Round) -> exp.Expr:
    """DuckDB scales, rounds half away from zero and scales back; Spark rounds the decimal digits."""
    digits = node.args.get("decimals")
    if digits is None:
        return node
    scale = exp.Literal(this=f"1e{digits.name}D", is_string=False)
    return template("(ROUND(:x * :s) / :s)", x=exp.Paren(this=node.this), s=scale)


def _cast(node: exp.Cast) -> exp.Expr:
    kind, value, attempt = node.to.this, node.this, isinstance(node, exp.TryCast)
    if isinstance(value, exp.Explode):  # no generator may stand inside an expression
        inner = _cast(type(node)(this=exp.column("_v"), to=node.to.copy()))
        return exp.Explode(this=template("TRANSFORM(:list, _v -> :cast)", list=value.this, cast=inner))
    if kind in TEXTS:
        return text(value)
    if kind == exp.DType.JSON:
        return call("parse_json", value) if _is_value_of_object(node) else value
    if kind in (exp.DType.ARRAY, exp.DType.LIST):
        return _cast_list(node)
    if kind in INTEGERS:
        target = exp.DataType.build("BIGINT") if kind == exp.DType.INT128 else node.to
        whole: exp.Expr = type(node)(this=value.copy(), to=target.copy())
        if not isinstance(value, OPEN):
            return whole
        rounded = exp.Cast(this=call("rint", type(node)(this=value, to=exp.DataType.build("DOUBLE"))), to=target)
        if attempt:
            rounded = exp.TryCast(this=rounded.this, to=target)
        return template(
            "(CASE WHEN TYPEOF(:x) IN ('double', 'float') THEN :rounded ELSE :whole END)",
            x=value, rounded=rounded, whole=whole,
        )  # fmt: skip
    return node


def _cast_list(node: exp.Cast) -> exp.Expr:
    """Text is read as JSON; the elements of a list are cast one by one, and one that cannot be is NULL."""
    element = node.to.expressions[0] if node.to.expressions else exp.DataType.build("BIGINT")
    if isinstance(node.this, exp.Split):
        return node
    return call("from_json", node.this, f"array<{element.sql('spark').lower()}>")


# -- text and JSON --------------------------------------------------------------------------------


def _concat(node: exp.Concat) -> exp.Expr:
    """DuckDB's passes NULL over."""
    return call("concat_ws", "", *map(text, node.expressions))


def _concat_ws(node: exp.ConcatWs) -> exp.Expr:
    return call("concat_ws", *map(text, node.expressions))


def _pipe(node: exp.DPipe) -> exp.Expr:
    node.set("this", text(node.this))
    node.set("expression", text(node.expression))
    return node


def _json_text(node: exp.JSONExtractScalar | exp.JSONExtract) -> exp.Expr:
    """`->>` with a path, or with a key that stands in a column."""
    path = node.expression
    if isinstance(path, exp.JSONPath):
        return call("get_json_object", node.this, _path(path))
    if isinstance(path, exp.Literal):
        return call("get_json_object", node.this, path.name if path.name.startswith("$") else f"$['{path.name}']")
    for literal in path.find_all(exp.Literal):  # '$."' || key || '"'
        literal.set("this", literal.name.replace('$."', "$['").replace('"', "']"))
    made = any("$" in literal.name for literal in path.find_all(exp.Literal))
    return call("get_json_object", node.this, path if made else template("CONCAT('$[\\'', :p, '\\']')", p=path))


def _path(path: exp.JSONPath) -> str:
    parts: list[str] = []
    for part in path.expressions:
        if isinstance(part, exp.JSONPathKey):
            parts.append(f"['{part.name}']")
        elif isinstance(part, exp.JSONPathSubscript):
            parts.append(f"[{part.this}]")
        elif not isinstance(part, exp.JSONPathRoot):
            raise QueryError(f"Spark has no path like {path.sql('duckdb')}")
    return "$" + "".join(parts)


def _json_type(node: exp.JSONType) -> exp.Expr:
    return template(
        "(CASE WHEN :x IS NOT NULL THEN CASE LEFT(LTRIM(:x), 1) WHEN '{' THEN 'OBJECT' WHEN '[' THEN 'ARRAY'"
        " WHEN '\"' THEN 'VARCHAR' WHEN 'n' THEN 'NULL' WHEN 't' THEN 'BOOLEAN' WHEN 'f' THEN 'BOOLEAN'"
        " ELSE 'NUMBER' END END)", x=node.this)  # fmt: skip


def _is_value_of_object(node: exp.Expr) -> bool:
    """Whether the value goes into a JSON object as it is, not as a text."""
    above = node.parent
    while isinstance(above, exp.Case | exp.If | exp.Coalesce | exp.Paren):
        above = above.parent
    return isinstance(above, exp.Anonymous) and above.name.lower() == "json_object"


def _json_keys(node: exp.JSONKeys) -> exp.Expr:
    return template("IF(:x IS NULL, NULL, COALESCE(JSON_OBJECT_KEYS(:x), ARRAY()))", x=node.this)


def _json_object(node: exp.Anonymous) -> exp.Expr:
    """One JSON text, NULL values included."""
    empty = call("map", "ignoreNullFields", "false")
    return call("to_json", call("named_struct", *node.expressions), empty) if node.expressions else exp.convert("{}")


def _json(node: exp.ParseJSON) -> exp.Expr:
    return call("to_json", call("parse_json", node.this))


# -- lists ----------------------------------------------------------------------------------------


def _length(node: exp.Length) -> exp.Expr:
    return exp.Length(this=text(node.this))


def _bracket(node: exp.Bracket) -> exp.Expr:
    """An element by its number from 1 or from the end, NULL outside; the first elements."""
    index = node.expressions[0]
    if isinstance(index, exp.Slice):
        if index.this is not None and index.this != exp.Literal.number(1):
            raise QueryError("Spark takes of a list only its first elements, as in x[:3] or x[1:3]")
        return call("slice", node.this, 1, index.expression)
    if isinstance(index, exp.Literal) and index.is_string:
        return node
    value = -int(index.this.name) if isinstance(index, exp.Neg) else int(index.name) if index.name.isdigit() else None
    number = exp.convert(value + 1) if value is not None else exp.Add(this=index.copy(), expression=exp.convert(1))
    return call("try_element_at", node.this, number)


def _range(node: exp.GenerateSeries) -> exp.Expr:
    """Spark's `sequence` runs backwards where DuckDB's `range` is empty; its end was made inclusive by sqlglot."""
    end = node.args["end"]
    stop: exp.Expr = exp.Sub(this=exp.Paren(this=end.copy()), expression=exp.convert(1))
    if not node.args.get("is_end_exclusive"):
        stop = end
    sql = "IF(:e >= :s, SEQUENCE(CAST(:s AS BIGINT), CAST(:e AS BIGINT)), CAST(ARRAY() AS ARRAY<BIGINT>))"
    return template(sql, s=node.args["start"], e=stop)


def _list(node: exp.ArrayAgg) -> exp.Expr:
    return node if isinstance(node.parent, exp.Filter) else selects.list_of(node, None)


def _filter(node: exp.Filter) -> exp.Expr:
    if isinstance(node.this, exp.ArrayAgg):
        return selects.list_of(node.this, node.expression)
    if isinstance(node.parent, exp.Window):
        return selects.filtered_window(node)
    return node


def _extreme(node: exp.ArgMax | exp.ArgMin) -> exp.Expr:
    """DuckDB's passes over rows without the value."""
    there = exp.Not(this=exp.Is(this=exp.Paren(this=node.this.copy()), expression=exp.Null()))
    if isinstance(node.parent, exp.Filter):
        where = node.parent.expression
        where.set("this", exp.and_(where.this.copy(), there))
        return node
    name = "max_by" if isinstance(node, exp.ArgMax) else "min_by"
    return exp.Filter(this=call(name, node.this, node.expression), expression=exp.Where(this=there))


def _join_text(node: exp.GroupConcat) -> exp.Expr:
    value = node.this
    if isinstance(value, exp.Order):
        value.set("this", text(value.this))
    else:
        node.set("this", text(value))
    return node


def _hash(node: exp.Anonymous) -> exp.Expr:
    """Spark's hash passes NULL over, so that it is told apart first."""
    return call("xxhash64", *(part for x in node.expressions for part in
                              (exp.Is(this=exp.Paren(this=x.copy()), expression=exp.Null()), x)))  # fmt: skip


RULES: dict[type[exp.Expr], Rule] = {
    exp.Literal: _literal, exp.Div: _divide, exp.Round: _round, exp.Cast: _cast, exp.TryCast: _cast,
    exp.Concat: _concat, exp.ConcatWs: _concat_ws, exp.DPipe: _pipe, exp.JSONExtractScalar: _json_text,
    exp.JSONExtract: _json_text, exp.JSONType: _json_type, exp.JSONKeys: _json_keys, exp.ParseJSON: _json,
    exp.Length: _length, exp.Bracket: _bracket, exp.GenerateSeries: _range, exp.ArrayAgg: _list, exp.Filter: _filter,
    exp.ArgMax: _extreme, exp.ArgMin: _extreme, exp.GroupConcat: _join_text,
    exp.IsNan: lambda node: template("(CASE WHEN :x IS NOT NULL THEN ISNAN(:x) END)", x=node.this),
    exp.ArraySort: lambda node: call("array_sort", node.this),
    exp.ArrayToString: lambda node: call("array_join", node.this, node.expression),
    exp.ArrayDistinct: lambda node: template("ARRAY_DISTINCT(FILTER(:x, _v -> _v IS NOT NULL))", x=node.this),
    exp.PercentileCont: lambda node: call("percentile", node.this, node.expression),
    exp.UnixToTime: lambda node: template("CAST(TIMESTAMP_MICROS(:x) AS TIMESTAMP_NTZ)", x=node.this),
    exp.Exists: selects.exists, exp.Unnest: selects.unnest, exp.Select: selects.select, exp.Window: selects.window,
    exp.Table: selects.table,
}  # fmt: skip
FUNCTIONS: dict[str, Rule] = {
    "len": lambda node: call("size", *node.expressions),
    "json_object": _json_object,
    "hash": _hash,
    "isfinite": lambda n: template("(NOT ISNAN(:x) AND ABS(:x) < DOUBLE('Infinity'))", x=n.expressions[0]),
    "list_intersect": lambda node: call("array_intersect", *node.expressions),
    "list_bool_or": lambda node: template("EXISTS(:x, _v -> _v)", x=node.expressions[0]),
}
