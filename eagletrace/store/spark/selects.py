"""Rules of whole queries and their sources: lists that become rows, windows, EXISTS, and the names of tables."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from eagletrace.store.views import ALL_RANKS

HIGHER_ORDER = ("transform", "filter", "exists", "array_sort")


def spark_name(table: str) -> str:
    """The temporary view that holds every rank's rows of a table."""
    return f"{ALL_RANKS}__{table}"


def table(node: exp.Table) -> exp.Expr:
    """`all_ranks.rounds` is one temporary view, as these have no schemas; `json_each(x)` gives rows."""
    if node.db.lower() == ALL_RANKS:
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name))
        made = exp.Table(this=exp.to_identifier(spark_name(node.name.lower())), alias=alias.copy())
        for key in ("joins", "laterals"):
            if node.args.get(key):
                made.set(key, [part.copy() for part in node.args[key]])
        return made
    if isinstance(node.this, exp.Anonymous) and node.this.name.lower() == "json_each":
        entries = exp.Anonymous(
            this="from_json", expressions=[node.this.expressions[0].copy(), exp.convert("map<string,string>")]
        )
        return _lateral(entries, exp.TableAlias(this=exp.to_identifier(node.alias), columns=["key", "value"]))
    return node


def unnest(node: exp.Unnest) -> exp.Expr:
    """A list of the row before it, as rows."""
    return _lateral(node.expressions[0].copy(), node.args["alias"].copy())


def _lateral(rows: exp.Expr, alias: exp.TableAlias) -> exp.Expr:
    columns = [exp.to_identifier(c.name if isinstance(c, exp.Expr) else c) for c in alias.args["columns"]]
    named = exp.TableAlias(this=alias.this, columns=columns)
    return exp.Lateral(this=exp.Anonymous(this="explode", expressions=[rows]), alias=named)


def exists(node: exp.Exists) -> exp.Expr:
    """Spark allows EXISTS in WHERE alone; a count may stand anywhere."""
    inner = exp.Subquery(this=node.this.unnest().copy(), alias=exp.TableAlias(this=exp.to_identifier("_e")))
    limited = exp.select("1").from_(inner).limit(1)
    count = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.convert(0))
    rows = exp.Subquery(this=limited, alias=exp.TableAlias(this=exp.to_identifier("_x")))
    return exp.Subquery(this=exp.Select(expressions=[count]).from_(rows))


def window(node: exp.Window) -> exp.Expr:
    """Spark numbers rows only in an order; any will do where none was asked for, and it must be the same each time."""
    if isinstance(node.this, exp.RowNumber) and not node.args.get("order") and not node.args.get("alias"):
        whole_row = exp.Anonymous(this="struct", expressions=[exp.Star()])
        node.set("order", exp.Order(expressions=[exp.Ordered(this=whole_row)]))
    return node


def filtered_window(node: exp.Filter) -> exp.Expr:
    """FILTER of an aggregate over a window, which Spark does not have, as CASE."""
    aggregate = node.this
    value = exp.convert(1) if isinstance(aggregate.this, exp.Star) else aggregate.this
    aggregate.set("this", exp.Case(ifs=[exp.If(this=node.expression.this, true=value)]))
    return aggregate


def list_of(node: exp.ArrayAgg, where: exp.Expr | None) -> exp.Expr:
    """`list(x ORDER BY y)`: NULL elements stay, and no rows give NULL."""
    value, order, distinct = node.this, list[exp.Expr](), False
    if isinstance(value, exp.Order):
        value, order = value.this, [o.this for o in value.expressions]
    if isinstance(value, exp.Distinct):
        value, distinct = value.expressions[0], True
    parts = [p for n, o in enumerate(order) for p in (exp.convert(f"o{n}"), o.copy())]
    row = exp.Anonymous(this="named_struct", expressions=[*parts, exp.convert("x"), value.copy()])
    rows: exp.Expr = exp.Anonymous(this="collect_set" if distinct else "collect_list", expressions=[row])
    if where is not None:
        rows = exp.Filter(this=rows, expression=where.copy())
    tree = sqlglot.parse_one("IF(SIZE(:rows) > 0, TRANSFORM(:sorted, _r -> _r.x), NULL)", read="spark")
    root = exp.Paren(this=tree)
    for place in list(root.find_all(exp.Placeholder)):
        wanted = exp.Anonymous(this="array_sort", expressions=[rows.copy()]) if order else rows
        place.replace(wanted.copy() if place.name == "sorted" else rows.copy())
    return root.this


