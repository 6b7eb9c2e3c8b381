"""Conditions: comparisons, AND, OR and NOT, IN, BETWEEN and LIKE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.algebra.nodes import references
from cq_engine.core.capabilities import Use, can
from cq_engine.evaluation.arithmetic import date
from cq_engine.evaluation.dispatch import boolean, evaluate
from cq_engine.evaluation.vectors import (
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    checked,
    common_type,
    retype,
)

__all__ = ["COMPARISONS"]


@evaluate.register(exp.Not)
def _not(expression: exp.Not, rows: Rows) -> Vector:
    return Vector(t.BooleanType(), pc.invert(boolean(evaluate(expression.this, rows))))


@evaluate.register(exp.And)
@evaluate.register(exp.Or)
def _connected(expression: exp.And | exp.Or, rows: Rows) -> Vector:
    left, right = (boolean(evaluate(each, rows)) for each in (expression.this, expression.expression))
    function = pc.and_kleene if isinstance(expression, exp.And) else pc.or_kleene
    return Vector(t.BooleanType(), function(left, right))


@evaluate.register(exp.Is)
def _is(expression: exp.Is, rows: Rows) -> Vector:
    if not isinstance(expression.expression, exp.Null):
        raise UnsupportedError(write(expression))
    return Vector(t.BooleanType(), evaluate(expression.this, rows).values.is_null())


COMPARISONS: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
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
    check_compared_last(expression)
    use = Use.EQUAL if isinstance(expression, exp.EQ | exp.NEQ) else Use.ORDERED
    left, right = _alike((expression.this, expression.expression), rows, use)
    return Vector(t.BooleanType(), COMPARISONS[type(expression)](left, right))


def check_compared_last(expression: exp.Binary) -> None:
    """Raises UnsupportedError for `a = b IN (…)` and the like, of which Spark asks whether `a = b` is in it."""
    if isinstance(expression.expression, exp.In | exp.Between | exp.Like | exp.Not):
        raise UnsupportedError(f"{write(expression)}: Spark compares first")


@evaluate.register(exp.NullSafeEQ)
@evaluate.register(exp.NullSafeNEQ)
def _null_safe(expression: exp.NullSafeEQ | exp.NullSafeNEQ, rows: Rows) -> Vector:
    check_compared_last(expression)
    left, right = _alike((expression.this, expression.expression), rows, Use.EQUAL)
    same = pc.or_(pc.fill_null(pc.equal(left, right), False), pc.and_(left.is_null(), right.is_null()))
    return Vector(t.BooleanType(), pc.invert(same) if isinstance(expression, exp.NullSafeNEQ) else same)


@evaluate.register(exp.Between)
def _between(expression: exp.Between, rows: Rows) -> Vector:
    if expression.args.get("symmetric"):
        raise UnsupportedError(write(expression))
    low, high = (
        function(*_alike((expression.this, expression.args[end]), rows, Use.ORDERED))
        for end, function in (("low", pc.greater_equal), ("high", pc.less_equal))
    )
    return Vector(t.BooleanType(), pc.and_kleene(low, high))


@evaluate.register(exp.In)
def _in(expression: exp.In, rows: Rows) -> Vector:
    """All of the list in one type; what is the same for all rows is looked up together."""
    given = expression.expressions
    if not given:
        raise UnsupportedError(write(expression))
    is_fixed = [not references(each) for each in given]
    one = Rows({}, 1)
    value, *listed = _same_type(
        [expression.this, *given], [rows, *(one if fixed else rows for fixed in is_fixed)], Use.EQUAL
    )
    fixed = [pa.array([], value.type), *(each for each, flag in zip(listed, is_fixed) if flag)]
    values = pa.concat_arrays(fixed)
    if pa.types.is_floating(value.type):  # of zero there is one
        value, values = pc.add(value, 0.0), pc.add(values, 0.0)
    found = pc.is_in(value, value_set=values.drop_null())
    if values.null_count:
        found = pc.if_else(found, True, pa.scalar(None, pa.bool_()))
    found = pc.if_else(value.is_valid(), found, pa.scalar(None, pa.bool_()))
    for each, flag in zip(listed, is_fixed):
        found = found if flag else pc.or_kleene(found, pc.equal(value, each))
    return Vector(t.BooleanType(), found)


@evaluate.register(exp.Like)
def _like(expression: exp.Like, rows: Rows) -> Vector:
    """LIKE with a pattern that is a literal without escapes."""
    pattern = expression.expression
    known = isinstance(pattern, exp.Literal) and pattern.is_string and "\\" not in str(pattern.this)
    if not known or set(expression.args) - {"this", "expression", "negate"}:
        raise UnsupportedError(write(expression))
    vector = evaluate(expression.this, rows)
    if vector.type != t.StringType():
        raise UnsupportedError(f"{vector.type.simpleString()} LIKE")
    found = checked(pc.match_like, vector.values, str(pattern.this))
    return Vector(t.BooleanType(), pc.invert(found) if expression.args.get("negate") else found)


@evaluate.register(exp.Anonymous)
def _call(expression: exp.Anonymous, rows: Rows) -> Vector:
    """NULLIF: the first value where it is not equal to the second, in the type of the first."""
    given = expression.expressions
    if expression.name.upper() != "NULLIF" or len(given) != 2:
        raise UnsupportedError(write(expression))
    same = pc.fill_null(pc.equal(*_alike((given[0], given[1]), rows, Use.EQUAL)), False)
    vector = evaluate(given[0], rows)
    return Vector(vector.type, pc.if_else(same, pa.scalar(None, vector.values.type), vector.values))


def _alike(sides: tuple[exp.Expr, exp.Expr], rows: Rows, use: Use) -> tuple[pa.Array, pa.Array]:
    """Both sides of a comparison in one type, in which Arrow compares as Spark does."""
    left, right = _same_type(sides, (rows, rows), use)
    return left, right


def _same_type(expressions: Sequence[exp.Expr], rows: Sequence[Rows], use: Use) -> list[pa.Array]:
    """The expressions' values, each over its rows, in one type, in which Arrow compares as Spark does."""
    vectors = [evaluate(each, over) for each, over in zip(expressions, rows)]
    if any(isinstance(vector.type, t.DateType) for vector in vectors):
        vectors = [
            date(each, over) if isinstance(each, exp.Literal) and each.is_string else vector
            for each, over, vector in zip(expressions, rows, vectors)
        ]
    kind = common_type(vector.type for vector in vectors)
    if isinstance(kind, t.NullType) or not (can(kind, use) or isinstance(kind, t.DoubleType)):
        raise UnsupportedError(f"a comparison of {kind.simpleString()}")
    sides = [retype(vector, kind).values for vector in vectors]
    if isinstance(kind, t.DoubleType) and any(pc.any(pc.is_nan(each)).as_py() for each in sides):
        raise TooLargeError("a comparison with NaN")
    return sides
