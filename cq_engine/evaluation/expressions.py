"""Expressions over columns in memory: those of which Arrow's result is Spark's. An allow list: `UnsupportedError` says
what is not in it.

Arithmetic that overflows raises TooLargeError; Spark, which then evaluates the statement, says what it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.evaluation import arithmetic, comparisons
from cq_engine.evaluation.dispatch import evaluate, truth
from cq_engine.evaluation.vectors import (
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    common_type,
    concat,
    is_number,
    retype,
)

__all__ = ["evaluate", "truth"]

PARTS = (arithmetic, comparisons)
"""The modules that register the other expressions."""


@evaluate.register(exp.Column)
def _column(expression: exp.Column, rows: Rows) -> Vector:
    return rows[expression.name]


@evaluate.register(exp.Paren)
def _paren(expression: exp.Paren, rows: Rows) -> Vector:
    return evaluate(expression.this, rows)


@evaluate.register(exp.Case)
def _case(expression: exp.Case, rows: Rows) -> Vector:
    ifs = expression.args["ifs"]
    conditions = [each.this for each in ifs]
    if expression.this is not None:
        conditions = [exp.EQ(this=expression.this.copy(), expression=each.copy()) for each in conditions]
    default = expression.args.get("default") or exp.Null()
    return _choice(conditions, [*(each.args["true"] for each in ifs), default], rows)


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
        raise UnsupportedError(write(expression))
    function = pc.max_element_wise if isinstance(expression, exp.Greatest) else pc.min_element_wise
    return Vector(kind, function(*(retype(vector, kind).values for vector in vectors), skip_nulls=True))
