"""The keys of a batch, in as little room as they allow.

Keys that are whole numbers to Arrow (integers, dates, times) are distances from the smallest of a batch: one bit for each number up to the largest
where they are dense, as the surrogate keys of a table are, and the sorted distances in 4 or 8 bytes each where they are not, as in a container of
a Roaring bitmap (Lemire et al., SPE 2016). A batch has keys that follow each other in order, so that the bits of all batches together are
one for each number between the smallest and the largest key. Other types are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.mesh.sizes import cuts, value_sizes

__all__ = [
    "BYTES_PER_KEY",
    "Keys",
    "Mask",
    "Numbers",
    "PackedNumbers",
    "Slots",
    "has_bits",
    "in_order",
    "is_numeric",
    "numbers_of",
    "parts",
    "set_bits",
]

BYTES_PER_KEY = 14
"""What a key that is a number takes at most: itself, its bits in the filter, and the bits before it came, which go when it is there; and a little for what a scan
holds beside."""
_BLOCK = 4_096
"""Keys that are worked on at a time."""
_FILTERED = 6
"""The part of `BYTES_PER_KEY` that is not the key itself."""
_KEPT = 4
"""How often a key that is no number is there: in its batch, and three times in what all are asked by."""

Numbers: TypeAlias = "npt.NDArray[np.int64]"
Slots: TypeAlias = "npt.NDArray[np.uint64]"
Distances: TypeAlias = "npt.NDArray[np.unsignedinteger]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, eq=False)
class PackedNumbers:
    """Distinct whole numbers: `bits` from `first` on, or `distances` from it, in order."""

    first: int
    span: int
    """From the smallest to the largest."""
    bits: npt.NDArray[np.uint8] | None
    distances: Distances | None

    @classmethod
    def of(cls, numbers: Numbers) -> PackedNumbers:
        """Of distinct numbers in order."""
        if not len(numbers):
            return cls(0, 0, None, np.zeros(0, np.uint32))
        first, span = int(numbers[0]), int(numbers[-1]) - int(numbers[0])
        kind = np.dtype(np.uint32 if span < 2**32 else np.uint64)
        if span // 8 + 1 > len(numbers) * (kind.itemsize + _FILTERED):
            return cls(first, span, None, _distances(numbers, first).astype(kind))
        bits = np.zeros(span // 8 + 1, np.uint8)
        for start in range(0, len(numbers), _BLOCK):
            set_bits(bits, _distances(numbers[start : start + _BLOCK], first))
        return cls(first, span, bits, None)

    @property
    def nbytes(self) -> int:
        """What they take."""
        kept = self.distances if self.bits is None else self.bits
        assert kept is not None
        return int(kept.nbytes)

    @property
    def room(self) -> int:
        """What they take in the window at most, with their part of the filter."""
        return self.nbytes + (0 if self.distances is None else _FILTERED * len(self.distances))

    def has(self, values: Numbers) -> Mask:
        """Which of the values are among them."""
        distances = _distances(values, self.first)
        places = np.flatnonzero(distances <= np.uint64(self.span))
        near, found = distances[places], np.zeros(len(values), np.bool_)
        if self.bits is not None:
            found[places] = has_bits(self.bits, near)
        elif self.distances is not None and len(self.distances):
            narrow = near.astype(self.distances.dtype)
            found[places] = self.distances[np.searchsorted(self.distances, narrow)] == narrow
        return found

    def blocks(self) -> Iterator[Numbers]:
        """The numbers that are kept as distances, a few at a time."""
        for start in range(0, 0 if self.distances is None else len(self.distances), _BLOCK):
            assert self.distances is not None
            distances = self.distances[start : start + _BLOCK].astype(np.uint64)
            yield (distances + _unsigned(self.first)).view(np.int64)


@dataclass(frozen=True, eq=False)
class Keys:
    """The distinct keys of a batch, of which NULL may be one: `numbers`, or the others as `values`."""

    count: int
    has_null: bool
    numbers: PackedNumbers | None
    values: pa.Array

    @classmethod
    def of(cls, values: pa.Array) -> Keys:
        """Of distinct keys; those that are numbers are in order, NULL last (`in_order`)."""
        there = values.slice(0, len(values) - values.null_count)
        if is_numeric(values.type):
            none = pa.array([], values.type)
            return cls(len(values), bool(values.null_count), PackedNumbers.of(numbers_of(there)), none)
        return cls(len(values), bool(values.null_count), None, there)

    @property
    def nbytes(self) -> int:
        """What they take."""
        return int(self.values.nbytes) if self.numbers is None else self.numbers.nbytes

    @property
    def room(self) -> int:
        """What they take in the window at most, with their part of what is asked there."""
        return _KEPT * self.nbytes + 1 if self.numbers is None else self.numbers.room + 1

    def has(self, column: pa.Array) -> Mask:
        """Which of the values of a column are among them."""
        if self.numbers is None:
            found = np.asarray(pc.is_in(column, value_set=self.values))
        else:
            found = self.numbers.has(numbers_of(column))
        return np.where(np.asarray(column.is_null()), self.has_null, found) if column.null_count else found


def parts(values: pa.Array, room: float) -> Iterator[pa.Array]:
    """Distinct keys, in order (`in_order`), in parts of one key or more that take at most `room` bytes each in the window."""
    if not is_numeric(values.type):
        for start, end in cuts(_KEPT * value_sizes(values), room):
            yield values.slice(start, end - start)
        return
    numbers = numbers_of(values.slice(0, len(values) - values.null_count))
    room -= 1  # for NULL
    wide, narrow = int(room / BYTES_PER_KEY), int(room / (BYTES_PER_KEY - 4))
    start, count = 0, len(numbers)
    while start < count:
        first = int(numbers[start])
        end = max(
            start + max(1, wide),
            min(start + narrow, _up_to(numbers, first + 2**32 - 1)),
            _up_to(numbers, first + 8 * int(room) - 1),
        )
        yield values.slice(start) if end >= count else values.slice(start, end - start)
        start = end
    if not count and len(values):
        yield values  # NULL


def in_order(values: pa.Array) -> pa.Array:
    """Distinct keys of numbers from the smallest to the largest, NULL last; of other types as they are, NULL last."""
    known = pc.unique(values)
    there = known.drop_null()
    if is_numeric(values.type):
        there = there.take(pa.array(np.argsort(numbers_of(there))))
    return pa.concat_arrays([there, pa.nulls(1, known.type)]) if known.null_count else there


def is_numeric(kind: pa.DataType) -> bool:
    """Does the type stand for whole numbers of up to 64 bits, equal where they are?"""
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_time(kind)
        or pa.types.is_duration(kind)
    )


def numbers_of(values: pa.Array) -> Numbers:
    """The numbers that values are; NULL is 0."""
    kind = values.type
    if values.null_count:
        values = values.fill_null(_zero(kind))
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.view(pa.int32())
    elif not pa.types.is_integer(kind):
        values = values.view(pa.int64())
    return np.ascontiguousarray(np.asarray(values), dtype=np.int64)


def _zero(kind: pa.DataType) -> pa.Scalar:
    """The value that is the number 0."""
    narrow = pa.types.is_date32(kind) or pa.types.is_time32(kind)
    if pa.types.is_integer(kind):
        return pa.array([0], kind)[0]
    return pa.array([0], pa.int32() if narrow else pa.int64()).view(kind)[0]


def has_bits(bits: npt.NDArray[np.uint8], slots: Slots) -> Mask:
    """Which of the bits with these numbers are set."""
    found: Mask = (bits[slots >> np.uint64(3)] & _bit(slots)) != 0
    return found


def set_bits(bits: npt.NDArray[np.uint8], slots: Slots) -> None:
    """Sets the bits with these numbers, which are in order."""
    byte = slots >> np.uint64(3)
    starts = np.flatnonzero(np.r_[True, byte[1:] != byte[:-1]])
    bits[byte[starts]] |= np.bitwise_or.reduceat(_bit(slots), starts)


def _unsigned(number: int) -> np.unsignedinteger[Any]:
    found: np.unsignedinteger[Any] = np.uint64(number % 2**64)
    return found


def _distances(numbers: Numbers, first: int) -> Slots:
    """From `first` to each, modulo 2^64: right for those that are not smaller, and larger than any span for those that are."""
    found: Slots = numbers.view(np.uint64) - _unsigned(first)
    return found


def _bit(slots: Slots) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = np.left_shift(
        np.uint8(1), (slots & np.uint64(7)).astype(np.uint8), dtype=np.uint8
    )
    return found


def _up_to(numbers: Numbers, last: int) -> int:
    """How many are at most `last`."""
    return int(np.searchsorted(numbers, min(last, 2**63 - 1), "right"))
