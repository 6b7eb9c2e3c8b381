"""Expressions over columns in memory: those of which Arrow's result is Spark's. An allow list: `UnsupportedError` says
what is not in it.

Arithmetic that overflows raises TooLargeError; Spark, which then evaluates the statement, says what it says.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from functools import reduce, singledispatch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.core.capabilities import Use, can
from cq_engine.core.types import spark_type
from cq_engine.evaluation.vectors import (
    INTEGERS,
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    checked,
    common_type,
    concat,
    constant,
    is_number,
    rescale,
    retype,
    scale_of,
)

__all__ = ["evaluate", "truth"]

_INT = 2**31
_LONG = 2**63
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DECIMAL = re.compile(r"(\d+)\.(\d+)")


def truth(condition: exp.Expr, rows: Rows) -> pa.BooleanArray:
    """For which rows the condition is true, and neither false nor NULL. Raises UnsupportedError, TooLargeError."""
    return pc.fill_null(_boolean(evaluate(condition, rows)), False)


@singledispatch
def evaluate(expression: exp.Expr, rows: Rows) -> Vector:  # noqa: ARG001 - registered functions read it
    """The expression's values, with the type that Spark gives it. Raises UnsupportedError, TooLargeError."""
    raise UnsupportedError(f"{type(expression).__name__}: {expression}")


@evaluate.register(exp.Column)
def _column(expression: exp.Column, rows: Rows) -> Vector:
    return rows[expression.name]


@evaluate.register(exp.Paren)
def _paren(expression: exp.Paren, rows: Rows) -> Vector:
    return evaluate(expression.this, rows)


# ------------------------------------------------------------------------------------------------ constants


@evaluate.register(exp.Literal)
def _literal(expression: exp.Literal, rows: Rows) -> Vector:
    text = str(expression.this)
    if expression.is_string:
        return constant(text, t.StringType(), rows.count)
    if text.isdigit() and int(text) < _LONG:
        return constant(int(text), t.IntegerType() if int(text) < _INT else t.LongType(), rows.count)
    found = _DECIMAL.fullmatch(text)
    digits = "" if found is None else (found[1] + found[2]).lstrip("0")
    if found is None or len(digits) > 18:
        raise UnsupportedError(f"the number {text}")
    kind = t.DecimalType(max(len(digits), len(found[2])), len(found[2]))
    return constant(int(digits or "0"), kind, rows.count)


@evaluate.register(exp.Boolean)
def _truth_value(expression: exp.Boolean, rows: Rows) -> Vector:
    return constant(bool(expression.this), t.BooleanType(), rows.count)


@evaluate.register(exp.Null)
def _null(expression: exp.Null, rows: Rows) -> Vector:  # noqa: ARG001 - called by its kind
    return Vector(t.NullType(), pa.nulls(rows.count))


# ------------------------------------------------------------------------------------------------ numbers


@evaluate.register(exp.Neg)
def _negative(expression: exp.Neg, rows: Rows) -> Vector:
    vector = evaluate(expression.this, rows)
    if not is_number(vector.type):
        raise UnsupportedError(f"- of {vector.type.simpleString()}")
    return _within(vector.type, checked(pc.negate_checked, vector.values))


@evaluate.register(exp.Add)
@evaluate.register(exp.Sub)
@evaluate.register(exp.Mul)
def _arithmetic(expression: exp.Binary, rows: Rows) -> Vector:
    left, right = evaluate(expression.this, rows), evaluate(expression.expression, rows)
    kind = common_type((left.type, right.type))
    if isinstance(kind, t.DoubleType):
        plain = {exp.Add: pc.add, exp.Sub: pc.subtract, exp.Mul: pc.multiply}
        return Vector(kind, plain[type(expression)](*(retype(each, kind).values for each in (left, right))))
    if type(kind) not in INTEGERS:
        raise UnsupportedError(f"arithmetic of {kind.simpleString()}")
    function = {exp.Add: pc.add_checked, exp.Sub: pc.subtract_checked, exp.Mul: pc.multiply_checked}
    return _within(kind, checked(function[type(expression)], left.values, right.values))


@evaluate.register(exp.Div)
def _quotient(expression: exp.Div, rows: Rows) -> Vector:
    """A quotient of DOUBLE, as that of whole numbers is, too. Raises TooLargeError for a division by 0."""
    left, right = evaluate(expression.this, rows), evaluate(expression.expression, rows)
    kinds = (left.type, right.type)
    whole = all(type(kind) in INTEGERS for kind in kinds)
    if not whole and not isinstance(common_type(kinds), t.DoubleType):
        raise UnsupportedError(f"a quotient of {left.type.simpleString()} and {right.type.simpleString()}")
    divided, divisor = (retype(each, t.DoubleType()).values for each in (left, right))
    if pc.any(pc.equal(divisor, 0.0)).as_py():
        raise TooLargeError("a division by 0")
    return Vector(t.DoubleType(), pc.divide(divided, divisor))


