"""Which rows a WHERE condition can keep, told by the driver without Spark: of conditions that compare a column with
constants. Of others it says nothing, so that at least the rows that Spark would keep remain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

__all__ = ["possible"]

Columns = Mapping[str, pa.ChunkedArray]
"""The columns that may be compared, by the names that conditions have for them."""

_COMPARISONS: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}


def possible(condition: exp.Expr, columns: Columns) -> pa.ChunkedArray | None:
    """By row whether the condition may be TRUE (NULL: it is not); None where nothing is known of any row.

    >>> items = pa.chunked_array([["shoes", "hats", None]])
    >>> wanted = exp.EQ(this=exp.column("item_1"), expression=exp.Literal.string("shoes"))
    >>> possible(wanted, {"item_1": items}).to_pylist()
    [True, False, None]
    >>> possible(exp.func("f", exp.column("item_1")), {"item_1": items}) is None
    True
    """
    bare = condition.unnest()
    try:
        return _possible(bare, columns)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ArithmeticError, ValueError):
        return None  # a constant that the column's type does not have


def _possible(condition: exp.Expr, columns: Columns) -> pa.ChunkedArray | None:
    if isinstance(condition, exp.And):
        known = [each for each in _sides(condition, columns) if each is not None]
        return pc.and_kleene(*known) if len(known) == 2 else next(iter(known), None)
    if isinstance(condition, exp.Or):
        left, right = _sides(condition, columns)
        return None if left is None or right is None else pc.or_kleene(left, right)
    if isinstance(condition, exp.In):
        return _in(condition, columns)
    if type(condition) in _COMPARISONS:
        return _compared(condition, columns)
    return None


def _sides(condition: exp.And | exp.Or, columns: Columns) -> list[pa.ChunkedArray | None]:
    return [possible(condition.left, columns), possible(condition.right, columns)]


def _compared(condition: exp.Expr, columns: Columns) -> pa.ChunkedArray | None:
    kind, left, right = type(condition), condition.this.unnest(), condition.expression.unnest()
    if isinstance(right, exp.Column):
        kind, left, right = _MIRRORED.get(kind, kind), right, left
    column = columns.get(left.name) if isinstance(left, exp.Column) else None
    value = None if column is None else _constant(right, column.type)
    return None if value is None else _COMPARISONS[kind](column, value)


def _in(condition: exp.In, columns: Columns) -> pa.ChunkedArray | None:
    bare = condition.this.unnest()
    if not condition.expressions:
        return None
    equal = [_compared(exp.EQ(this=bare, expression=each), columns) for each in condition.expressions]
    known = [each for each in equal if each is not None]
    return reduce(pc.or_kleene, known) if len(known) == len(equal) else None


def _constant(expression: exp.Expr, kind: pa.DataType) -> pa.Scalar | None:
    """A constant that Spark compares with a column of this type as it stands; None for others."""
    if isinstance(expression, exp.Cast) and pa.types.is_date(kind) and expression.to.is_type("date"):
        text = expression.this
        return pa.scalar(date.fromisoformat(text.this), kind) if _is_text(text) else None
    if isinstance(expression, exp.Neg) and isinstance(expression.this, exp.Literal):
        value = _constant(expression.this, kind)
        return None if value is None or pa.types.is_string(kind) else pa.scalar(-value.as_py(), value.type)
    if pa.types.is_string(kind):
        return pa.scalar(expression.this, kind) if _is_text(expression) else None
    if not isinstance(expression, exp.Literal) or expression.is_string:
        return None
    if pa.types.is_integer(kind):
        return pa.scalar(int(expression.this), pa.int64())
    return pa.scalar(Decimal(expression.this)) if pa.types.is_decimal(kind) else None


def _is_text(expression: exp.Expr) -> bool:
    """Is it a string literal that means the same to everyone?"""
    return isinstance(expression, exp.Literal) and bool(expression.is_string) and "\\" not in expression.this
