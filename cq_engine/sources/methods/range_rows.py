"""What differs between ranges of keys at the source and here (Carnes & Hanson §3.5).

Each range is read from the source by itself. The rows that the warehouse has are asked for once for many ranges: a table that is
not in memory costs a query of Spark each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from cq_engine.core.arrays import is_in
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.sources.bulk import is_empty
from cq_engine.sources.methods.relational import Asked
from cq_engine.sources.sql.database import Session
from cq_engine.sources.sql.model import Statement
from cq_engine.sources.sql.select import Bounds, Key, image_between
from cq_engine.sources.tick import DELETE, UPSERT, Tick, with_operation
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import quote
from cq_engine.storage.identities import find_places
from cq_engine.storage.rows import conform, empty

__all__ = ["RangeRows"]

_APART = 50
"""So many ranges that do not follow one another go well into one condition."""
_Ends = tuple[list[Any] | None, list[Any] | None]
"""A range of keys, (low, high], as values of our columns."""


class RangeRows:
    """The ranges that were read and are not compared yet, and the changes that have been found."""

    def __init__(self, tick: Tick, asked: Asked) -> None:
        self._tick, self._asked = tick, asked
        self._read: list[pa.Table] = []
        self._ends: list[_Ends] = []
        self._rows = 0
        self._changes: list[pa.Table] = []
        self._is_first = is_empty(tick.services, tick.table)
        self.count = 0

    def read(self, session: Session, bounds: Bounds) -> None:
        """Reads a range, and compares once there are many rows. Raises AnalysisError where the driver does not take all."""
        tick = self._tick
        batches = session.batches(image_between(self._asked.selection, *bounds), tick.columns)
        rows, _ = tick.take(batches, tick.services.limits.apply_rows)
        if rows is None:
            raise AnalysisError(
                f"a range of capture {tick.capture.name} has more rows than the driver takes",
                hint="write fewer rows, as in RANGES (rows = 1000)",
            )
        self._read.append(rows)
        low, high = (None if end is None else self._in_our_types(session, end) for end in bounds)
        if self._ends and low is not None and self._ends[-1][1] == low:
            self._ends[-1] = (self._ends[-1][0], high)
        else:
            self._ends.append((low, high))
        self._rows += rows.num_rows
        if self._rows >= tick.services.limits.pending_rows or len(self._ends) >= _APART:
            self._compare()

    def changes(self) -> pa.Table | None:
        """What differs in all ranges that were read, as upserts and deletes; it is given once."""
        self._compare()
        changes, self._changes, self.count = self._changes, [], 0
        return pa.concat_tables(changes) if changes else None

    def _compare(self) -> None:
        if not self._ends:
            return
        rows = pa.concat_tables(self._read) if self._read else empty(self._tick.columns)
        self._tick.check_unique(rows, self._tick.table)
        ours = self._ours().select(rows.column_names)
        theirs, known = self._tick.key_numbers(rows, ours)
        places = find_places(theirs, known)
        there = ours.take(pa.array(places, mask=places < 0))
        new = rows.filter(pa.array((places < 0) | _differ(self._tick, rows, there)))
        gone = ours.filter(pa.array(~is_in(known, theirs)))
        self._changes += [with_operation(new, UPSERT), with_operation(gone, DELETE)]
        self.count += new.num_rows + gone.num_rows
        self._read, self._ends, self._rows = [], [], 0

    def _ours(self) -> pa.Table:
        """The rows of the table whose keys are in the ranges: none, where it was empty before this pass."""
        tick, selection = self._tick, self._asked.selection
        if self._is_first:
            return empty(tick.columns)
        names = [selection.names[place] for place in selection.key_places]
        small = tick.own_rows()
        if small is not None:
            inside = _within([pc.field(name) for name in names], self._ends)
            return small if inside is None else small.filter(inside)
        frame = tick.services.reader.image(tick.table.storage, tick.services.catalog.newest_version)
        ends = [
            tuple(None if end is None else [v.as_py() for v in end] for end in each) for each in self._ends
        ]
        inside = _within([f.col(quote(name)) for name in names], ends)
        return to_arrow(frame if inside is None else frame.where(inside))

    def _in_our_types(self, session: Session, key: Key) -> list[Any]:
        """A key of the source as values of our columns."""
        selection = self._asked.selection
        names = tuple(selection.names[place] for place in selection.key_places)
        batch = session.to_batch(Statement("", names=names), self._tick.columns, [key])
        return [batch.column(place)[0] for place in range(len(names))]


def _differ(tick: Tick, rows: pa.Table, there: pa.Table) -> npt.NDArray[np.bool_]:
    """Of each row whether the row in its place is another, value for value; also where nobody can tell."""
    differ = np.zeros(rows.num_rows, np.bool_)
    for column in tick.columns:
        theirs, known = (conform(each.select([column.name]), [column]).column(0) for each in (rows, there))
        same = _same(column, theirs, known)
        if same is None:
            return np.ones(rows.num_rows, np.bool_)
        differ |= ~same
    return differ


def _same(column: Column, one: pa.ChunkedArray, other: pa.ChunkedArray) -> npt.NDArray[np.bool_] | None:
    """Whether the values are the same bits, NULL among them; None for types that Arrow does not compare so."""
    if pa.types.is_floating(one.type):
        bits = pa.int32() if pa.types.is_float32(one.type) else pa.int64()
        one, other = (each.combine_chunks().view(bits) for each in (one, other))
    elif not (can(column.type, Use.EQUAL) or pa.types.is_string(one.type)):
        return None
    equal = pc.fill_null(pc.equal(one, other), False)
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    return np.asarray(pc.or_(equal, both_null).to_numpy(zero_copy_only=False), np.bool_)


def _within(columns: Sequence[Any], ranges: Sequence[Any]) -> Any:
    """The condition of being in one of the ranges, over columns of Arrow or Spark; None where one has no end."""
    condition = None
    for low, high in ranges:
        above = None if low is None else _beyond(columns, low)
        below = None if high is None else ~_beyond(columns, high)
        inside = above if below is None else below if above is None else above & below
        if inside is None:
            return None
        condition = inside if condition is None else condition | inside
    return condition


def _beyond(columns: Sequence[Any], values: Sequence[Any]) -> Any:
    """Greater than the values, column by column."""
    condition = columns[-1] > values[-1]
    for column, value in reversed(list(zip(columns[:-1], values[:-1]))):
        condition = (column > value) | ((column == value) & condition)
    return condition