def _within(kind: t.DataType, values: pa.Array) -> Vector:
    """Numbers that the type must hold. Raises TooLargeError."""
    bits = INTEGERS.get(type(kind), 64)
    if bits < 64 and len(values) > values.null_count:
        bounds = pc.min_max(values)
        if bounds["max"].as_py() >= 2 ** (bits - 1) or bounds["min"].as_py() < -(2 ** (bits - 1)):
            raise TooLargeError(kind.simpleString())
    return Vector(kind, values)


@evaluate.register(exp.Cast)
def _cast(expression: exp.Cast, rows: Rows) -> Vector:
    if type(expression) not in (exp.Cast, exp.TryCast) or expression.args.get("format"):
        raise UnsupportedError(str(expression))
    wanted = spark_type(expression.to.sql("spark"))
    if isinstance(wanted, t.DateType) and isinstance(expression.this, exp.Literal):
        return _date(expression.this, rows)
    vector = evaluate(expression.this, rows)
    if vector.type == wanted:
        return vector
    if isinstance(vector.type, t.NullType) or (isinstance(wanted, t.DoubleType) and is_number(vector.type)):
        return retype(vector, wanted)
    if not is_number(vector.type) or not is_number(wanted):
        raise UnsupportedError(f"{vector.type.simpleString()} cast to {wanted.simpleString()}")
    values = rescale(vector, scale_of(wanted))
    if isinstance(wanted, t.DecimalType):
        Vector(wanted, values).to_arrow(wanted.simpleString())  # whether it has room for the digits
        return Vector(wanted, values)
    return _within(wanted, values)


def _date(literal: exp.Literal, rows: Rows) -> Vector:
    text = str(literal.this)
    if not literal.is_string or not _DATE.fullmatch(text):
        raise UnsupportedError(f"the date {text}")
    try:
        return constant(dt.date.fromisoformat(text), t.DateType(), rows.count)
    except ValueError as error:
        raise UnsupportedError(f"the date {text}") from error


# ------------------------------------------------------------------------------------------------ choices


@evaluate.register(exp.Case)
def _case(expression: exp.Case, rows: Rows) -> Vector:
    if expression.this is not None:
        raise UnsupportedError("CASE with an operand")
    ifs = expression.args["ifs"]
    default = expression.args.get("default") or exp.Null()
    return _choice([each.this for each in ifs], [*(each.args["true"] for each in ifs), default], rows)


@evaluate.register(exp.If)
def _if(expression: exp.If, rows: Rows) -> Vector:
    default = expression.args.get("false") or exp.Null()
    return _choice([expression.this], [expression.args["true"], default], rows)


def _choice(conditions: Sequence[exp.Expr], results: Sequence[exp.Expr], rows: Rows) -> Vector:
    """The result behind the first condition that is true, else the last."""
    try:
        vectors = [evaluate(each, rows) for each in results]
    except TooLargeError:
        return _choice_by_rows(conditions, results, rows)
    kind = common_type(vector.type for vector in vectors)
    arrays = [retype(vector, kind).values for vector in vectors]
    chosen = arrays[-1]
    for condition, values in zip(reversed(conditions), reversed(arrays[:-1])):
        chosen = pc.if_else(truth(condition, rows), values, chosen)
    return Vector(kind, chosen)


def _choice_by_rows(conditions: Sequence[exp.Expr], results: Sequence[exp.Expr], rows: Rows) -> Vector:
    """Likewise, with each result of the rows that want it only: it may fail for others."""
    left = np.arange(rows.count)
    places, parts = [], []
    for condition, result in zip((*conditions, exp.Boolean(this=True)), results):
        here = rows.take(left)
        wanted = np.asarray(truth(condition, here))
        places.append(left[wanted])
        parts.append(evaluate(result, here.filter(wanted)))
        left = left[~wanted]
    found = concat(parts)
    where = np.empty(rows.count, dtype=np.int64)
    where[np.concatenate(places)] = np.arange(rows.count)
    return found.take(pa.array(where))


@evaluate.register(exp.Coalesce)
def _coalesce(expression: exp.Coalesce, rows: Rows) -> Vector:
    vectors = [evaluate(each, rows) for each in (expression.this, *expression.expressions)]
    kind = common_type(vector.type for vector in vectors)
    return Vector(kind, pc.coalesce(*(retype(vector, kind).values for vector in vectors)))


