"""What a mesh has learnt of its table and its machine, and the w and b that follow from it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from cq_engine.mesh.cost import Factors, Model, Relation, Stream, Tuning
from cq_engine.mesh.packed_keys import BYTES_PER_KEY

__all__ = ["Tuner"]

_LEARNT = 0.1
"""The weight of one page in what is known of many."""
_DENSEST = BYTES_PER_KEY / 4
"""Keys that take less count as so many bytes: what a refresh gets in the end grows with its keys, and is not in the budget."""
_MODELLED = 7 / 8
"""The share of the budget that equation 1 is about; the rest is for rows that match, which it leaves out: half of it for those of earlier
reads, a quarter for those of this read, and one for those that are being taken; more where the window leaves it."""
_PARTS = 3 / 4
"""Of the budget what keys and pages take together where a page has more than its part: an eighth is for the rows of a page that match, and one
for those of pages before it."""


class _Tuned(NamedTuple):
    """What was found for a budget and what has been measured, which are the key."""

    key: tuple[object, ...]
    tuning: Tuning
    room: float


class Tuner:
    """Keeps w and b at their best for a budget of `memory` bytes, as measurements come in."""

    def __init__(self, memory: int, factors: Factors) -> None:
        self.memory = memory
        self.factors = factors
        self.key_bytes: float = BYTES_PER_KEY
        """What a key takes in the window, of late."""
        self.row_bytes: float | None = None
        """Of a row in memory; None before one was read."""
        self.matching = 1.0
        """The share of pages with a match, of late."""
        self.selectivity = 0.0
        """The share of rows that match, of late."""
        self._tuned: _Tuned | None = None

    def model(self, pages: int, page_rows: float, row_bytes: float) -> Model:
        """The cost model of a table of so many pages, with what has been measured; `row_bytes` counts as long as nothing has."""
        known = self.row_bytes or row_bytes
        usual, share = Stream(), self.key_bytes / BYTES_PER_KEY
        stream = Stream(share * usual.row_bytes, usual.fudge, share * usual.pointer_bytes)
        return Model(
            Relation(max(1, pages), page_rows * known, known, self.selectivity), stream, self.factors
        )

    def tune(self, model: Model) -> Tuning:
        """The w and b with the best rate, with at most a quarter of the budget for pages.

        It is found anew when what has been measured has changed by a tenth.
        """
        return self._tune(model).tuning

    def left(self, held: int) -> float:
        """Bytes for what is decoded, while window and matches hold so many."""
        return self.memory * _PARTS - held

    def room_to_stage(self, window: int) -> float:
        """Bytes for rows that match until their batches expire, while keys take so many."""
        return self.memory / (8 if window <= self.memory / 2 else 16)

    def room_to_take(self, held: int, decoded: float) -> float:
        """Bytes for rows that match in a read, and as many for a part of them that is being taken, while window and earlier matches hold so
        many, and so many are decoded at a time."""
        return min(max(self.memory / 32, (self.memory - held - decoded) / 2), self.memory / 8)

    def pages_that_fit(self, model: Model, held: int) -> int:
        """How many pages that leaves room for, with some to spare: for the bits that say which values are there."""
        return int((self.left(held) - self.memory / 16) / model.relation.page_bytes)

    def room(self, model: Model) -> float:
        """What the keys of the window may take then, in bytes."""
        return self._tune(model).room

    def _tune(self, model: Model) -> _Tuned:
        relation = model.relation
        measured = (
            relation.page_bytes,
            model.factors.page_byte,
            1e-6 + relation.selectivity,
            model.stream.row_bytes,
        )
        key = (self.memory, relation.pages, *(round(10 * math.log(each)) for each in measured))
        known = self._tuned  # read once, and replaced: several threads come here
        if known is None or known.key != key:
            known = self._tuned = _Tuned(key, *self._best(model))
        return known

    def _best(self, model: Model) -> tuple[Tuning, float]:
        key_bytes = BYTES_PER_KEY * model.stream.row_bytes / Stream().row_bytes
        pages, modelled = model.relation.pages, self.memory * _MODELLED
        most = int(self.memory / 4 / model.relation.page_bytes)
        keys = self.memory * 5 / 8 / key_bytes
        if most:
            chunk = min(model.best_rate(modelled).chunk, most)
            window = model.largest_batch(modelled, chunk) * pages / chunk
            window = min(window, keys)
        else:  # a page is decoded in parts, which take half of what pages may
            chunk, window = 1, self.memory * 11 / 16 / key_bytes
        window = max(1.0, window)
        return model.of(window * chunk / pages, chunk), window * key_bytes

    def fits(self, page_bytes: float, left: float = 0.0) -> bool:
        """Is a page decoded at once, while the window leaves so many bytes?"""
        return page_bytes <= max(self.memory / 4, left)

    def part(self, page_bytes: float, left: float = 0.0) -> float:
        """How many bytes are decoded at a time: of pages that fit a quarter of the budget, else an eighth; or what the window leaves."""
        return max(self.memory / (4 if self.fits(page_bytes, left) else 8), left)

    def note_keys(self, count: int, room: int, *, numeric: bool = True) -> None:
        """So many keys that came together take so many bytes in the window."""
        if count:
            each = max(_DENSEST, room / count)
            self.key_bytes = min(each, BYTES_PER_KEY) if numeric else each

    def learn(self, pages: int, rows: int, matching: int, matches: int, seconds: float) -> None:
        """A read of pages took so long; some of them had matches.

        What a read costs beyond requests, probes and matches is put down to the bytes.
        """
        known = self.factors
        rest = seconds - known.request - rows * known.probe - matches * known.produce
        page_byte = max(1e-12, rest / max(1.0, rows * (self.row_bytes or 1.0)))
        weight = 1 - (1 - _LEARNT) ** pages
        self.factors = replace(known, page_byte=known.page_byte + weight * (page_byte - known.page_byte))
        self.matching += weight * (matching / max(1, pages) - self.matching)
        self.selectivity += weight * (matches / max(1, rows) - self.selectivity)
