"""The change rows of uncompacted logs, put together once: each commit adds a few, and each look-up reads all of them.

A log of a thousand commits is a thousand change sets in memory. What was put together the last time is kept, as runs of
growing size of which two are joined where they are about equally large (Bentley & Saxe, Decomposable Searching Problems,
1980), so that a row is copied as often as the logarithm of their number says.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from cachetools import LRUCache

from cq_engine.catalog.model import ChangeSet
from cq_engine.core.columns import Column
from cq_engine.core.keeping import keep

__all__ = ["JoinedChanges"]

_Key = tuple[int, tuple[Column, ...]]


@dataclass(frozen=True)
class _Joined:
    """The rows of change sets, in their order."""

    ids: list[int]
    ends: list[int]
    """How many rows each and those before it have."""
    runs: tuple[pa.Table, ...]

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def first(self, count: int) -> pa.Table:
        """The rows of the first change sets."""
        return pa.concat_tables(self.runs).slice(0, self.ends[count - 1])

    def common(self, ids: Sequence[int]) -> int:
        """With how many of these change sets it begins."""
        most = min(len(ids), len(self.ids))
        if self.ids[:most] == ids[:most]:
            return most
        return next(n for n in range(most) if self.ids[n] != ids[n])


class JoinedChanges:
    """Those of the tables that were read last, of at most `most_bytes`. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._tables: LRUCache[_Key, _Joined] = LRUCache(most_bytes, getsizeof=lambda joined: joined.nbytes)
        self._guard = threading.Lock()

    def find(self, key: _Key, sets: Sequence[ChangeSet]) -> tuple[int, pa.Table | None]:
        """Of how many leading change sets the rows are there, and these rows, in several chunks."""
        with self._guard:
            joined = self._tables.get(key)
            known = joined.common([s.id for s in sets]) if joined is not None else 0
        return known, joined.first(known) if joined is not None and known else None

    def add(self, key: _Key, known: int, sets: Sequence[ChangeSet], rows: pa.Table) -> None:
        """`rows` are those of `sets` from number `known` on, up to where `find` had found them. What is more than may be kept is
        put together anew by every reader."""
        ids = [s.id for s in sets]
        with self._guard:
            joined = self._tables.get(key)
        there = joined.common(ids) if joined is not None else 0
        if there != known or sum(s.rows for s in sets[known:]) != rows.num_rows:
            return  # somebody else was faster
        runs: list[pa.Table] = []
        ends: list[int] = []
        if joined is not None and known:
            ends = joined.ends[:known]
            runs = list(joined.runs) if known == len(joined.ids) else [joined.first(known)]
        for each in sets[known:]:
            ends.append((ends[-1] if ends else 0) + each.rows)
        runs.append(rows)
        if sum(run.nbytes for run in runs) > self._tables.maxsize:
            return
        while len(runs) > 1 and runs[-2].num_rows <= 2 * runs[-1].num_rows:
            runs[-2:] = [pa.concat_tables(runs[-2:]).combine_chunks()]
        with self._guard:
            if self._tables.get(key) is joined:
                with suppress(ValueError):  # larger than all that may be kept
                    self._tables[key] = _Joined(ids, ends, tuple(runs))

    def keep_tables(self, tables: Container[int]) -> None:
        """Forgets the rows of other tables."""
        with self._guard:
            keep(self._tables, {key for key in self._tables if key[0] in tables})

    def forget(self, table: int) -> None:
        """Forgets the rows of a table."""
        with self._guard:
            keep(self._tables, {key for key in self._tables if key[0] != table})
