"""Columns with their values in order: the places of wanted values by binary search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.core.arrays import distinct, is_in, is_in_order, one_array, sort_places

__all__ = [
    "Places",
    "Restrict",
    "SortedColumn",
    "can_be_sorted",
    "is_wanted",
    "numbers_of",
    "places_of",
    "sort_numbers",
]

Restrict: TypeAlias = Mapping[str, pa.Array]
"""Column → wanted values. A read with it gives at least the rows that have a wanted value in every column. Only of
columns whose values Arrow compares as Spark does (`Use.EQUAL`)."""
Places: TypeAlias = "npt.NDArray[np.int64]"
_MANY = 2_000
"""Whole numbers that NumPy looks up sooner than Arrow."""


@dataclass
class SortedColumn:
    """A column, its values in order, and their places; without these where `ordered` is the column itself, without both where it has
    no order: where it has NULLs, or values that are no whole numbers."""

    values: pa.ChunkedArray
    ordered: npt.NDArray[np.signedinteger] | None
    places: npt.NDArray[np.signedinteger] | None

    @classmethod
    def of(cls, values: pa.ChunkedArray) -> SortedColumn:
        """A column that is in memory."""
        if not can_be_sorted(values):
            return cls(values, None, None)
        numbers = numbers_of(values)
        return cls(values, numbers, None) if is_in_order(numbers) else cls(values, *sort_numbers(numbers))

    @property
    def order_bytes(self) -> int:
        """What the order takes beside the values."""
        return 0 if self.ordered is None or self.places is None else self.ordered.nbytes + self.places.nbytes

    def ranges(self, values: pa.Array, search: int) -> tuple[Places, Places] | None:
        """For each wanted value, where in `ordered` its rows begin and end; None where there is no order, or the values
        are more than one in `search` of the rows."""
        if self.ordered is None or len(values) * search > len(self.ordered) or not _is_number(values.type):
            return None
        kind = np.iinfo(self.ordered.dtype)
        wanted = distinct(numbers_of(values.drop_null()))
        wanted = wanted[(wanted >= kind.min) & (wanted <= kind.max)].astype(self.ordered.dtype)
        if len(self.ordered):  # of a table that is clustered by the column, a file has one range
            among = (
                np.searchsorted(wanted, self.ordered[0]),
                np.searchsorted(wanted, self.ordered[-1], "right"),
            )
            wanted = wanted[slice(*among)]
        low = np.searchsorted(self.ordered, wanted, "left")
        there = low < len(self.ordered)
        there[there] = self.ordered[low[there]] == wanted[there]
        return low[there], np.searchsorted(self.ordered, wanted[there], "right")

    def at(self, low: Places, high: Places) -> Places:
        """The places, in order, of the rows in these ranges."""
        lengths = high - low
        steps = np.repeat(low - (np.cumsum(lengths) - lengths), lengths)
        found = steps + np.arange(len(steps))
        return found if self.places is None else np.sort(self.places[found].astype(np.int64))


def places_of(
    wanted: Iterable[tuple[SortedColumn, pa.Array]], limit: int, most: int, search: int
) -> Places | None:
    """The places of the rows with a wanted value in every column; None where nothing is restricted. May be longer than
    `limit`, and is then not all that it should be; so where the column that has the fewest has more than `most`."""
    ranges, others = [], []
    for column, values in wanted:
        found = column.ranges(values, search)
        if found is not None:
            ranges.append((int((found[1] - found[0]).sum()), column, found, values))
        else:
            others.append((column, values))
    ranges.sort(key=lambda each: each[0])
    places: Places | None = None
    if ranges:
        if ranges[0][0] > max(limit, most):
            return np.arange(limit + 1)
        places = ranges[0][1].at(*ranges[0][2])
        others = [*((column, values) for _, column, _, values in ranges[1:]), *others]
    for column, values in others:
        among = column.values if places is None else column.values.take(pa.array(places))
        held = np.flatnonzero(np.asarray(is_wanted(among, values.cast(among.type))))
        places = held if places is None else places[held]
    return places


def can_be_sorted(column: pa.ChunkedArray) -> bool:
    """Is it one that is sorted? Whole numbers and dates without NULL, at least one of them."""
    return _is_number(column.type) and not column.null_count and len(column) > 0


def sort_numbers(
    numbers: npt.NDArray[np.signedinteger],
) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.int32]]:
    """Whole numbers in order, and the place of each."""
    order = sort_places(numbers).astype(np.int32)
    return numbers[order], order


def is_wanted(column: pa.ChunkedArray, values: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Which values of a column stand among others of its type; NULL is a value."""
    many = len(column) + len(values) > _MANY
    if not many or column.null_count or not (_is_number(column.type) and _is_number(values.type)):
        return pc.is_in(column, value_set=values)
    return pa.array(
        is_in(*(numbers_of(each).astype(np.int64, copy=False) for each in (column, values.drop_null())))
    )


def numbers_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.signedinteger]:
    """The numbers of a column without NULLs; not copied where it is in one piece."""
    if isinstance(column, pa.ChunkedArray):
        column = one_array(column)
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    numbers: npt.NDArray[np.signedinteger] = column.to_numpy(zero_copy_only=False)
    return numbers


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind))
