"""Where the modules of expressions register what they evaluate: `arithmetic`, `comparisons` and `expressions`."""

from __future__ import annotations

from functools import singledispatch

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.evaluation.vectors import Rows, UnsupportedError, Vector

__all__ = ["boolean", "evaluate", "truth"]


@singledispatch
def evaluate(expression: exp.Expr, rows: Rows) -> Vector:  # noqa: ARG001 - registered functions read it
    """The expression's values, with the type that Spark gives it. Raises UnsupportedError, TooLargeError."""
    raise UnsupportedError(f"{type(expression).__name__}: {write(expression)}")


def truth(condition: exp.Expr, rows: Rows) -> pa.BooleanArray:
    """For which rows the condition is true, and neither false nor NULL. Raises UnsupportedError, TooLargeError."""
    return pc.fill_null(boolean(evaluate(condition, rows)), False)


def boolean(vector: Vector) -> pa.BooleanArray:
    """The vector as a condition. Raises UnsupportedError."""
    if isinstance(vector.type, t.NullType):
        return pa.nulls(len(vector.values), pa.bool_())
    if not isinstance(vector.type, t.BooleanType):
        raise UnsupportedError(f"{vector.type.simpleString()} as a condition")
    return vector.values
