"""The change rows of uncompacted logs, put together once: each commit adds a few, and each look-up reads all of them.

A log of a thousand commits is a thousand change sets in memory. What was put together the last time is kept, as runs of
growing size of which two are joined where they are about equally large (Bentley & Saxe, Decomposable Searching Problems,
1980), so that a row is copied as often as the logarithm of their number says.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from cachetools import LRUCache

from cq_engine.catalog.model import ChangeSet
from cq_engine.core.columns import Column
from cq_engine.core.keeping import keep
from cq_engine.storage.change_runs import ChangeRuns, Run

__all__ = ["JoinedChanges"]

_Key = tuple[int, tuple[Column, ...]]


@dataclass(frozen=True)
class _Joined:
    """The rows of change sets, in their order."""

    ids: list[int]
    ends: list[int]
    """How many rows each and those before it have."""
    runs: tuple[Run, ...]
    low: int
    """The version at which they begin."""

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def first(self, count: int) -> ChangeRuns:
        """The rows of the first change sets."""
        return ChangeRuns.joined(self.runs, self.runs[0].rows.schema).first(self.ends[count - 1])

    def unsorted(self) -> _Joined:
        """The same rows, which are looked through."""
        return replace(self, runs=tuple(Run(run.rows) for run in self.runs))

    def common(self, ids: Sequence[int]) -> int:
        """With how many of these change sets it begins."""
        most = min(len(ids), len(self.ids))
        if self.ids[:most] == ids[:most]:
            return most
        return next(n for n in range(most) if self.ids[n] != ids[n])


class JoinedChanges:
    """Those of the tables that were read last, of at most `most_bytes`, in runs that are searched in order from `searched_rows` on.
    Thread-safe."""

    def __init__(self, most_bytes: int, searched_rows: int) -> None:
        self._searched_rows = searched_rows
        self._tables: LRUCache[_Key, _Joined] = LRUCache(most_bytes, getsizeof=lambda joined: joined.nbytes)
        self._guard = threading.Lock()

    def find(self, key: _Key, sets: Sequence[ChangeSet]) -> tuple[int, ChangeRuns | None]:
        """Of how many leading change sets the rows are there, and these rows."""
        with self._guard:
            joined = self._tables.get(key)
            known = joined.common([s.id for s in sets]) if joined is not None else 0
            if joined is None or not known:
                if joined is not None and sets and sets[0].low > joined.low:
                    del self._tables[key]  # the table was merged since
                return 0, None
            self._put(key, joined)  # it may have become larger: its columns are sorted when they are searched
        return known, joined.first(known)

    def add(self, key: _Key, known: int, sets: Sequence[ChangeSet], rows: pa.Table) -> None:
        """`rows` are those of `sets` from number `known` on, up to where `find` had found them. What is more than may be kept is
        put together anew by every reader."""
        ids = [s.id for s in sets]
        with self._guard:
            joined = self._tables.get(key)
        there = joined.common(ids) if joined is not None else 0
        if there != known or sum(s.rows for s in sets[known:]) != rows.num_rows:
            return  # somebody else was faster
        runs: list[Run] = []
        ends: list[int] = []
        if joined is not None and known:
            ends = joined.ends[:known]
            parts = joined.first(known).parts
            runs = [part.run if part.is_whole else self._run(part.rows) for part in parts]
        for each in sets[known:]:
            ends.append((ends[-1] if ends else 0) + each.rows)
        runs.append(self._run(rows))
        if sum(run.row_bytes for run in runs) > self._tables.maxsize:
            return
        while len(runs) > 1 and runs[-2].rows.num_rows <= 2 * runs[-1].rows.num_rows:
            runs[-2:] = [self._run(pa.concat_tables([run.rows for run in runs[-2:]]))]
        with self._guard:
            if self._tables.get(key) is joined:
                self._put(key, _Joined(ids, ends, tuple(runs), sets[0].low))

    def _put(self, key: _Key, joined: _Joined) -> None:
        """Keeps rows, and others as far as there is room; without sorted copies where there is none for these."""
        if joined.nbytes > self._tables.maxsize:
            joined = joined.unsorted()
        self._tables.pop(key, None)  # whose room is free then
        with suppress(ValueError):  # larger than all that may be kept
            self._tables[key] = joined

    def _run(self, rows: pa.Table) -> Run:
        return Run(rows, rows.num_rows >= self._searched_rows)

    def keep_tables(self, tables: Container[int]) -> None:
        """Forgets the rows of other tables."""
        with self._guard:
            keep(self._tables, {key for key in self._tables if key[0] in tables})

    def forget(self, table: int) -> None:
        """Forgets the rows of a table."""
        with self._guard:
            keep(self._tables, {key for key in self._tables if key[0] != table})
