"""Window functions over rows in memory: running sums and extremes, the next value, numbers and ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.nodes import Named
from cq_engine.evaluation.expressions import evaluate
from cq_engine.evaluation.groups import is_sum_safe, numbers, order, sum_type
from cq_engine.evaluation.vectors import (
    Flags,
    Numbers,
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    integers,
    is_number,
    with_nulls,
)

__all__ = ["add_windows", "starts_of"]


def add_windows(rows: Rows, functions: Named) -> Rows:
    """The rows with the functions' values. Raises UnsupportedError, TooLargeError."""
    known: dict[str, _Partitions] = {}
    added: dict[str, Vector] = {}
    for name, expression in functions:
        found: dict[str, Vector] = {}

        def column_of(node: exp.Expr, found: dict[str, Vector] = found) -> exp.Expr:
            if not isinstance(node, exp.Window):
                return node
            label = f"window {len(found)}"
            found[label] = _window(node, rows, known)
            return exp.Column(this=exp.Identifier(this=label, quoted=True))

        outer = expression.transform(column_of)
        added[name] = evaluate(outer, rows.add(found))
    return rows.add(added)


@dataclass(frozen=True)
class _Partitions:
    """Rows in the order of a window: their places, where partitions begin, and where another value of the order does."""

    places: Numbers
    starts: Numbers
    first: Numbers
    """For each row, in that order, the place in it at which its partition begins."""
    new: Flags
    """Which rows, in that order, have another value of the order than the one before, or another partition."""

    def back(self, values: pa.Array) -> pa.Array:
        """Values in the window's order as the rows stand."""
        where = np.empty(len(self.places), dtype=np.int64)
        where[self.places] = np.arange(len(self.places))
        return values.take(pa.array(where))

    @property
    def positions(self) -> Numbers:
        """The rows' numbers in their partitions, from 0."""
        return np.arange(len(self.places)) - self.first

    def ranks(self, *, dense: bool) -> Numbers:
        """The rows' ranks in their partitions, in the window's order, from 1."""
        if not len(self.places):
            return self.places
        number = np.cumsum(self.new, dtype=np.int64)
        counted: Numbers = number if dense else np.flatnonzero(self.new)[number - 1]
        return counted - counted[self.first] + 1


def starts_of(*sorted_numbers: Numbers) -> Flags:
    """Which rows differ from the one before in one of the columns."""
    count = len(sorted_numbers[0])
    found = np.ones(count, dtype=bool)
    if count:
        found[1:] = False
        for each in sorted_numbers:
            found[1:] |= each[1:] != each[:-1]
    return found


def _partitions(node: exp.Window, rows: Rows) -> _Partitions:
    keys = [evaluate(each, rows) for each in node.args.get("partition_by") or ()]
    group = numbers(keys, rows.count)
    given = node.args.get("order")
    orders = [_order(each, rows) for each in (given.expressions if given is not None else ())]
    places = np.lexsort((*reversed(orders), group))
    begins = starts_of(group[places])
    starts = np.flatnonzero(begins)
    first = starts[np.cumsum(begins) - 1] if len(starts) else starts
    return _Partitions(places, starts, first, begins | starts_of(group[places], *(o[places] for o in orders)))


def _order(node: exp.Expr, rows: Rows) -> Numbers:
    if not isinstance(node, exp.Ordered):
        return order(evaluate(node, rows))
    descending = bool(node.args.get("desc"))
    return order(evaluate(node.this, rows), descending=descending, nulls_first=node.args.get("nulls_first"))


def _window(node: exp.Window, rows: Rows, known: dict[str, _Partitions]) -> Vector:
    if set(node.args) - {"this", "partition_by", "order", "spec", "over", "alias", "first"}:
        raise UnsupportedError(str(node))
    given, spec = node.args.get("order"), node.args.get("spec")
    key = f"{node.args.get('partition_by')!r} {given!r}"
    if key not in known:
        known[key] = _partitions(node, rows)
    part, call = known[key], node.this
    if given is not None and spec is None and isinstance(call, exp.RowNumber):
        return Vector(t.IntegerType(), part.back(with_nulls(part.positions + 1)))
    if (
        given is not None
        and spec is None
        and isinstance(call, exp.Rank | exp.DenseRank)
        and not call.expressions
    ):
        return Vector(
            t.IntegerType(), part.back(with_nulls(part.ranks(dense=isinstance(call, exp.DenseRank))))
        )
    if given is not None and spec is None and type(call) is exp.Lead:
        return _lead(call, rows, part)
    if type(call) not in (exp.Sum, exp.Max, exp.Min, exp.Count) or call.expressions:
        raise UnsupportedError(str(node))
    if isinstance(call.this, exp.Distinct | exp.Star):
        raise UnsupportedError(str(node))
    vector = evaluate(call.this, rows)
    if given is None and spec is None:
        return _whole(call, vector, part)
    if given is None or not _is_running(spec):
        raise UnsupportedError(str(node))
    return _running(call, vector, part)


