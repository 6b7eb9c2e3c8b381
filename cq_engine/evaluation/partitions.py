"""Rows in the order of a window: partitions, the peers in them, and numbers and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from sqlglot import exp

from cq_engine.core.arrays import group_starts, sort_places
from cq_engine.evaluation.expressions import evaluate
from cq_engine.evaluation.groups import numbers, order
from cq_engine.evaluation.vectors import Flags, Numbers, Rows

__all__ = ["Partitions"]


@dataclass(frozen=True)
class Partitions:
    """Rows in the order of a window: their places, where partitions begin, and where another value of the order does."""

    places: Numbers
    starts: Numbers
    first: Numbers
    """For each row, in that order, the place in it at which its partition begins."""
    new: Flags
    """Which rows, in that order, have another value of the order than the one before, or another partition."""

    @classmethod
    def of(cls, node: exp.Window, rows: Rows) -> Partitions:
        """The rows as PARTITION BY and ORDER BY of a window say. Raises UnsupportedError."""
        keys = [evaluate(each, rows) for each in node.args.get("partition_by") or ()]
        group = numbers(keys, rows.count)
        given = node.args.get("order")
        orders = [_order(each, rows) for each in (given.expressions if given is not None else ())]
        places = sort_places(group, *orders)
        begins = group_starts(group[places])
        starts = np.flatnonzero(begins)
        first = starts[np.cumsum(begins) - 1] if len(starts) else starts
        new = begins | group_starts(group[places], *(o[places] for o in orders))
        return cls(places, starts, first, new)

    def back(self, values: pa.Array) -> pa.Array:
        """Values in the window's order as the rows stand."""
        return values.take(self._places_back)

    @cached_property
    def _places_back(self) -> pa.Array:
        """Of each row its place in the window's order."""
        where = np.empty(len(self.places), dtype=np.int64)
        where[self.places] = np.arange(len(self.places))
        return pa.array(where)

    @cached_property
    def ends(self) -> Numbers:
        """For each row, in that order, the place behind its partition."""
        return _behind(self.starts, len(self.places))

    @cached_property
    def peers(self) -> tuple[Numbers, Numbers]:
        """Likewise, where the rows with the same value of the order begin, and the place behind them."""
        starts = np.flatnonzero(self.new)
        behind = _behind(starts, len(self.places))
        return np.repeat(starts, np.diff(np.append(starts, len(self.places)))), behind

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


def _behind(starts: Numbers, count: int) -> Numbers:
    """For each of `count` rows the place behind its group, of groups that begin at `starts`."""
    ends = np.append(starts, count)[1:]
    found: Numbers = np.repeat(ends, ends - starts)
    return found


def _order(node: exp.Expr, rows: Rows) -> Numbers:
    if not isinstance(node, exp.Ordered):
        return order(evaluate(node, rows))
    descending = bool(node.args.get("desc"))
    return order(evaluate(node.this, rows), descending=descending, nulls_first=node.args.get("nulls_first"))
