"""Joins without an equality of columns in a mesh: which rows of a table meet a change under `<`, `BETWEEN`, `a = b + 1` or any other condition.

A comparison of a column of the table with an expression over the change says in which interval the column's values lie. The intervals of all
changes, joined where they overlap, are searched for each row (the ordered buffer of MESHJOIN's section 3.3). Of an equality between an expression
over the row and one over the change, the changes' values are kept and looked up. Where another condition is left, the rows that are left meet the changes in
blocks, and it is evaluated for every pair, unless they are very many and the row was chosen by another one.

What is found may be more than what joins: the plan has the conditions itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from sqlglot import exp

from cq_engine.algebra.nodes import references
from cq_engine.core.arrays import sort_places
from cq_engine.core.columns import Column
from cq_engine.evaluation.expressions import evaluate, truth
from cq_engine.evaluation.joins import equality
from cq_engine.evaluation.vectors import (
    Rows,
    TooLargeError,
    UnsupportedError,
    Vector,
    common_type,
    is_number,
    retype,
)
from cq_engine.mesh.packed_keys import Keys, in_order, is_numeric
from cq_engine.storage.rows import empty

__all__ = ["Meeting"]

_MOST_TEXTS = 10_000
"""Values that are no numbers, which are put into a hash table for every part of a page."""
_PAIRS = 1_000_000
"""Pairs of a row and a change that a condition is evaluated for at a time."""
_PAIR_BYTES = 64
"""Of a pair while that happens, beside its texts, which are there twice."""
_MOST_BLOCKS = 100_000
"""Blocks of pairs for a part of a page at most: wide texts make them small."""
_MOST_PAIRS = 16_000_000
"""Pairs that are asked about at most for a part of a page, where intervals or an equality have chosen its rows."""
_PAIR_SECONDS = 5e-8
"""What asking about a pair takes, about."""
_FLIPPED: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}

_COMPARED = (t.BooleanType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType)
"""Values of these and of whole numbers and decimals are equal where Arrow's are; of texts those without a collation."""

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


@dataclass(frozen=True)
class _Values:
    """The values that an expression over a row has to have, compared as `type`."""

    expression: exp.Expr
    type: t.DataType
    keys: Keys

    def holds(self, rows: Rows) -> Mask:
        return self.keys.has(retype(evaluate(self.expression, rows), self.type).values)


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
        self._room = min(memory, _PAIRS * _PAIR_BYTES)
        self._wide = _text_bytes(changes)
        comparisons, others = _split(conditions, set(fields))
        self._values: list[_Values] = []
        self._rest: list[exp.Expr] = []
        none = self._empty()
        for condition in others:
            values = _values(condition, changes, none)
            if values is None:
                self._rest.append(condition)
            else:
                self._values.append(values)
        self._intervals = [
            _intervals([each for each in comparisons if each.column == name], name, changes, none)
            for name in dict.fromkeys(each.column for each in comparisons)
        ]
        self.columns = frozenset(column.name for column in fields.values())
        if self._rest:  # says now whether it can be evaluated
            self._block_pairs(none, changes)

    def __len__(self) -> int:
        return self._changes.count

    @property
    def nbytes(self) -> int:
        """What it keeps of the changes, and the pairs that are asked about at a time."""
        kept = sum(each.low.nbytes + each.high.nbytes for each in self._intervals)
        kept += sum(each.keys.room for each in self._values)
        if self._rest:
            kept += sum(int(vector.values.nbytes) for vector in self._changes.columns.values())
            kept += self._room
        return kept

    @property
    def seconds_of_pairs(self) -> float:
        """What a row of the table takes beside the look into intervals, if a condition is evaluated with every change."""
        return len(self) * _PAIR_SECONDS if self._rest and not self._chosen else 0.0

    @property
    def _chosen(self) -> bool:
        """Do other conditions choose rows before those that are evaluated for pairs?"""
        return bool(self._values or self._intervals)

    def probe(self, rows: pa.Table) -> Mask:
        """Which rows meet a change, or may meet one. It raises nothing, since others share the scan."""
        try:
            return self._probe(rows)
        except (UnsupportedError, TooLargeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self.failed = True
            return np.zeros(rows.num_rows, np.bool_)

    def _probe(self, rows: pa.Table) -> Mask:
        mine = self._rows(rows)
        found = np.ones(rows.num_rows, np.bool_)
        for each in self._intervals:
            found &= each.holds(mine)
        for value in self._values:
            found &= value.holds(mine)
        if self._rest:
            places = np.flatnonzero(found)
            if not self._chosen or len(places) * len(self) <= _MOST_PAIRS:
                found[places] = self._pairs(mine.take(places))
        return found

    def _pairs(self, rows: Rows) -> Mask:
        """Which rows have a change for which the other conditions are true."""
        found = np.zeros(rows.count, np.bool_)
        if not self._changes.count or not rows.count:
            return found
        block = max(1, self._room // (_PAIR_BYTES + 2 * (self._wide + _text_bytes(rows))))
        if rows.count * self._changes.count > block * _MOST_BLOCKS:
            raise TooLargeError("pairs of wide texts")
        wide = min(self._changes.count, block)
        most = max(1, block // wide)
        for begin in range(0, self._changes.count, wide):
            part = np.arange(begin, min(self._changes.count, begin + wide))
            changes = self._changes if len(part) == self._changes.count else self._changes.take(part)
            for start in range(0, rows.count, most):
                chosen = np.arange(start, min(rows.count, start + most))
                found[chosen] |= self._block_pairs(rows.take(chosen), changes)
        return found

    def _block_pairs(self, rows: Rows, changes: Rows) -> Mask:
        wide = changes.count
        left = rows.take(np.repeat(np.arange(rows.count), wide))
        both = left.add(changes.take(np.tile(np.arange(wide), rows.count)).columns)
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


def _text_bytes(rows: Rows) -> int:
    """What the texts of one row take at most."""
    kinds = (t.StringType, t.BinaryType)
    texts = [each.values for each in rows.columns.values() if isinstance(each.type, kinds)]
    return sum(pc.max(pc.binary_length(values)).as_py() or 0 for values in texts)


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


def _values(condition: exp.Expr, changes: Rows, none: Rows) -> _Values | None:
    """Of an equality between an expression over rows and one over changes, the values of the latter; None for any other condition, or where they are of
    a type whose values are equal in other ways than Arrow's. Raises UnsupportedError, TooLargeError."""
    sides = equality(condition, none, changes)
    if sides is None:
        return None
    mine, theirs, null_safe = sides
    bound = evaluate(theirs, changes)
    kind = common_type([evaluate(mine, none).type, bound.type])
    if not (is_number(kind) or isinstance(kind, _COMPARED) or kind == t.StringType()):
        return None
    values = in_order(retype(bound, kind).values)
    if not is_numeric(values.type) and len(values) > _MOST_TEXTS:
        raise TooLargeError("an equality of texts")
    if not null_safe:
        values = values.slice(0, len(values) - values.null_count)
    return _Values(mine, kind, Keys.of(values))


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