@evaluate.register(exp.Greatest)
@evaluate.register(exp.Least)
def _extreme(expression: exp.Greatest | exp.Least, rows: Rows) -> Vector:
    """The largest or smallest of the values that are not NULL."""
    vectors = [evaluate(each, rows) for each in (expression.this, *expression.expressions)]
    kind = common_type(vector.type for vector in vectors)
    if not is_number(kind):
        raise UnsupportedError(str(expression))
    function = pc.max_element_wise if isinstance(expression, exp.Greatest) else pc.min_element_wise
    return Vector(kind, function(*(retype(vector, kind).values for vector in vectors), skip_nulls=True))


# ------------------------------------------------------------------------------------------------ conditions


def _boolean(vector: Vector) -> pa.BooleanArray:
    if isinstance(vector.type, t.NullType):
        return pa.nulls(len(vector.values), pa.bool_())
    if not isinstance(vector.type, t.BooleanType):
        raise UnsupportedError(f"{vector.type.simpleString()} as a condition")
    return vector.values


@evaluate.register(exp.Not)
def _not(expression: exp.Not, rows: Rows) -> Vector:
    return Vector(t.BooleanType(), pc.invert(_boolean(evaluate(expression.this, rows))))


@evaluate.register(exp.And)
@evaluate.register(exp.Or)
def _connected(expression: exp.And | exp.Or, rows: Rows) -> Vector:
    left, right = (_boolean(evaluate(each, rows)) for each in (expression.this, expression.expression))
    function = pc.and_kleene if isinstance(expression, exp.And) else pc.or_kleene
    return Vector(t.BooleanType(), function(left, right))


@evaluate.register(exp.Is)
def _is(expression: exp.Is, rows: Rows) -> Vector:
    if not isinstance(expression.expression, exp.Null):
        raise UnsupportedError(str(expression))
    return Vector(t.BooleanType(), evaluate(expression.this, rows).values.is_null())


_COMPARISONS = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}


@evaluate.register(exp.EQ)
@evaluate.register(exp.NEQ)
@evaluate.register(exp.LT)
@evaluate.register(exp.LTE)
@evaluate.register(exp.GT)
@evaluate.register(exp.GTE)
def _comparison(expression: exp.Binary, rows: Rows) -> Vector:
    use = Use.EQUAL if isinstance(expression, exp.EQ | exp.NEQ) else Use.ORDERED
    left, right = _alike(expression, rows, use)
    return Vector(t.BooleanType(), _COMPARISONS[type(expression)](left, right))


@evaluate.register(exp.NullSafeEQ)
def _null_safe(expression: exp.NullSafeEQ, rows: Rows) -> Vector:
    left, right = _alike(expression, rows, Use.EQUAL)
    same = pc.fill_null(pc.equal(left, right), False)
    return Vector(t.BooleanType(), pc.or_(same, pc.and_(left.is_null(), right.is_null())))


@evaluate.register(exp.NullSafeNEQ)
def _null_safe_unequal(expression: exp.NullSafeNEQ, rows: Rows) -> Vector:
    same = evaluate(exp.NullSafeEQ(this=expression.this, expression=expression.expression), rows)
    return Vector(same.type, pc.invert(same.values))


@evaluate.register(exp.Between)
def _between(expression: exp.Between, rows: Rows) -> Vector:
    low = exp.GTE(this=expression.this, expression=expression.args["low"])
    high = exp.LTE(this=expression.this, expression=expression.args["high"])
    if expression.args.get("symmetric"):
        raise UnsupportedError(str(expression))
    return evaluate(exp.And(this=low, expression=high), rows)


@evaluate.register(exp.In)
def _in(expression: exp.In, rows: Rows) -> Vector:
    given = expression.expressions
    if not given:
        raise UnsupportedError(str(expression))
    equal = [_comparison(exp.EQ(this=expression.this, expression=each), rows).values for each in given]
    return Vector(t.BooleanType(), reduce(pc.or_kleene, equal))


def _alike(expression: exp.Binary, rows: Rows, use: Use) -> tuple[pa.Array, pa.Array]:
    """Both sides of a comparison in one type, in which Arrow compares as Spark does."""
    left, right = evaluate(expression.this, rows), evaluate(expression.expression, rows)
    kind = common_type((left.type, right.type))
    if isinstance(kind, t.NullType) or not (can(kind, use) or isinstance(kind, t.DoubleType)):
        raise UnsupportedError(f"{expression}: {kind.simpleString()}")
    sides = retype(left, kind).values, retype(right, kind).values
    if isinstance(kind, t.DoubleType) and any(pc.any(pc.is_nan(each)).as_py() for each in sides):
        raise TooLargeError("a comparison with NaN")
    return sides
