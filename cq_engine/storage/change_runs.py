"""The change rows of an uncompacted log in a few pieces, which are searched by key: of a long log, a refresh reads what concerns its
delta."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.change_rows import COMMIT_VERSION
from cq_engine.core.arrays import empty_table, is_in_order
from cq_engine.storage.file_look_ups import filter_rows
from cq_engine.storage.sorted_columns import Places, Restrict, SortedColumn, places_of

__all__ = ["ChangeRuns", "Run"]


class Run:
    """Change rows in one piece. With `is_searched`, wanted values are found in sorted copies of the columns, which pays for many rows
    that are kept; else each row is looked at."""

    def __init__(self, rows: pa.Table, is_searched: bool = False) -> None:
        self.rows = rows.combine_chunks()
        self.is_searched = is_searched
        self._columns: dict[str, SortedColumn] = {}

    @property
    def nbytes(self) -> int:
        """Bytes in memory, with the sorted copies that it has by now."""
        return self.row_bytes + sum(column.order_bytes for column in list(self._columns.values()))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the rows alone. Arrow walks all buffers for them."""
        return int(self.rows.nbytes)

    @cached_property
    def versions(self) -> Places:
        """The version of each row."""
        return np.asarray(self.rows.column(COMMIT_VERSION), dtype=np.int64)

    @cached_property
    def is_in_order(self) -> bool:
        """Do the rows stand in the order of their versions?"""
        return is_in_order(self.versions)

    def places(self, restrict: Restrict) -> Places | None:
        """The places, in order, of the rows that have a wanted value in every column; None without `restrict`."""
        columns = [(self._column(name, len(values)), values) for name, values in restrict.items()]
        return places_of(columns, limit=self.rows.num_rows, most=self.rows.num_rows, search=1)

    def _column(self, name: str, wanted: int) -> SortedColumn:
        """With its values in order, unless more are wanted than there are rows."""
        found = self._columns.get(name)
        if found is None:
            values = self.rows.column(name)
            if wanted > len(values):
                return SortedColumn(values, None, None)
            found = self._columns[name] = SortedColumn.of(values)
        return found


@dataclass(frozen=True)
class _Part:
    """The rows of a run from `start` to before `stop`."""

    run: Run
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        return bool(self.stop - self.start == self.run.rows.num_rows)

    @property
    def rows(self) -> pa.Table:
        return self.run.rows.slice(self.start, self.stop - self.start)

    def having(self, restrict: Restrict) -> pa.Table:
        places = self.run.places(restrict)
        if places is None:
            return self.rows
        inside = slice(*np.searchsorted(places, (self.start, self.stop)))
        return self.run.rows.take(pa.array(places[inside]))


@dataclass(frozen=True)
class ChangeRuns:
    """Change rows: those of the parts, one after the other."""

    parts: tuple[_Part, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, rows: pa.Table) -> ChangeRuns:
        """Rows that nobody keeps."""
        return cls.joined([Run(rows)], rows.schema)

    @classmethod
    def joined(cls, runs: Iterable[Run], schema: pa.Schema) -> ChangeRuns:
        """The rows of all runs."""
        return cls(tuple(_whole(run) for run in runs if run.rows.num_rows), schema)

    def __add__(self, other: ChangeRuns) -> ChangeRuns:
        return ChangeRuns((*self.parts, *other.parts), self.schema)

    def first(self, count: int) -> ChangeRuns:
        """The first rows, so many."""
        parts = []
        for part in self.parts:
            parts.append(_Part(part.run, part.start, min(part.stop, part.start + count)))
            count -= parts[-1].stop - part.start
        return self._of(parts)

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return sum(part.stop - part.start for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, without what searching them takes."""
        return sum(part.run.row_bytes if part.is_whole else part.rows.nbytes for part in self.parts)

    @cached_property
    def is_in_order(self) -> bool:
        """Do all rows stand in the order of their versions?"""
        ends = [(part.run.versions[part.start], part.run.versions[part.stop - 1]) for part in self.parts]
        follow = all(before[1] <= after[0] for before, after in pairwise(ends))
        return follow and all(part.run.is_in_order for part in self.parts)

    @cached_property
    def table(self) -> pa.Table:
        """All rows, in one piece."""
        if len(self.parts) == 1:
            return self.parts[0].rows
        return self._together([part.rows for part in self.parts]).combine_chunks()

    def having(self, restrict: Restrict) -> pa.Table:
        """The rows that have a wanted value in every column of `restrict`, in their order."""
        found: list[pa.Table] = []
        for searched, parts in groupby(self.parts, lambda part: part.run.is_searched):
            if searched:
                found += [part.having(restrict) for part in parts]
            else:
                found.append(filter_rows(self._together([part.rows for part in parts]), restrict))
        return self._together(found)

    def split(self, version: int) -> tuple[ChangeRuns, ChangeRuns]:
        """The rows up to a version, and the later ones."""
        early: list[_Part] = []
        later: list[_Part] = []
        for part in self.parts:
            versions = part.run.versions[part.start : part.stop]
            if part.run.is_in_order:
                cut = part.start + int(np.searchsorted(versions, version, "right"))
                early.append(_Part(part.run, part.start, cut))
                later.append(_Part(part.run, cut, part.stop))
            else:
                old = pa.array(versions <= version)
                early.append(_whole(Run(part.rows.filter(old))))
                later.append(_whole(Run(part.rows.filter(pc.invert(old)))))
        return self._of(early), self._of(later)

    def _of(self, parts: Iterable[_Part]) -> ChangeRuns:
        return ChangeRuns(tuple(part for part in parts if part.stop > part.start), self.schema)

    def _together(self, rows: list[pa.Table]) -> pa.Table:
        return pa.concat_tables(rows) if rows else empty_table(self.schema)


def _whole(run: Run) -> _Part:
    return _Part(run, 0, run.rows.num_rows)
