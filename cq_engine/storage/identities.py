"""Identities of many rows as numbers, which Arrow and NumPy compare at once.

Two rows have the same number exactly where `rows.identity_keys` gives them the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.core.arrays import distinct, encode_values, first_places, is_in, number_values, sort_places
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_type
from cq_engine.storage.rows import identity_keys

__all__ = ["Identities", "KeySet", "Numbers", "combinations", "find_places"]

Numbers: TypeAlias = "npt.NDArray[np.int64]"

_MOST = 2**62
"""Numbers of combinations that fit into 64 bits."""
_NEAR = 43
"""Bits that the range of whole numbers and the number of rows may have for the numbers to be taken as they are: the versions of a
hundred thousand commits are sorted with them in one number (`sort_places`)."""


def find_places(wanted: Numbers, among: Numbers) -> Numbers:
    """Of each number the place of the first equal one in `among`; -1 where there is none.

    >>> find_places(np.array([7, 5, 6]), np.array([5, 7, 5])).tolist()
    [1, 0, -1]
    """
    if not len(among):
        return np.full(len(wanted), -1)
    order = sort_places(among)
    ordered = among[order]
    places = np.minimum(np.searchsorted(ordered, wanted), len(among) - 1)
    return np.where(ordered[places] == wanted, order[places], -1)


class Identities:
    """Numbers the identities that `rows` have in `columns`; `numbers` are those of `rows`, in order.

    One column of whole numbers that are not far apart is taken as it is; others are numbered each by itself where there are
    fewer than `most` combinations.
    """

    def __init__(self, rows: pa.Table, columns: Sequence[Column], most: int = _MOST) -> None:
        self._columns = tuple(columns)
        self._rows = rows.select([c.name for c in columns])
        self._values: list[pa.Array] | None = None
        self._low: int | None = None
        near = _near(self._rows, self._columns)
        if near is not None:
            self._low, self.numbers = near
            return
        if all(_is_plain(c, rows.schema.field(c.name).type) for c in columns):
            encoded = [encode_values(rows.column(c.name)) for c in columns]
            if prod(len(values) for values, _ in encoded) < most:
                self._values = [values for values, _ in encoded]
                self.numbers = _combine((places for _, places in encoded), self._values, rows.num_rows)
                return
        self.numbers = self.find(rows)

    @property
    def is_plain(self) -> bool:
        """Are they numbered column by column, by Arrow? Else by Python, row by row."""
        return self._values is not None or self._low is not None

    def first_places(self) -> Numbers:
        """Where each identity of `rows` stands first."""
        return first_places(number_values(self.numbers))

    def find(self, rows: pa.Table) -> Numbers:
        """The number of each row's identity; one that no row of `self` has may be -1, or a number of no other row."""
        if self._low is not None:
            near = rows.column(self._columns[0].name)
            if _is_whole(near.type):
                return _above(near, self._low)
        if self._values is None or not self._comparable(rows):
            keys = identity_keys(rows, self._columns)
            return np.fromiter((self._places.get(key, -1) for key in keys), np.int64, len(keys))
        columns = zip(self._columns, self._values)
        places = [_index_in(rows.column(column.name), values) for column, values in columns]
        found = _combine(places, self._values, rows.num_rows)
        for each in places:
            found[each < 0] = -1
        return found

    def _comparable(self, rows: pa.Table) -> bool:
        """Does Arrow compare the values of these rows with the known ones as Python would?"""
        kinds = [(rows.schema.field(c.name).type, v.type) for c, v in zip(self._columns, self._values or ())]
        return all(
            ours == theirs or (pa.types.is_integer(ours) and pa.types.is_integer(theirs))
            for theirs, ours in kinds
        )

    @cached_property
    def _places(self) -> dict[Hashable, int]:
        """By Python key its number: the same as that of `find` by columns, where there is one."""
        keys = identity_keys(self._rows, self._columns)
        if self.is_plain:
            return dict(zip(keys, self.numbers.tolist()))
        places: dict[Hashable, int] = {}
        for key in keys:
            places.setdefault(key, len(places))
        return places


class KeySet:
    """The identities with these numbers."""

    def __init__(self, identities: Identities, numbers: Numbers) -> None:
        self._identities = identities
        self._numbers = distinct(numbers)

    @classmethod
    def of(cls, rows: pa.Table, columns: Sequence[Column]) -> KeySet:
        """Those that the rows have in `columns`."""
        identities = Identities(rows, columns)
        return cls(identities, identities.numbers)

    @property
    def is_plain(self) -> bool:
        """Does Arrow compare them, column by column? Else Python does, row by row."""
        return self._identities.is_plain

    def __len__(self) -> int:
        return len(self._numbers)

    def holds(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which of the rows have an identity of the set."""
        return is_in(self._identities.find(rows), self._numbers)

    def without(self, rows: pa.Table) -> KeySet:
        """The set without the identities that these rows have."""
        gone = self._identities.find(rows)
        return KeySet(self._identities, self._numbers[~is_in(self._numbers, gone)])


def combinations(
    keys: pa.Table, columns: Sequence[Column]
) -> Callable[[pa.Table], npt.NDArray[np.bool_]] | None:
    """Says of rows which have one of the keys in `columns`. None where a key is one value, which a
    restriction says already, or where Arrow does not compare them."""
    if len(columns) < 2:
        return None
    known = KeySet.of(keys, columns)
    return known.holds if known.is_plain else None


def _is_plain(column: Column, kind: pa.DataType) -> bool:
    """Does Arrow take two values of the type for equal exactly where they are the same key?"""
    own = arrow_type(column.type)
    return can(column.type, Use.EQUAL) and (
        kind == own or (pa.types.is_integer(kind) and pa.types.is_integer(own))
    )


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind))


def _near(rows: pa.Table, columns: Sequence[Column]) -> tuple[int, Numbers] | None:
    """The least value of the only column, and how far above it each is; None where there are others, or one is NULL or far away."""
    if len(columns) != 1 or not rows.num_rows or rows.column(0).null_count:
        return None
    kind = rows.schema.field(0).type
    if not _is_whole(kind) or not _is_plain(columns[0], kind):
        return None
    values = np.asarray(rows.column(0)).astype(np.int64, copy=False)
    low = int(values.min())
    bits = (int(values.max()) - low).bit_length() + len(values).bit_length()
    return (low, values - low) if bits <= _NEAR else None


def _above(column: pa.ChunkedArray, low: int) -> Numbers:
    """How far above `low` each value is, modulo 2⁶⁴; below it where it is NULL."""
    there = np.asarray(column.fill_null(0), dtype=np.int64)
    found: Numbers = there - low
    if column.null_count:
        found[np.asarray(column.is_null())] = -1
    return found


def _combine(places: Iterable[Numbers], values: Sequence[pa.Array], count: int) -> Numbers:
    """One number for the places of a row's values in several columns."""
    found = np.zeros(count, np.int64)
    for each, among in zip(places, values):
        found = found * len(among) + each
    return found


def _index_in(column: pa.ChunkedArray, values: pa.Array) -> Numbers:
    """Where each value stands among `values`; -1 for others. NULL is a value."""
    if column.type != values.type:
        column, values = column.cast(pa.int64()), values.cast(pa.int64())
    places = pc.index_in(column, value_set=values).fill_null(-1)
    return np.asarray(places, dtype=np.int64)
