"""Rows with equal values: their numbers, groups and aggregates. NULL is equal to NULL here, as in GROUP BY."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.algebra.nodes import Named
from cq_engine.core.arrays import first_places, number_values, repeated
from cq_engine.core.beside import together
from cq_engine.core.capabilities import Use, can
from cq_engine.evaluation.expressions import evaluate
from cq_engine.evaluation.vectors import (
    MOST_DIGITS,
    Numbers,
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    integers,
    is_number,
)

__all__ = [
    "LONG",
    "aggregate",
    "distinct",
    "is_sum_safe",
    "normalized",
    "numbers",
    "order",
    "require_equal",
    "sum_type",
]

LONG = 2**63


def numbers(columns: Sequence[Vector], count: int) -> Numbers:
    """Numbers of rows, equal exactly where the rows are equal; from 0 in the order in which the rows first appear. Raises
    UnsupportedError."""
    found = np.zeros(count, dtype=np.int64)
    size = 1
    pairs = (columns[n : n + 2] for n in range(0, len(columns), 2))  # not the numbers of all columns at once
    for own, own_size in chain.from_iterable(
        together([partial(_numbers, column) for column in pair], count) for pair in pairs
    ):
        if size * own_size > LONG // 2:
            found, size = number_values(found), count + 1
        found = own if size == 1 else found * own_size + own
        size *= own_size
    return number_values(found)


def _numbers(column: Vector) -> tuple[Numbers, int]:
    require_equal(column.type)
    if is_number(column.type) and not column.values.null_count and len(column.values):
        values = integers(column.values)
        low, high = int(values.min()), int(values.max())
        if high - low < 2**31:
            return values - low, high - low + 1
    if isinstance(column.type, t.NullType):
        return np.zeros(len(column.values), dtype=np.int64), 1
    encoded = normalized(column).values.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices, dtype=np.int64), max(1, len(encoded.dictionary))


def normalized(column: Vector) -> Vector:
    """The values as GROUP BY gives them: of DOUBLE one zero and one NaN."""
    if not isinstance(column.type, t.DoubleType):
        return column
    values = pc.add(column.values, 0.0)
    return Vector(column.type, pc.if_else(pc.fill_null(pc.is_nan(values), False), float("nan"), values))


def require_equal(kind: t.DataType) -> None:
    """Raises UnsupportedError where Arrow takes other values for equal than Spark does, though they are `normalized`."""
    known = isinstance(kind, t.NullType | t.DoubleType)
    if not known and not (can(kind, Use.EQUAL) and can(kind, Use.GROUPED)):
        raise UnsupportedError(f"groups of {kind.simpleString()}")


def order(column: Vector, *, descending: bool = False, nulls_first: bool | None = None) -> Numbers:
    """Numbers in the order of the values, as Spark sorts them: NULL is the smallest, if nothing is said. Raises
    UnsupportedError."""
    if not can(column.type, Use.ORDERED):
        raise UnsupportedError(f"the order of {column.type.simpleString()}")
    if is_number(column.type) and not column.values.null_count:
        values = integers(column.values)
        return ~values if descending else values  # ~ turns the order round, and no value overflows
    encoded = column.values.dictionary_encode()
    places = (
        np.argsort(pc.sort_indices(encoded.dictionary)) if len(encoded.dictionary) else np.empty(0, np.int64)
    )
    nulls = column.nulls
    found = np.zeros(len(nulls), dtype=np.int64)
    found[~nulls] = places[np.asarray(encoded.indices.drop_null(), dtype=np.int64)]
    found = -found if descending else found
    if nulls.any():
        first = not descending if nulls_first is None else nulls_first
        found[nulls] = -len(nulls) - 1 if first else len(nulls) + 1
    return found


def distinct(rows: Rows) -> Rows:
    """Each row once. Raises UnsupportedError."""
    rows = Rows({name: normalized(vector) for name, vector in rows.columns.items()}, rows.count)
    found = numbers(list(rows.columns.values()), rows.count)
    return rows.take(first_places(found))


# ------------------------------------------------------------------------------------------------ aggregates


@dataclass(frozen=True)
class _Call:
    """A call of an aggregate function: of which column, in which way, with which type."""

    name: str
    column: Vector | None
    function: str
    type: t.DataType


def aggregate(rows: Rows, keys: Named, functions: Named) -> Rows:
    """GROUP BY; without keys all rows are one group, which is there without rows, too. Raises UnsupportedError,
    TooLargeError."""
    key_columns = {name: normalized(evaluate(expression, rows)) for name, expression in keys}
    for vector in key_columns.values():
        require_equal(vector.type)
    found_calls: dict[str, exp.AggFunc] = {}
    outer = [(name, _take_calls(expression, found_calls)) for name, expression in functions]
    calls = together([partial(_call, *each, rows) for each in found_calls.items()], rows.count)
    if not keys and not rows.count:
        grouped = _group_of_nothing(calls)
    else:
        grouped = _group(key_columns, calls, rows.count)
    found = {name: evaluate(expression, grouped) for name, expression in outer}
    return grouped.select(key_columns).add(found)


def _take_calls(expression: exp.Expr, calls: dict[str, exp.AggFunc]) -> exp.Expr:
    """The expression with columns of `calls` in place of its aggregate functions."""

    def column_of(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.AggFunc):
            return node
        name = f"call {len(calls)}"
        calls[name] = node
        return exp.Column(this=exp.Identifier(this=name, quoted=True))

    return expression.transform(column_of)


def _call(name: str, node: exp.AggFunc, rows: Rows) -> _Call:
    if type(node) not in _FUNCTIONS or node.expressions:
        raise UnsupportedError(write(node))
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
        return _Call(name, None, "count_all", t.LongType())
    if isinstance(node.this, exp.Distinct | exp.Order | exp.Star):
        raise UnsupportedError(write(node))
    vector = evaluate(node.this, rows)
    if isinstance(node, exp.Sum):
        return _Call(name, _summable(vector), "sum", sum_type(vector.type))
    if isinstance(node, exp.Count):
        return _Call(name, vector, "count", t.LongType())
    if not can(vector.type, Use.ORDERED):
        raise UnsupportedError(f"{write(node)}: {vector.type.simpleString()}")
    return _Call(name, vector, _FUNCTIONS[type(node)], vector.type)


_FUNCTIONS: dict[type[exp.AggFunc], str] = {
    exp.Sum: "sum",
    exp.Count: "count",
    exp.Min: "min",
    exp.Max: "max",
}


def sum_type(kind: t.DataType) -> t.DataType:
    """The type of a sum. Raises UnsupportedError."""
    if isinstance(kind, t.DecimalType):
        return t.DecimalType(min(kind.precision + 10, MOST_DIGITS), kind.scale)
    if not is_number(kind):
        raise UnsupportedError(f"the sum of {kind.simpleString()}")
    return t.LongType()


def is_sum_safe(values: Numbers, bound: int = LONG) -> bool:
    """Does every sum of some of the values stay below the bound, which is that of 64 bits?"""
    return not len(values) or max(int(values.max()), -int(values.min())) * len(values) < bound


def _summable(vector: Vector) -> Vector:
    if not is_sum_safe(integers(vector.values)):
        raise TooLargeError("a sum of more than 64 bits")
    return vector


def _group(keys: Mapping[str, Vector], calls: Sequence[_Call], count: int) -> Rows:
    """The groups' keys and what is called of them, by Arrow."""
    arrays = {f"k{n}": vector.values for n, vector in enumerate(keys.values())}
    wanted: list[tuple[str, str]] = []
    for call in calls:
        if call.column is not None:
            arrays[call.name] = call.column.values
            wanted.append((call.name, call.function))
        else:
            arrays[call.name] = repeated(1, pa.int64(), count)
            wanted.append((call.name, "count"))
    names = [f"k{n}" for n in range(len(keys))]
    if not names:
        names, arrays["all"] = ["all"], repeated(1, pa.int64(), count)
    table = pa.table(arrays).group_by(names, use_threads=False).aggregate(wanted)
    found = {name: Vector(v.type, _one(table.column(f"k{n}"))) for n, (name, v) in enumerate(keys.items())}
    for call, (column, function) in zip(calls, wanted):
        found[call.name] = Vector(call.type, _one(table.column(f"{column}_{function}")))
    return Rows(found, table.num_rows)


def _group_of_nothing(calls: Sequence[_Call]) -> Rows:
    """What is called of no rows: counts are 0, everything else is NULL."""
    found = {}
    for call in calls:
        if call.function in ("count", "count_all"):
            found[call.name] = Vector(call.type, pa.array([0], pa.int64()))
        else:
            assert call.column is not None
            found[call.name] = Vector(call.type, pa.nulls(1, call.column.values.type))
    return Rows(found, 1)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()
