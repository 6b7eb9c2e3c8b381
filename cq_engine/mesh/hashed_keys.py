"""H of MESHJOIN: the keys of all changes in the window, which the rows of a page are asked against.

Keys that are whole numbers stay packed in the batches (packed_keys.py): of dense ones a row's bit is looked at; above the others is one filter of
bits (Bloom, CACM 1970, with one hash function), so that most rows of a page are ruled out by one look at it, and the rest by binary search in
each batch. The filter takes one to two bytes per key, since the more keys there are the more of them share a read. Other types are compared by
Arrow's own hash table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.mesh.packed_keys import (
    Keys,
    Mask,
    Numbers,
    PackedNumbers,
    Slots,
    has_bits,
    is_numeric,
    numbers_of,
    set_bits,
)

__all__ = ["PROBED", "HashedKeys"]

PROBED = 1 << 14
"""Rows that are asked about at a time: asking takes some 20 bytes a row beside them, which nobody counts."""

_BITS = 8
"""Bits per key, up to twice as many: about one row in so many passes the filter without being wanted."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiplicative hashing (Knuth, TAOCP 3, 6.4)."""


class _Numbers(NamedTuple):
    """The dense batches, the others, and the filter's bits for these. It is replaced, never changed."""

    dense: tuple[PackedNumbers, ...]
    others: tuple[PackedNumbers, ...]
    bits: npt.NDArray[np.uint8]

    def of(self, batches: Sequence[PackedNumbers]) -> _Numbers:
        """Those of other batches; the filter is made anew where others are in it."""
        dense = tuple(each for each in batches if each.distances is None)
        others = tuple(each for each in batches if each.distances is not None)
        if others == self.others:
            return _Numbers(dense, others, self.bits)
        count = sum(len(each.distances) for each in others if each.distances is not None)
        bits = np.zeros((1 << max(3, (_BITS * count - 1).bit_length())) // 8 if count else 0, np.uint8)
        for batch in others:
            for block in batch.blocks():
                set_bits(bits, np.sort(_slots(block, bits)))
        return _Numbers(dense, others, bits)

    def search(self, values: Numbers) -> Mask:
        found = np.zeros(len(values), np.bool_)
        for batch in self.dense:
            found |= batch.has(values)
        if len(self.bits):
            places = np.flatnonzero(has_bits(self.bits, _slots(values, self.bits)))
            passed = values[places]
            wanted = np.zeros(len(passed), np.bool_)
            for batch in self.others:
                wanted |= batch.has(passed)
            found[places] |= wanted
        return found


class HashedKeys:
    """The keys of one column, by batch. One thread may ask while another takes keys out."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._batches: list[Keys] = []
        self._numbers = _Numbers((), (), np.zeros(0, np.uint8))
        self._whole = pa.array([], kind)
        self.is_numeric = is_numeric(kind)

    @property
    def nbytes(self) -> int:
        """What the structure takes beside the batches' own keys (and those, of types that are no numbers)."""
        return int(self._numbers.bits.nbytes if self.is_numeric else 3 * self._whole.nbytes)

    def add(self, keys: Keys) -> None:
        """Takes the keys of a batch in."""
        self._batches.append(keys)
        self._gather()

    def remove(self, keys: Keys) -> None:
        """Takes the keys of a batch out, which is the same object; a key that another batch wants stays."""
        del self._batches[next(n for n, each in enumerate(self._batches) if each is keys)]
        self._gather()

    def probe(self, column: pa.Array) -> Mask:
        """Which of the values some batch wants."""
        if self.is_numeric:
            parts = [column.slice(start, PROBED) for start in range(0, len(column), PROBED)]
            found = [self._numbers.search(numbers_of(part)) for part in parts]
            mask = np.concatenate(found) if found else np.zeros(0, np.bool_)
        else:
            mask = np.asarray(pc.is_in(column, value_set=self._whole))
        if column.null_count:
            wanted = any(each.has_null for each in list(self._batches))
            mask = np.where(np.asarray(column.is_null()), wanted, mask)
        return np.asarray(mask, np.bool_)

    def _gather(self) -> None:
        if self.is_numeric:
            self._numbers = self._numbers.of(
                [each.numbers for each in self._batches if each.numbers is not None]
            )
            return
        whole = [each.values for each in self._batches] or [pa.array([], self._kind)]
        self._whole = pc.unique(pa.chunked_array(whole).combine_chunks())


def _slots(keys: Numbers, bits: npt.NDArray[np.uint8]) -> Slots:
    """The number of each key's bit in a filter, which has a power of two of them."""
    spread: Slots = keys.view(np.uint64) * _MULTIPLIER
    found: Slots = spread >> np.uint64(64 - (8 * len(bits)).bit_length() + 1)
    return found