def _is_running(spec: exp.Expr | None) -> bool:
    """ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW?"""
    if spec is None:
        return False
    wanted = {"kind": "ROWS", "start": "UNBOUNDED", "start_side": "PRECEDING", "end": "CURRENT ROW"}
    return all(str(spec.args.get(name)).upper() == value for name, value in wanted.items()) and not (
        spec.args.get("exclude")
    )


def _lead(call: exp.Lead, rows: Rows, part: _Partitions) -> Vector:
    if call.args.get("offset") is not None or call.args.get("default") is not None:
        raise UnsupportedError(str(call))
    vector = evaluate(call.this, rows)
    count = len(part.places)
    following = np.append(part.places[1:], 0)
    last = np.ones(count, dtype=bool)
    last[:-1] = part.first[1:] != part.first[:-1]
    places = pa.array(following[:count], pa.int64(), mask=last)
    return Vector(vector.type, part.back(vector.values.take(places)))


def _running(call: exp.Expr, vector: Vector, part: _Partitions) -> Vector:
    """The sum, extreme or number of the values up to each row, where they are not NULL."""
    nulls = vector.nulls[part.places]
    seen = _running_sum((~nulls).astype(np.int64), part)
    if isinstance(call, exp.Count):
        return Vector(t.LongType(), part.back(with_nulls(seen)))
    values = integers(_number(vector).values)[part.places]
    if isinstance(call, exp.Sum):
        if not is_sum_safe(values):
            raise TooLargeError("a sum of more than 64 bits")
        kind, found = sum_type(vector.type), _running_sum(values, part)
    else:
        kind, found = vector.type, _running_extreme(values, nulls, part, smallest=isinstance(call, exp.Min))
    return Vector(kind, part.back(with_nulls(found, seen == 0)))


def _running_sum(values: Numbers, part: _Partitions) -> Numbers:
    if not len(values):
        return values
    sums = np.cumsum(values)
    return sums - (sums - values)[part.first]


def _running_extreme(values: Numbers, nulls: Flags, part: _Partitions, *, smallest: bool) -> Numbers:
    """By the values' ranks, which rise from one partition to the next: so a running extreme does not leave its own."""
    if not len(values):
        return values
    # ~ turns the order round, and no value overflows, as the smallest does under -
    sorted_values, ranks = np.unique(~values if smallest else values, return_inverse=True)
    size = len(sorted_values) + 1
    ranks = np.where(nulls, 0, ranks + 1)
    found = np.maximum.accumulate(ranks + part.first * size) - part.first * size
    best = sorted_values[np.maximum(found - 1, 0)]
    return ~best if smallest else best


def _whole(call: exp.Expr, vector: Vector, part: _Partitions) -> Vector:
    """The sum, extreme or number of the values of each partition, where they are not NULL."""
    nulls = vector.nulls[part.places]
    if not len(nulls):
        return _running(call, vector, part)
    size = np.diff(np.append(part.starts, len(nulls)))
    seen = np.add.reduceat((~nulls).astype(np.int64), part.starts)
    if isinstance(call, exp.Count):
        return Vector(t.LongType(), part.back(with_nulls(np.repeat(seen, size))))
    values = integers(_number(vector).values)[part.places]
    if isinstance(call, exp.Sum):
        if not is_sum_safe(values):
            raise TooLargeError("a sum of more than 64 bits")
        kind, found = sum_type(vector.type), np.add.reduceat(values, part.starts)
    else:
        limits = np.iinfo(np.int64)
        function, neutral = (
            (np.minimum, limits.max) if isinstance(call, exp.Min) else (np.maximum, limits.min)
        )
        kind, found = vector.type, function.reduceat(np.where(nulls, neutral, values), part.starts)
    return Vector(kind, part.back(with_nulls(np.repeat(found, size), np.repeat(seen == 0, size))))


def _number(vector: Vector) -> Vector:
    if not is_number(vector.type):
        raise UnsupportedError(f"a window over {vector.type.simpleString()}")
    return vector