def select(node: exp.Select) -> exp.Expr:
    """Named windows are written out; lists that become rows side by side are zipped, or made outside of a group."""
    _write_out_windows(node)
    _hoist(node)
    lists = [p for p in node.expressions if isinstance(p.unalias(), exp.Explode)]
    if len(lists) > 1:
        return _zipped(node, lists)
    grouped = node.args.get("group") or node.args.get("having")
    return _outside(node, lists[0]) if lists and grouped else node


def _write_out_windows(node: exp.Select) -> None:
    named = {w.this.name: w for w in node.args.get("windows") or ()}
    for use in list(node.find_all(exp.Window)):
        if use.args.get("alias") and use.args["alias"].name in named:
            found = named[use.args["alias"].name]
            use.set("alias", None)
            for key in ("partition_by", "order", "spec"):
                value = found.args.get(key)
                use.set(key, [v.copy() for v in value] if isinstance(value, list) else value and value.copy())
    node.set("windows", None)


def _hoist(node: exp.Select) -> None:
    """Spark has no subquery anywhere in a higher-order function: it is made beside the sources, and named there."""
    found: list[exp.Subquery] = []
    for part in node.expressions:
        found.extend(query for query in part.find_all(exp.Subquery) if _in_higher_order(query, node))
    if not found:
        return
    made = exp.Select(expressions=[exp.alias_(query.copy(), f"_q{n}") for n, query in enumerate(found)])
    source = exp.Subquery(this=made, alias=exp.TableAlias(this=exp.to_identifier("_h")))
    for n, query in enumerate(found):
        query.replace(exp.column(f"_q{n}", "_h"))
    if node.args.get("from_"):
        node.append("joins", exp.Join(this=source))
    else:
        node.set("from_", exp.From(this=source))


def _in_higher_order(query: exp.Expr, top: exp.Expr) -> bool:
    above = query.parent
    while above is not None and above is not top:
        if isinstance(above, exp.Transform | exp.ArrayFilter):
            return True
        if isinstance(above, exp.Anonymous) and above.name.lower() in HIGHER_ORDER:
            return True
        above = None if isinstance(above, exp.Select) else above.parent
    return False


def _zipped(node: exp.Select, lists: list[exp.Expr]) -> exp.Expr:
    """`SELECT unnest(a) AS x, unnest(b) AS y FROM t`: rows of both together."""
    names = [p.alias for p in lists]
    arrays = [p.unalias().this.copy() for p in lists]
    zipped = exp.Anonymous(this="inline", expressions=[exp.Anonymous(this="arrays_zip", expressions=arrays)])
    alias = exp.TableAlias(this=exp.to_identifier("_z"), columns=[exp.to_identifier(n) for n in names])
    for part in lists:
        part.replace(exp.alias_(exp.column(part.alias, "_z"), part.alias))
    node.append("joins", exp.Join(this=exp.Lateral(this=zipped, alias=alias)))
    return node


def _outside(node: exp.Select, rows: exp.Expr) -> exp.Expr:
    """The list is made in a subquery with its groups, and becomes rows around it."""
    name = rows.alias or "unnest"
    rows.replace(exp.alias_(rows.unalias().this.copy(), name))
    others = [p.alias_or_name for p in node.expressions if p.alias_or_name != name]
    inner = exp.Subquery(this=node.copy(), alias=exp.TableAlias(this=exp.to_identifier("_g")))
    explode = exp.alias_(exp.Explode(this=exp.column(name)), name)
    return exp.Select(expressions=[*map(exp.column, others), explode]).from_(inner)
