"""H of MESHJOIN: the keys of all changes in the window, which the rows of a page are asked against.

Keys that are whole numbers to Arrow (integers, dates, times) stand in order, with the number of batches that want them, below a filter of one
byte per slot (Bloom, CACM 1970, with one hash function): most rows of a page are ruled out by one load from it, the others by binary search. It is
made when a batch comes or goes, not for every page. Other types are compared by Arrow's own hash table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BYTES_PER_KEY", "HashedKeys"]

BYTES_PER_KEY = 64
"""What a key takes at most with its count and its slots, and while another batch is merged in."""
_SLOTS = 8
"""Slots per key, up to twice as many: about one row in so many passes the filter without being wanted."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiplicative hashing (Knuth, TAOCP 3, 6.4)."""

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class _Numbers(NamedTuple):
    """Distinct keys in order, how many batches want each, and the filter's slots. It is replaced, never changed."""

    keys: Numbers
    counts: Numbers
    slots: Mask

    @classmethod
    def of(cls, keys: Numbers, counts: Numbers) -> _Numbers:
        if not len(keys):
            return _NOTHING
        slots = np.zeros(1 << (_SLOTS * len(keys) - 1).bit_length(), np.bool_)
        slots[_hash(keys, len(slots))] = True
        return cls(keys, counts, slots)

    def search(self, values: Numbers) -> Mask:
        found = np.zeros(len(values), np.bool_)
        if not len(self.keys):
            return found
        places = np.flatnonzero(self.slots[_hash(values, len(self.slots))])
        passed = values[places]
        at = np.minimum(np.searchsorted(self.keys, passed), len(self.keys) - 1)
        found[places] = self.keys[at] == passed
        return found


_NOTHING = _Numbers(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(0, np.bool_))


class HashedKeys:
    """The keys of one column. A batch's keys are distinct; NULL may be one of them. One thread may ask while another takes keys out."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._nulls = 0
        self._numbers = _NOTHING
        self._batches: list[pa.Array] = []
        self._whole = pa.array([], kind)
        self.is_numeric = _is_numeric(kind)

    def __len__(self) -> int:
        """How many keys there are, each once, without NULL."""
        return len(self._numbers.keys) if self.is_numeric else len(self._whole)

    @property
    def nbytes(self) -> int:
        """What the structure takes."""
        if self.is_numeric:
            return sum(int(array.nbytes) for array in self._numbers)
        return 3 * int(self._whole.nbytes)

    def add(self, values: pa.Array) -> None:
        """Takes the keys of a batch in."""
        self._nulls += bool(values.null_count)
        came = values.drop_null()
        if not self.is_numeric:
            self._batches.append(came)
            self._gather()
            return
        keys, counts, _ = self._numbers
        both = np.concatenate([keys, _numbers(came)])
        counts = np.concatenate([counts, np.ones(len(came), np.int64)])
        order = np.argsort(both, kind="stable")
        both, counts = both[order], counts[order]
        if len(both):
            starts = np.flatnonzero(np.r_[True, both[1:] != both[:-1]])
            self._numbers = _Numbers.of(both[starts], np.add.reduceat(counts, starts))

    def remove(self, values: pa.Array) -> None:
        """Takes the keys of a batch out; a key that another batch wants stays."""
        self._nulls -= bool(values.null_count)
        gone = values.drop_null()
        if not self.is_numeric:
            place = next(n for n, each in enumerate(self._batches) if each.equals(gone))
            del self._batches[place]
            self._gather()
            return
        keys, counts, _ = self._numbers
        counts = counts.copy()
        counts[np.searchsorted(keys, _numbers(gone))] -= 1
        stay = counts > 0
        self._numbers = _Numbers.of(keys[stay], counts[stay])

    def probe(self, column: pa.Array) -> Mask:
        """Which of the values some batch wants."""
        if self.is_numeric:
            whole = column.fill_null(_zero(column.type)) if column.null_count else column
            mask = self._numbers.search(_numbers(whole))
        else:
            mask = np.asarray(pc.is_in(column, value_set=self._whole))
        if column.null_count:
            missing = np.asarray(column.is_null())
            mask = np.where(missing, self._nulls > 0, mask)
        return np.asarray(mask, np.bool_)

    def _gather(self) -> None:
        parts = self._batches or [pa.array([], self._kind)]
        self._whole = pc.unique(pa.chunked_array(parts).combine_chunks())


def _hash(keys: Numbers, slots: int) -> npt.NDArray[np.uint64]:
    """A slot for each key; `slots` is a power of two, at least 2."""
    spread: npt.NDArray[np.uint64] = keys.view(np.uint64) * _MULTIPLIER
    slot: npt.NDArray[np.uint64] = spread >> np.uint64(64 - (slots.bit_length() - 1))
    return slot


def _is_numeric(kind: pa.DataType) -> bool:
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
