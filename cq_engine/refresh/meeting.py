"""Joins without an equality in a mesh: which rows of a table meet a change under `<`, `BETWEEN` or any other condition.

A comparison of a column of the table with an expression over the change says in which interval the column's values lie. The intervals of all
changes, joined where they overlap, are searched for each row (the ordered buffer of MESHJOIN's section 3.3). Where another
condition is left, the rows that are left meet the changes in blocks, and it is evaluated for every pair.

What is found may be more than what joins: the plan has the conditions itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.nodes import references
from cq_engine.core.arrays import sort_places
from cq_engine.core.columns import Column
from cq_engine.evaluation.expressions import evaluate, truth
from cq_engine.evaluation.vectors import (
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    common_type,
    is_number,
    retype,
)
from cq_engine.storage.rows import empty

__all__ = ["Meeting"]

_PAIRS = 1_000_000
"""Pairs of a row and a change that a condition is evaluated for at a time."""
_ROW_PAIRS = 64
"""Bytes of a pair while that happens."""
_FLIPPED: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Comparison:
    """The column lies above (`lower`) or below the value of an expression over the changes."""

    column: str
    lower: bool
    bound: exp.Expr


@dataclass(frozen=True)
class _Intervals:
    """Disjoint closed intervals of a column, compared as `type`."""

    column: str
    type: t.DataType
    low: Numbers
    high: Numbers

    def holds(self, rows: Rows) -> Mask:
        values = retype(rows[self.column], self.type).values
        numbers = _numbers(values)
        place = np.searchsorted(self.low, numbers, side="right") - 1
        inside = (place >= 0) & (numbers <= self.high[np.maximum(place, 0)]) if len(self.low) else place >= 0
        return np.asarray(inside & np.asarray(values.is_valid()))


class Meeting:
    """The conditions under which rows of a table meet changes.

    Args:
        changes: the changes' columns that the conditions read, by the plan's names.
        fields: the table's columns that they read: plan's name → column.
        conditions: all of them have to be true.
        memory: bytes that pairs may take.

    Raises UnsupportedError and TooLargeError where only Spark evaluates the conditions.
    """

    def __init__(
        self, changes: Rows, fields: Mapping[str, Column], conditions: Sequence[exp.Expr], memory: int
    ) -> None:
        self.failed = False
        """Was there a row for which only Spark evaluates the conditions? Then nothing that was found counts."""
        self._fields = dict(fields)
        self._changes = changes
        self._block = max(1, min(_PAIRS, memory // _ROW_PAIRS))
        comparisons, self._rest = _split(conditions, set(fields))
        self._intervals = [
            _intervals([each for each in comparisons if each.column == name], name, changes, self._empty())
            for name in dict.fromkeys(each.column for each in comparisons)
        ]
        self.columns = frozenset(column.name for column in fields.values())
        if self._rest:  # says now whether it can be evaluated
            self._block_pairs(self._empty())

    def __len__(self) -> int:
        return self._changes.count

    @property
    def nbytes(self) -> int:
        """What it keeps of the changes."""
        kept = sum(each.low.nbytes + each.high.nbytes for each in self._intervals)
        if self._rest:
            kept += sum(int(vector.values.nbytes) for vector in self._changes.columns.values())
        return kept

    def probe(self, rows: pa.Table) -> Mask:
        """Which rows meet a change, or may meet one. It raises nothing, since others share the scan."""
        try:
            return self._probe(rows)
        except (UnsupportedError, TooLargeError):
            self.failed = True
            return np.zeros(rows.num_rows, np.bool_)

    def _probe(self, rows: pa.Table) -> Mask:
        mine = self._rows(rows)
        found = np.ones(rows.num_rows, np.bool_)
        for each in self._intervals:
            found &= each.holds(mine)
        if self._rest:
            places = np.flatnonzero(found)
            found[places] = self._pairs(mine.take(places))
        return found

    def _pairs(self, rows: Rows) -> Mask:
        """Which rows have a change for which the other conditions are true."""
        if not self._changes.count or not rows.count:
            return np.zeros(rows.count, np.bool_)
        found = np.zeros(rows.count, np.bool_)
        most = max(1, self._block // self._changes.count)
        for start in range(0, rows.count, most):
            block = np.arange(start, min(rows.count, start + most))
            found[block] = self._block_pairs(rows.take(block))
        return found

    def _block_pairs(self, rows: Rows) -> Mask:
        wide = self._changes.count
        left = rows.take(np.repeat(np.arange(rows.count), wide))
        both = left.add(self._changes.take(np.tile(np.arange(wide), rows.count)).columns)
        kept = np.ones(both.count, np.bool_)
        for condition in self._rest:
            kept &= np.asarray(truth(condition, both))
        return np.asarray(kept.reshape(rows.count, wide).any(axis=1))

    def _rows(self, rows: pa.Table) -> Rows:
        vectors = {
            name: Vector.of(rows.column(column.name), column.type) for name, column in self._fields.items()
        }
        return Rows(vectors, rows.num_rows)

    def _empty(self) -> Rows:
        return self._rows(empty(tuple(self._fields.values())))


def _split(conditions: Sequence[exp.Expr], fields: set[str]) -> tuple[list[_Comparison], list[exp.Expr]]:
    """The comparisons of a column with an expression over changes only, and all other conditions."""
    comparisons: list[_Comparison] = []
    rest: list[exp.Expr] = []
    for condition in conditions:
        found = _comparisons(condition, fields)
        if found:
            comparisons += found
        else:
            rest.append(condition)
    return comparisons, rest


def _comparisons(condition: exp.Expr, fields: set[str]) -> list[_Comparison]:
    """What a condition amounts to; nothing where it is no comparison."""
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        sides = [_comparisons(each, fields) for each in (bare.left, bare.right)]
        return [*sides[0], *sides[1]] if all(sides) else []
    if isinstance(bare, exp.Between):
        parts = [
            exp.GTE(this=bare.this.copy(), expression=bare.args["low"].copy()),
            exp.LTE(this=bare.this.copy(), expression=bare.args["high"].copy()),
        ]
        sides = [_comparisons(each, fields) for each in parts]
        return [*sides[0], *sides[1]] if all(sides) else []
    if not isinstance(bare, (exp.LT, exp.LTE, exp.GT, exp.GTE)):
        return []
    left, right = bare.left.unnest(), bare.right.unnest()
    kind: type[exp.Expr] = type(bare)
    if not (isinstance(left, exp.Column) and left.name in fields):
        left, right, kind = right, left, _FLIPPED[kind]
    if not (isinstance(left, exp.Column) and left.name in fields) or references(right) & fields:
        return []
    return [_Comparison(left.name, kind in (exp.GT, exp.GTE), right)]


def _intervals(comparisons: Sequence[_Comparison], name: str, changes: Rows, none: Rows) -> _Intervals:
    """Where a column can lie for some change: the union of an interval for each. Raises UnsupportedError, TooLargeError."""
    bounds = [evaluate(each.bound, changes) for each in comparisons]
    kind = common_type([none[name].type, *(bound.type for bound in bounds)])
    if not (is_number(kind) or isinstance(kind, (t.DateType, t.TimestampType, t.TimestampNTZType))):
        raise UnsupportedError(f"an interval of {kind.simpleString()}")
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    low, high = np.full(changes.count, least), np.full(changes.count, most)
    there = np.ones(changes.count, np.bool_)
    for each, bound in zip(comparisons, bounds):
        values = retype(bound, kind).values
        there &= np.asarray(values.is_valid())
        if each.lower:
            low = np.maximum(low, _numbers(values))
        else:
            high = np.minimum(high, _numbers(values))
    there &= low <= high
    return _Intervals(name, kind, *_union(low[there], high[there]))


def _union(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """Disjoint intervals that cover the same numbers, in order.

    >>> [each.tolist() for each in _union(np.array([5, 1, 2]), np.array([6, 3, 4]))]
    [[1, 5], [4, 6]]
    """
    if not len(low):
        return low, high
    order = sort_places(low)
    low, reached = low[order], np.maximum.accumulate(high[order])
    starts = np.flatnonzero(np.r_[True, low[1:] > reached[:-1]])
    return low[starts], reached[np.r_[starts[1:] - 1, len(low) - 1]]


def _numbers(values: pa.Array) -> Numbers:
    """Values as numbers that compare as they do; NULL is 0."""
    kind = values.type
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    return np.asarray(values.fill_null(0) if values.null_count else values, dtype=np.int64)
