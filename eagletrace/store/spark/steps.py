"""Parts of a query that are read more than once, as steps of their own, computed once.

DuckDB computes such a part once; Spark would put its plan in place of each mention, and plans of plans grow beyond what
its optimizer can do. A step is named by what it computes, so that equal ones of several queries are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from sqlglot import exp

Step = tuple[str, str]
Write = Callable[[exp.Expr], str]


def split(tree: exp.Expr, write: Write) -> tuple[list[Step], exp.Expr]:
    """Steps (name, Spark's SQL) in the order in which they must be computed, and what is left of the tree."""
    root = exp.Paren(this=tree)
    steps: list[Step] = []
    withs = [w for w in root.find_all(exp.With) if not _inside_expression(w)]
    for found in reversed(withs):  # inner ones first
        _take(found, write, steps)
    return steps, root.this


def _take(found: exp.With, write: Write, steps: list[Step]) -> None:
    query = found.parent
    if query is None:
        return
    for cte in list(found.expressions):
        uses = _uses(query, cte)
        # A step may name only steps: what stays in the query is not seen from outside.
        closed = not any(_names(cte.this, other.alias) for other in found.expressions if other is not cte)
        if len(uses) < 2 or not closed:
            continue
        sql = write(cte.this.copy())
        name = f"_step_{hashlib.sha256(sql.encode()).hexdigest()[:16]}"
        for table in uses:
            if not table.args.get("alias"):
                table.set("alias", exp.TableAlias(this=exp.to_identifier(cte.alias)))
            table.set("this", exp.to_identifier(name))
        if name not in [done for done, _ in steps]:
            steps.append((name, sql))
        found.expressions.remove(cte)
    if not found.expressions:
        query.set("with_", None)


def _uses(query: exp.Expr, cte: exp.CTE) -> list[exp.Table]:
    """Where the query names the part, unless a query inside has another part of that name."""
    return [t for t in _tables(query, cte.alias) if not _within(t, cte)]


def _names(tree: exp.Expr, name: str) -> bool:
    return bool(_tables(tree, name))


def _tables(tree: exp.Expr, name: str) -> list[exp.Table]:
    return [
        t for t in tree.find_all(exp.Table)
        if not t.db and t.name.lower() == name.lower() and not _hidden(t, name, tree)
    ]  # fmt: skip


def _hidden(table: exp.Table, name: str, top: exp.Expr) -> bool:
    above = table.parent
    while above is not None and above is not top:
        inner = above.args.get("with_")
        if inner is not None and any(c.alias.lower() == name.lower() for c in inner.expressions):
            return True
        above = above.parent
    return False


def _within(node: exp.Expr, top: exp.Expr) -> bool:
    above: exp.Expr | None = node
    while above is not None and above is not top:
        above = above.parent
    return above is top


def _inside_expression(found: exp.With) -> bool:
    """Whether the query is a value, which may use columns of the query around it."""
    above = found.parent.parent if found.parent else None
    while above is not None:
        if isinstance(above, exp.Exists | exp.In):
            return True
        if isinstance(above, exp.Subquery) and not isinstance(above.parent, exp.From | exp.Join):
            return above.parent is not None and not isinstance(above.parent, exp.Paren | exp.CTE)
        above = above.parent
    return False
