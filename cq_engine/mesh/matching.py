"""The rows of pages that the window wants, decoded in as little room as the budget leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema, arrow_type
from cq_engine.mesh.batches import Asked
from cq_engine.mesh.counters import Counters
from cq_engine.mesh.pages import Source
from cq_engine.mesh.staged import Staged, spill
from cq_engine.mesh.tuner import Tuner
from cq_engine.mesh.window import Page

__all__ = ["Matching"]

_SKIPPED = 0.5
"""Where fewer pages than this share have a match, the key column is decoded first, and the others only of pages that have one."""
_UNKNOWN_BYTES = 1_024
"""A row is taken to be at least so large before one was read: text may be much larger than what it takes in a file."""


_PARTS = 3 / 4
"""Of the budget what keys and pages take together where a page has more than its part: an eighth is for the rows of a page that match, and one
for those of pages before it."""


class Matching:
    """Reads pages and keeps the rows that are asked for. A page has a quarter of the budget, or what the window leaves. One that is larger
    is decoded column by column, each in parts of an eighth, or of what is left; of one of which so many rows match that these take more than
    an eighth, all columns in parts of rows."""

    def __init__(self, source: Source, tuner: Tuner, counters: Counters) -> None:
        self.buffer = 0
        """The most bytes that were decoded at a time, since it was set to 0."""
        self._source = source
        self._left = 0.0
        """Bytes that the window leaves for what is decoded."""
        self._tuner = tuner
        self._counters = counters
        self._widths: dict[Column, float] = {}
        """What a value of a column took in memory at most, where that has no fixed width."""

    def read(
        self, pages: Sequence[Page], columns: Sequence[Column], asked: Asked, held: int
    ) -> list[list[Staged]]:
        """By page, the rows that some batch in the window wants, while the mesh holds so many bytes. Raises what reading raises."""
        self._left = self._tuner.memory * _PARTS - held
        first = asked.columns(columns)
        if not 0 < len(first) < len(columns):
            return self._by_rows(pages, columns, asked)
        if len(pages) == 1 and not self._fits(pages[0], columns):
            return [self._by_columns(pages[0], first, columns, asked)]
        if self._tuner.matching < _SKIPPED:
            found = self._by_rows(pages, first, asked, keep=False)
            self._counters.decoded_keys_only += found.count([])
            chosen = [page for page, parts in zip(pages, found) if parts]
            matched = dict(zip(chosen, self._by_rows(chosen, columns, asked) if chosen else ()))
            return [matched.get(page, []) for page in pages]
        return self._by_rows(pages, columns, asked)

    # ------------------------------------------------------------ all columns together

    def _by_rows(
        self, pages: Sequence[Page], columns: Sequence[Column], asked: Asked, *, keep: bool = True
    ) -> list[list[Staged]]:
        """By page, the rows with a key in the window, in parts; where they are not to be kept, the parts are empty."""
        ends = np.cumsum([self._source.rows(page, columns) for page in pages])
        parts: list[list[Staged]] = [[] for _ in pages]
        start, page, nbytes, held = 0, 0, 0, 0
        most = int(self._part(pages[0], columns) / self._row_bytes(pages[0], columns))
        for rows in self._source.read(pages, columns, max(1, most)):
            nbytes += rows.nbytes
            places = np.flatnonzero(asked.probe(rows))
            while len(places) or start + rows.num_rows > ends[page]:
                # What was read may go on into the next page.
                cut = int(np.searchsorted(places, ends[page] - start))
                if cut:
                    part = Staged(rows.take(pa.array(places[: cut if keep else 0])))
                    held += self._spill(part, held)
                    parts[page].append(part)
                places = places[cut:]
                if start + rows.num_rows <= ends[page]:
                    break
                page += 1
            self.buffer = max(self.buffer, rows.nbytes + held)
            start += rows.num_rows
        if keep:
            self._tuner.row_bytes = max(1.0, nbytes / max(1, start))
        return parts

    def _row_bytes(self, page: Page, columns: Sequence[Column]) -> float:
        return self._tuner.row_bytes or max(_UNKNOWN_BYTES, self._source.row_bytes(page, columns))

    def _fits(self, page: Page, columns: Sequence[Column]) -> bool:
        """Is it decoded at once?"""
        return self._tuner.fits(self._page_bytes(page, columns), self._left)

    def _part(self, page: Page, columns: Sequence[Column]) -> float:
        """How many bytes of it are decoded at a time."""
        return self._tuner.part(self._page_bytes(page, columns), self._left)

    def _page_bytes(self, page: Page, columns: Sequence[Column]) -> float:
        return self._source.rows(page, columns) * self._row_bytes(page, columns)

    def _spill(self, part: Staged, held: int) -> int:
        """Puts rows that were found into a file where too many are held already; what they take in memory then."""
        if held + part.nbytes > self._tuner.memory / 8:
            self._counters.spilled += spill([part])
        return part.nbytes

    # ------------------------------------------------------------ column by column

    def _by_columns(
        self, page: Page, first: Sequence[Column], columns: Sequence[Column], asked: Asked
    ) -> list[Staged]:
        """The same of one page. Those columns that are asked come first, and the others only where they have a match."""
        count, room = self._source.rows(page, columns), self._tuner.memory / 8  # of rows that match
        if count * self._tuner.selectivity * self._row_bytes(page, columns) > room:
            return self._by_rows([page], columns, asked)[0]
        wanted: list[npt.NDArray[np.int64]] = []
        found, nbytes, start = [], 0, 0
        part = self._part(page, columns)
        for rows in self._columns(page, first, part):
            here = np.flatnonzero(asked.probe(rows))
            found.append(rows.take(pa.array(here)))
            wanted.append(start + here)
            start, nbytes = start + rows.num_rows, nbytes + rows.nbytes
        places = np.concatenate(wanted) if wanted else np.zeros(0, np.int64)
        if not len(places):
            self._counters.decoded_keys_only += 1
            return []
        if len(places) * self._row_bytes(page, columns) > room:
            return self._by_rows([page], columns, asked)[0]
        taken, held = _by_name(found), places.nbytes + sum(part.nbytes for part in found)
        for group in self._groups(page, [c for c in columns if c not in first], part):
            found, start = [], 0
            for rows in self._columns(page, group, part, held):
                begin, end = np.searchsorted(places, (start, start + rows.num_rows))
                found.append(rows.take(pa.array(places[begin:end] - start)))
                start, nbytes = start + rows.num_rows, nbytes + rows.nbytes
            taken |= _by_name(found)
            held += sum(part.nbytes for part in found)
        self._tuner.row_bytes = max(1.0, nbytes / max(1, count))
        return [Staged(pa.table([taken[c.name] for c in columns], schema=arrow_schema(columns)))]

    def _columns(
        self, page: Page, columns: Sequence[Column], part: float, held: int = 0
    ) -> Iterator[pa.Table]:
        """All rows of a page, with these columns, in parts of so many bytes, while `held` bytes are held beside."""
        width = sum(self._width(page, column) for column in columns)
        most = int(part / width)
        for rows in self._source.read([page], columns, max(1, most)):
            for column in columns:
                if not _fixed_width(column):
                    width = rows.column(column.name).nbytes / max(1, rows.num_rows)
                    self._widths[column] = max(1.0, width, self._widths.get(column, 0.0))
            self.buffer = max(self.buffer, rows.nbytes + held)
            yield rows

    def _groups(self, page: Page, columns: Sequence[Column], part: float) -> Iterator[list[Column]]:
        """The columns in as few groups as have room for all rows of the page at once, or one by one."""
        room = part / max(1, self._source.rows(page, columns))
        group: list[Column] = []
        taken = 0.0
        for column in columns:
            width = self._width(page, column)
            if group and taken + width > room:
                yield group
                group, taken = [], 0.0
            group.append(column)
            taken += width
        yield group

    def _width(self, page: Page, column: Column) -> float:
        """Bytes of a value."""
        known = _fixed_width(column) or self._widths.get(column)
        return known or max(_UNKNOWN_BYTES, self._source.row_bytes(page, [column]))


def _by_name(parts: Sequence[pa.Table]) -> dict[str, pa.ChunkedArray]:
    whole = pa.concat_tables(parts)
    return dict(zip(whole.column_names, whole.columns))


@lru_cache(1_024)
def _fixed_width(column: Column) -> float | None:
    """Bytes of each value, with the bit that says whether it is there; None where they differ."""
    try:
        return (float(arrow_type(column.type).bit_width) + 1) / 8
    except ValueError:
        return None
