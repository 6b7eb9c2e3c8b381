"""Constants, arithmetic of numbers, and casts."""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.core.errors import AnalysisError
from cq_engine.core.types import contains, spark_type
from cq_engine.evaluation.dispatch import evaluate
from cq_engine.evaluation.vectors import (
    INTEGERS,
    MOST_DIGITS,
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    checked,
    common_type,
    constant,
    integers,
    is_number,
    rescale,
    retype,
    scale_of,
    whole_digits,
    with_nulls,
)

__all__ = ["date"]

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DECIMAL = re.compile(r"(\d+)\.(\d+)")


@evaluate.register(exp.Literal)
def _literal(expression: exp.Literal, rows: Rows) -> Vector:
    text = str(expression.this)
    if expression.is_string:
        return constant(text, t.StringType(), rows.count)
    return _number(text, rows)


def _number(text: str, rows: Rows, sign: int = 1) -> Vector:
    if text.isdigit():
        value = sign * int(text)
        for kind in (t.IntegerType(), t.LongType()):
            if -(2 ** (INTEGERS[type(kind)] - 1)) <= value < 2 ** (INTEGERS[type(kind)] - 1):
                return constant(value, kind, rows.count)
    found = _DECIMAL.fullmatch(text)
    digits = "" if found is None else (found[1] + found[2]).lstrip("0")
    if found is None or len(digits) > 18:
        raise UnsupportedError(f"the number {text}")
    decimal = t.DecimalType(max(len(digits), len(found[2])), len(found[2]))
    return constant(sign * int(digits or "0"), decimal, rows.count)


@evaluate.register(exp.Boolean)
def _truth_value(expression: exp.Boolean, rows: Rows) -> Vector:
    return constant(bool(expression.this), t.BooleanType(), rows.count)


@evaluate.register(exp.Null)
def _null(expression: exp.Null, rows: Rows) -> Vector:  # noqa: ARG001 - called by its kind
    return Vector(t.NullType(), pa.nulls(rows.count))


# ------------------------------------------------------------------------------------------------ numbers


@evaluate.register(exp.Neg)
def _negative(expression: exp.Neg, rows: Rows) -> Vector:
    operand = expression.this
    if isinstance(operand, exp.Literal) and not operand.is_string:
        return _number(str(operand.this), rows, -1)  # one literal: -2147483648 is INT
    vector = evaluate(operand, rows)
    if isinstance(vector.type, t.DoubleType):
        return Vector(vector.type, pc.negate(vector.values))
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
    if isinstance(kind, t.DecimalType) and is_number(left.type) and is_number(right.type):
        return _decimal_arithmetic(expression, left, right)
    if type(kind) not in INTEGERS:
        raise UnsupportedError(f"arithmetic of {kind.simpleString()}")
    function = {exp.Add: pc.add_checked, exp.Sub: pc.subtract_checked, exp.Mul: pc.multiply_checked}
    return _within(
        kind, checked(function[type(expression)], *(retype(v, kind).values for v in (left, right)))
    )


def _decimal_arithmetic(expression: exp.Binary, left: Vector, right: Vector) -> Vector:
    """The sum, difference or product of decimals, and of a whole number beside one, which has the digits of its type, or
    of the literal that it is: https://spark.apache.org/docs/latest/sql-ref-ansi-compliance.html, DecimalPrecision."""
    sides = (left, right)
    whole = [
        _digits(each) or whole_digits(vector.type)
        for each, vector in zip((expression.this, expression.expression), sides)
    ]
    scales = [scale_of(vector.type) for vector in sides]
    if isinstance(expression, exp.Mul):
        scale, digits = sum(scales), sum(whole) + sum(scales) + 1
        values = [vector.values for vector in sides]
    else:
        scale = max(scales)
        digits = max(whole) + scale + 1
        values = [rescale(vector, scale) for vector in sides]
    if digits > MOST_DIGITS:  # how much Spark rounds then is a setting
        raise UnsupportedError(f"{write(expression)}: {digits} digits")
    function = {exp.Add: pc.add_checked, exp.Sub: pc.subtract_checked, exp.Mul: pc.multiply_checked}
    return Vector(t.DecimalType(digits, scale), checked(function[type(expression)], *values))


def _digits(expression: exp.Expr) -> int:
    """How many digits a whole number has that is a literal; 0 for other expressions."""
    expression = expression.unnest()
    literal = expression.this if isinstance(expression, exp.Neg) else expression
    if not isinstance(literal, exp.Literal) or literal.is_string or not str(literal.this).isdigit():
        return 0
    return len(str(int(literal.this)))


@evaluate.register(exp.Mod)
def _remainder(expression: exp.Mod, rows: Rows) -> Vector:
    """The remainder of whole numbers, with the dividend's sign. Raises TooLargeError for a division by 0."""
    left, right = evaluate(expression.this, rows), evaluate(expression.expression, rows)
    kind = common_type((left.type, right.type))
    if type(kind) not in INTEGERS:
        raise UnsupportedError(f"% of {kind.simpleString()}")
    nulls = left.nulls | right.nulls
    divided, divisor = (integers(retype(each, kind).values, fill=1) for each in (left, right))
    if (divisor == 0).any():
        raise TooLargeError("a division by 0")
    # What -1 leaves is what 1 leaves, and no value overflows.
    return Vector(kind, with_nulls(np.fmod(divided, np.where(divisor == -1, 1, divisor)), nulls))


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
        raise UnsupportedError(write(expression))
    wanted = _type(expression.to)
    if isinstance(wanted, t.DateType) and isinstance(expression.this, exp.Literal):
        return date(expression.this, rows)
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


@lru_cache(maxsize=256)
def _type(written: exp.DataType) -> t.DataType:
    """The type that is written in a cast: the same at every refresh. Raises UnsupportedError."""
    try:
        found = spark_type(write(written))
    except AnalysisError as error:
        raise UnsupportedError(f"a cast to {written}") from error
    if contains(found, t.TimestampType):
        raise UnsupportedError("a cast to TIMESTAMP: a setting says which of two types that is")
    return found


def date(literal: exp.Literal, rows: Rows) -> Vector:
    """The date that a literal names. Raises UnsupportedError."""
    text = str(literal.this)
    if not literal.is_string or not _DATE.fullmatch(text):
        raise UnsupportedError(f"the date {text}")
    try:
        return constant(dt.date.fromisoformat(text), t.DateType(), rows.count)
    except ValueError as error:
        raise UnsupportedError(f"the date {text}") from error
