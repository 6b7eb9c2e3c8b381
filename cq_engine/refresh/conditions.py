"""Which rows a WHERE condition can keep, told by the driver without Spark: of conditions that compare a column with
constants. Of others it says nothing, so that at least the rows that Spark would keep remain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.core.capabilities import Use, can
from cq_engine.core.types import spark_type
from cq_engine.evaluation.comparisons import COMPARISONS

__all__ = ["is_compared", "possible"]

Columns = Mapping[str, pa.ChunkedArray]
"""The columns that may be compared (`is_compared`), by the names that conditions have for them."""

_COMPARED = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.StringType, t.DateType)

_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}


def is_compared(kind: str) -> bool:
    """Does the driver compare columns of the Spark type `kind` with constants?

    >>> is_compared("int"), is_compared("interval month"), is_compared("string collate UTF8_LCASE")
    (True, False, False)
    """
    return isinstance(spark_type(kind), _COMPARED) and can(kind, Use.ORDERED)


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
    if type(condition) in COMPARISONS:
        return _compare(condition, columns)
    return None


def _sides(condition: exp.And | exp.Or, columns: Columns) -> list[pa.ChunkedArray | None]:
    return [possible(condition.left, columns), possible(condition.right, columns)]


def _compare(condition: exp.Expr, columns: Columns) -> pa.ChunkedArray | None:
    kind, left, right = type(condition), condition.this.unnest(), condition.expression.unnest()
    if isinstance(right, exp.Column):
        kind, left, right = _MIRRORED.get(kind, kind), right, left
    column = _column(left, columns)
    values = None if column is None else _constants([right], column.type)
    return None if values is None else COMPARISONS[kind](column, values[0])


def _in(condition: exp.In, columns: Columns) -> pa.ChunkedArray | None:
    column = _column(condition.this.unnest(), columns)
    if column is None or not condition.expressions:
        return None
    values = _constants([each.unnest() for each in condition.expressions], column.type)
    return None if values is None else reduce(pc.or_kleene, (pc.equal(column, value) for value in values))


def _column(expression: exp.Expr, columns: Columns) -> pa.ChunkedArray | None:
    plain = isinstance(expression, exp.Column) and not expression.table
    return columns.get(expression.name) if plain else None


# ------------------------------------------------------------------------------------------------ constants
#
# An allow list. Spark brings a column and the constants that it is compared with to one type: here are the spellings
# with which that type holds all values of the column and of the constants, so that nothing is rounded.

_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)")  # with an exponent it is a DOUBLE
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DIGITS = 38


def _constants(expressions: Sequence[exp.Expr], kind: pa.DataType) -> list[pa.Scalar] | None:
    """The constants that a column of this type is compared with; None where Spark might compare otherwise."""
    if pa.types.is_string(kind):
        texts = [each.this if _is_text(each) else None for each in expressions]
        return None if None in texts else [pa.scalar(text, kind) for text in texts]
    if pa.types.is_date32(kind):
        dates = [_date(each) for each in expressions]
        return None if None in dates else [pa.scalar(value, kind) for value in dates]
    numbers = [_number(each) for each in expressions]
    pattern = _DECIMAL if pa.types.is_decimal(kind) else _INTEGER
    known = [text for text in numbers if text is not None and pattern.fullmatch(text)]
    if len(known) < len(numbers):
        return None
    if pa.types.is_integer(kind):
        return [pa.scalar(int(text), pa.int64()) for text in known]
    if pa.types.is_decimal(kind) and _fits(kind, known):
        return [pa.scalar(Decimal(text)) for text in known]
    return None


def _fits(kind: pa.DataType, numbers: Iterable[str]) -> bool:
    """Is there a DECIMAL type that holds the column and the numbers?"""
    whole, scale = kind.precision - kind.scale, kind.scale
    for text in numbers:
        before, _, after = text.lstrip("-").partition(".")
        if _INTEGER.fullmatch(text):  # an INT, a BIGINT, or a DECIMAL of these digits
            whole = max(whole, 10 if len(before) < 10 else 20 if len(before) < 20 else len(before))
        else:
            whole, scale = max(whole, len(before)), max(scale, len(after))
    return bool(whole + scale <= _DIGITS)


def _number(expression: exp.Expr) -> str | None:
    """The text of a number as it is written, with its sign."""
    if isinstance(expression, exp.Neg):
        text = _number(expression.this)
        return None if text is None or text.startswith("-") else f"-{text}"
    is_number = isinstance(expression, exp.Literal) and not expression.is_string
    return str(expression.this) if is_number else None


def _date(expression: exp.Expr) -> date | None:
    """The day that DATE '...' or a CAST of text names."""
    if (
        not isinstance(expression, exp.Cast)
        or not expression.to.is_type("date")
        or not _is_text(expression.this)
    ):
        return None
    text = str(expression.this.this)
    return date.fromisoformat(text) if _DATE.fullmatch(text) else None


def _is_text(expression: exp.Expr) -> bool:
    """Is it a string literal that means the same to everyone?"""
    return isinstance(expression, exp.Literal) and bool(expression.is_string) and "\\" not in expression.this
