"""Values as text, as DuckDB writes them: 0.0001 and inf where Spark writes 1.0E-4 and Infinity."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

_TEXT = (
    exp.Concat, exp.ConcatWs, exp.DPipe, exp.JSONExtractScalar, exp.GroupConcat, exp.ArrayToString, exp.Left,
    exp.Replace, exp.Upper, exp.Lower, exp.RegexpExtract, exp.RegexpReplace,
)  # fmt: skip
_TEXT_FUNCTIONS = ("concat_ws", "get_json_object", "array_join", "to_json")
_FRACTION = (exp.Round, exp.Div, exp.Sqrt, exp.Ln, exp.Avg)
_NUMBER = r"""CAST(TRANSFORM(ARRAY(CAST(:x AS STRING)), _t -> CASE
    WHEN _t = 'NaN' THEN 'nan' WHEN _t = 'Infinity' THEN 'inf' WHEN _t = '-Infinity' THEN '-inf'
    WHEN NOT CONTAINS(_t, 'E') THEN _t
    WHEN CAST(SUBSTRING_INDEX(_t, 'E', -1) AS INT) BETWEEN -4 AND 15
        THEN REGEXP_REPLACE(REGEXP_REPLACE(CAST(CAST(_t AS DECIMAL(38, 21)) AS STRING), '0+$', ''), '[.]$', '.0')
    ELSE CONCAT(REGEXP_REPLACE(SUBSTRING_INDEX(_t, 'E', 1), '[.]0$', ''), 'e', IF(CONTAINS(_t, 'E-'), '-', '+'),
                LPAD(REPLACE(SUBSTRING_INDEX(_t, 'E', -1), '-', ''),
                     GREATEST(2, LENGTH(REPLACE(SUBSTRING_INDEX(_t, 'E', -1), '-', ''))), '0')) END)[0] AS STRING)"""


def is_text(node: exp.Expr) -> bool:
    """Whether the tree says by itself that it gives text."""
    if isinstance(node, exp.Paren | exp.Filter):
        return is_text(node.this)
    if isinstance(node, exp.Subquery | exp.Select):
        return bool(node.selects) and is_text(node.selects[0].unalias())
    if isinstance(node, exp.Literal):
        return node.is_string
    if isinstance(node, exp.Cast):
        return node.to.this in (exp.DType.TEXT, exp.DType.VARCHAR)
    if isinstance(node, exp.Case):
        return any(is_text(branch.args["true"]) for branch in node.args["ifs"])
    if isinstance(node, exp.Coalesce):
        return is_text(node.this) or any(map(is_text, node.expressions))
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _TEXT_FUNCTIONS
    return isinstance(node, _TEXT)


def text(node: exp.Expr) -> exp.Expr:
    """The value as text; what is computed with fractions is written as DuckDB writes it, a column as Spark does."""
    if is_text(node):
        return node
    if node.find(exp.Select) or not node.find(*_FRACTION):
        return exp.Cast(this=node.copy(), to=exp.DataType.build("TEXT"))
    root = exp.Paren(this=sqlglot.parse_one(_NUMBER, read="spark"))
    for place in list(root.find_all(exp.Placeholder)):
        place.replace(node.copy())
    return root.this
