"""H of MESHJOIN: the keys of all changes in the window, which the rows of a page are asked against.

Keys that are whole numbers to Arrow (integers, dates, times) stay in the batches, in order, below one filter of bits for all of them (Bloom, CACM
1970, with one hash function): most rows of a page are ruled out by one look at it, the others by binary search in each batch. It takes one to
two bytes per key beside the key, since the more keys there are the more of them share a read. Other types are compared by Arrow's own hash table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BYTES_PER_KEY", "HashedKeys", "in_order", "is_numeric"]

BYTES_PER_KEY = 14
"""What a key takes at most: itself, its bits, and the bits before it came, which go when it is there; and a little for what a scan holds beside."""
_BITS = 8
"""Bits per key, up to twice as many: about one row in so many passes the filter without being wanted."""
_BLOCK = 4_096
"""Keys that are hashed at a time."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiplicative hashing (Knuth, TAOCP 3, 6.4)."""

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class _Numbers(NamedTuple):
    """The keys of each batch in order, and the filter's bits. It is replaced, never changed."""

    batches: tuple[Numbers, ...]
    bits: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, batches: Sequence[Numbers]) -> _Numbers:
        count = sum(map(len, batches))
        bits = np.zeros((1 << max(3, (_BITS * count - 1).bit_length())) // 8 if count else 0, np.uint8)
        for batch in batches:
            for start in range(0, len(batch), _BLOCK):
                _set_bits(bits, batch[start : start + _BLOCK])
        return cls(tuple(batches), bits)

    def search(self, values: Numbers) -> Mask:
        found = np.zeros(len(values), np.bool_)
        if not len(self.bits):
            return found
        byte, mask = _place(values, len(self.bits))
        places = np.flatnonzero(self.bits[byte] & mask)
        passed = values[places]
        wanted = np.zeros(len(passed), np.bool_)
        for keys in self.batches:
            if len(keys):
                wanted |= keys[np.minimum(np.searchsorted(keys, passed), len(keys) - 1)] == passed
        found[places] = wanted
        return found


class HashedKeys:
    """The keys of one column. A batch's keys are distinct; NULL may be one of them. One thread may ask while another takes keys out."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._nulls = 0
        self._numbers = _Numbers.of(())
        self._batches: list[pa.Array] = []
        self._whole = pa.array([], kind)
        self.is_numeric = is_numeric(kind)

    @property
    def nbytes(self) -> int:
        """What the structure takes beside the batches' own keys (and those, of types that are no numbers)."""
        if self.is_numeric:
            return self._numbers.bits.nbytes
        return 3 * int(self._whole.nbytes)

    def add(self, values: pa.Array) -> None:
        """Takes the keys of a batch in; numbers are in order (`in_order`), NULL last."""
        self._nulls += bool(values.null_count)
        came = values.slice(0, len(values) - 1) if values.null_count else values
        self._batches.append(values)
        if self.is_numeric:
            self._numbers = _Numbers.of((*self._numbers.batches, _numbers(came)))
        else:
            self._gather()

    def remove(self, values: pa.Array) -> None:
        """Takes the keys of a batch out, which is the same object; a key that another batch wants stays."""
        self._nulls -= bool(values.null_count)
        place = next(n for n, each in enumerate(self._batches) if each is values)
        del self._batches[place]
        if self.is_numeric:
            rest = self._numbers.batches
            self._numbers = _Numbers.of((*rest[:place], *rest[place + 1 :]))
        else:
            self._gather()

    def probe(self, column: pa.Array) -> Mask:
        """Which of the values some batch wants."""
        if self.is_numeric:
            whole = column.fill_null(_zero(column.type)) if column.null_count else column
            mask = self._numbers.search(_numbers(whole))
        else:
            mask = np.asarray(pc.is_in(column, value_set=self._whole))
        if column.null_count:
            mask = np.where(np.asarray(column.is_null()), self._nulls > 0, mask)
        return np.asarray(mask, np.bool_)

    def _gather(self) -> None:
        parts = [each.drop_null() for each in self._batches] or [pa.array([], self._kind)]
        self._whole = pc.unique(pa.chunked_array(parts).combine_chunks())


def in_order(values: pa.Array) -> pa.Array:
    """Distinct keys of numbers from the smallest to the largest, NULL last; of other types as they are, NULL last."""
    known = pc.unique(values)
    there = known.drop_null()
    if is_numeric(values.type):
        there = there.take(pa.array(np.argsort(_numbers(there))))
    return pa.concat_arrays([there, pa.nulls(1, known.type)]) if known.null_count else there


def _place(keys: Numbers, count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Of each key the byte and the bit of the filter, which has `count` bytes, a power of two."""
    spread: npt.NDArray[np.uint64] = keys.view(np.uint64) * _MULTIPLIER
    slot: npt.NDArray[np.uint64] = spread >> np.uint64(64 - (8 * count).bit_length() + 1)
    bit = np.left_shift(np.uint8(1), (slot & np.uint64(7)).astype(np.uint8), dtype=np.uint8)
    return slot >> np.uint64(3), bit


def _set_bits(bits: npt.NDArray[np.uint8], keys: Numbers) -> None:
    byte, mask = _place(keys, len(bits))
    order = np.argsort(byte)
    byte, mask = byte[order], mask[order]
    starts = np.flatnonzero(np.r_[True, byte[1:] != byte[:-1]])
    bits[byte[starts]] |= np.bitwise_or.reduceat(mask, starts)


def is_numeric(kind: pa.DataType) -> bool:
    """Does the type stand for whole numbers of up to 64 bits, equal where they are?"""
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_time(kind)
        or pa.types.is_duration(kind)
    )


def _numbers(values: pa.Array) -> Numbers:
    """The numbers that values without NULL are."""
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.view(pa.int32())
    elif not pa.types.is_integer(kind):
        values = values.view(pa.int64())
    return np.ascontiguousarray(np.asarray(values), dtype=np.int64)


def _zero(kind: pa.DataType) -> pa.Scalar:
    narrow = pa.types.is_date32(kind) or pa.types.is_time32(kind)
    if pa.types.is_integer(kind):
        return pa.array([0], kind)[0]
    return pa.array([0], pa.int32() if narrow else pa.int64()).view(kind)[0]
