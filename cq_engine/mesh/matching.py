"""The rows of pages that the window wants, decoded in as little room as the budget leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cq_engine.core.columns import Column
from cq_engine.core.types import arrow_schema, arrow_type
from cq_engine.mesh import sizes
from cq_engine.mesh.batches import Asked
from cq_engine.mesh.counters import Counters
from cq_engine.mesh.pages import Source
from cq_engine.mesh.sizes import cuts, row_sizes
from cq_engine.mesh.staged import Staged, spill
from cq_engine.mesh.tuner import Tuner
from cq_engine.mesh.window import Page

__all__ = ["Matching", "fixed_width"]

_SKIPPED = 0.5
"""Where fewer pages than this share have a match, the key column is decoded first, and the others only of pages that have one."""
_UNKNOWN_BYTES = 1_024
"""A row is taken to be at least so large before one was read: text may be much larger than what it takes in a file."""
_ASKED_BYTES = 10
"""What is known of a row while it is asked about: whether somebody wants it, and its place."""


_Chosen: TypeAlias = "tuple[npt.NDArray[np.int64], dict[str, pa.ChunkedArray], int]"


class Matching:
    """Reads pages and keeps the rows that are asked for. A page has a quarter of the budget, or what the window leaves. One that is larger
    is decoded column by column, each in parts of an eighth, or of what is left; of one of which so many rows match that these take more than
    an eighth, all columns in parts of rows."""

    def __init__(self, source: Source, tuner: Tuner, counters: Counters) -> None:
        self.buffer = 0
        """The most bytes that the last read took at a time."""
        self._source = source
        self._made: list[Staged] = []
        """By the read that goes on."""
        self._held = 0
        self._left = 0.0
        """Bytes that the window leaves for what is decoded."""
        self._room = 0.0
        """Bytes for rows that match."""
        self._tuner = tuner
        self._counters = counters
        self._widths: dict[Column, float] = {}
        """What a value of a column took in memory at most, where that has no fixed width."""

    def read(
        self, pages: Sequence[Page], columns: Sequence[Column], asked: Asked, held: int
    ) -> list[list[Staged]]:
        """By page, the rows that some batch in the window wants, while the mesh holds so many bytes. Raises what reading raises."""
        self._held, self._left, self.buffer, self._made = held, self._tuner.left(held), 0, []
        try:
            return self._read(pages, columns, asked)
        except BaseException:
            for part in self._made:  # some are in files
                part.drop_unmet()
            self.buffer = 0
            raise
        finally:
            self._made = []

    def _read(self, pages: Sequence[Page], columns: Sequence[Column], asked: Asked) -> list[list[Staged]]:
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
        row_bytes = _ASKED_BYTES + max(self._row_bytes(page, columns) for page in pages)
        most = int(self._tuner.part(float(ends[0]) * row_bytes, self._left) / row_bytes)
        self._room = self._tuner.room_to_take(self._held, min(float(ends[-1]), max(1, most)) * row_bytes)
        for rows in self._source.read(pages, columns, max(1, most)):
            nbytes += rows.nbytes
            places = np.flatnonzero(asked.probe(rows))
            while len(places) or start + rows.num_rows > ends[page]:
                # What was read may go on into the next page.
                cut = int(np.searchsorted(places, ends[page] - start))
                for chosen in self._cut(rows, places[:cut], keep=keep):
                    part = Staged(chosen)
                    self._made.append(part)
                    self.buffer = max(self.buffer, rows.nbytes + places.nbytes + held + part.nbytes)
                    held += self._spill(part, held)
                    parts[page].append(part)
                places = places[cut:]
                if start + rows.num_rows <= ends[page]:
                    break
                page += 1
            self.buffer = max(self.buffer, rows.nbytes + held)
            start += rows.num_rows
            del rows
        if keep:
            self._tuner.row_bytes = max(1.0, nbytes / max(1, start))
        return parts

    def _cut(self, rows: pa.Table, places: npt.NDArray[np.int64], *, keep: bool) -> Iterator[pa.Table]:
        """The rows at these places, in parts that have room; where they are not to be kept, one without rows."""
        if not keep:
            yield from [rows.slice(0, 0)] * min(1, len(places))
            return
        for start, end in cuts(row_sizes(rows, places), self._room):
            yield rows.take(pa.array(places[start:end]))

    def _row_bytes(self, page: Page, columns: Sequence[Column]) -> float:
        """By what rows took so far, and by what this page says of its own."""
        return max(self._tuner.row_bytes or _UNKNOWN_BYTES, self._source.row_bytes(page, columns))

    def _fits(self, page: Page, columns: Sequence[Column]) -> bool:
        """Is it decoded at once?"""
        nbytes = self._source.rows(page, columns) * self._row_bytes(page, columns)
        return self._tuner.fits(nbytes, self._left)

    def _spill(self, part: Staged, held: int) -> int:
        """Puts rows that were found into a file where too many are held already; what they take in memory then."""
        if held + part.nbytes > self._room:
            self._counters.spilled += spill([part])
        return part.nbytes

    # ------------------------------------------------------------ column by column

    def _by_columns(
        self, page: Page, first: Sequence[Column], columns: Sequence[Column], asked: Asked
    ) -> list[Staged]:
        """The same of one page. Those columns that are asked come first, and the others only where they have a match."""
        count, row_bytes = self._source.rows(page, columns), self._row_bytes(page, columns)
        part, most = self._tuner.part(count * row_bytes, self._left), self._tuner.memory / 8 / row_bytes
        few = count * self._tuner.selectivity <= most
        chosen = self._choose(page, first, asked, part, most) if few else None
        if chosen is None:
            return self._by_rows([page], columns, asked)[0]
        places, taken, nbytes = chosen
        if not len(places):
            self._counters.decoded_keys_only += 1
            return []
        for group in self._groups(page, [c for c in columns if c not in first], part):
            found, start = [], 0
            held = places.nbytes + sum(column.nbytes for column in taken.values())
            for rows in self._columns(page, group, part):
                begin, end = np.searchsorted(places, (start, start + rows.num_rows))
                found.append(rows.take(pa.array(places[begin:end] - start)))
                start, nbytes, held = start + rows.num_rows, nbytes + rows.nbytes, held + found[-1].nbytes
                self.buffer = max(self.buffer, rows.nbytes + held)
                del rows
            taken |= _by_name(found)
        self._tuner.row_bytes = max(1.0, nbytes / max(1, count))
        return [Staged(pa.table([taken[c.name] for c in columns], schema=arrow_schema(columns)))]

    def _choose(
        self, page: Page, first: Sequence[Column], asked: Asked, part: float, most: float
    ) -> _Chosen | None:
        """The places of the rows that are wanted, their values of the columns that are asked, and what was decoded; None where they are
        more than `most`."""
        wanted: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        found, start, count, nbytes, held = [], 0, 0, 0, 0
        for rows in self._columns(page, first, part):
            here = np.flatnonzero(asked.probe(rows))
            count += len(here)
            if count > most:
                return None
            found.append(rows.take(pa.array(here)))
            wanted.append(start + here)
            start, nbytes = start + rows.num_rows, nbytes + rows.nbytes
            held += found[-1].nbytes + here.nbytes
            self.buffer = max(self.buffer, rows.nbytes + held)
            del rows
        return np.concatenate(wanted), _by_name(found) if found else {}, nbytes

    def _columns(self, page: Page, columns: Sequence[Column], part: float) -> Iterator[pa.Table]:
        """All rows of a page, with these columns, in parts of so many bytes."""
        most = int(part / sum(self._width(page, column) for column in columns))
        for rows in self._source.read([page], columns, max(1, most)):
            for column in columns:
                if not fixed_width(column):
                    width = rows.column(column.name).nbytes / max(1, rows.num_rows)
                    self._widths[column] = max(1.0, width, self._widths.get(column, 0.0))
            given = [rows]
            del rows
            yield given.pop()  # nobody here has it while the next part is decoded

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
        fixed = fixed_width(column)
        if fixed is not None:
            return fixed
        return max(self._widths.get(column, _UNKNOWN_BYTES), self._source.row_bytes(page, [column]))


def _by_name(parts: Sequence[pa.Table]) -> dict[str, pa.ChunkedArray]:
    whole = pa.concat_tables(parts)
    return dict(zip(whole.column_names, whole.columns))


@lru_cache(1_024)
def fixed_width(column: Column) -> float | None:
    """Of a column's values."""
    return sizes.fixed_width(arrow_type(column.type))
