"""What enters the window: keys, which all batches of a column are asked for at once, or a condition, for which each is asked by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from cq_engine.core.arrays import one_array
from cq_engine.core.columns import Column
from cq_engine.mesh.hashed_keys import PROBED, HashedKeys
from cq_engine.mesh.packed_keys import Keys, Mask
from cq_engine.mesh.run import Run
from cq_engine.mesh.staged import Staged, gather
from cq_engine.mesh.window import Batch, Image
from cq_engine.storage.file_look_ups import Restrict, filter_rows
from cq_engine.storage.rows import empty

__all__ = ["Asked", "ConditionBatch", "KeyBatch", "Matcher", "Waiting"]


class Matcher(Protocol):
    """A condition between rows of the table and changes, for some of which it has to be true."""

    @property
    def columns(self) -> Collection[str]:
        """The table's columns that it reads."""

    @property
    def nbytes(self) -> int:
        """What it keeps of the changes."""

    def probe(self, rows: pa.Table) -> Mask:
        """Which rows have such a change, or may have one."""


class Waiting(Batch):
    """A batch of changes of one refresh, and the rows that the pages which it has met had for anybody."""

    count: int
    """How many changes, or keys of them, there are."""

    def __init__(self, image: Image, needed: Mask | None, columns: Sequence[Column]) -> None:
        super().__init__(image, needed)
        self.columns = tuple(columns)
        self.found: list[Staged] = []
        self.run = Run()
        """The call that it is of."""
        self.failure: Exception | None = None
        """What the read of a page that it needs has failed with."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What it takes in memory, without `found`."""

    @property
    def room(self) -> int:
        """What it takes in the window at most, in bytes."""
        return self.nbytes

    @abstractmethod
    def select(self, rows: pa.Table) -> pa.Table:
        """Its own among rows that somebody wants."""

    def rows(self) -> pa.Table:
        """What it has found."""
        names = [c.name for c in self.columns]
        parts = [rows.select(names) for rows in gather(self.found)]
        return self.select(pa.concat_tables(parts)) if parts else empty(self.columns)

    def release(self) -> None:
        """Forgets it."""
        for each in self.found:
            each.release()
        self.found = []


class KeyBatch(Waiting):
    """Wants the rows with one of the keys in the column `key`, and with a wanted value in every other column of `restrict`."""

    def __init__(
        self,
        image: Image,
        needed: Mask | None,
        columns: Sequence[Column],
        key: Column,
        keys: Keys,
        restrict: Restrict,
    ) -> None:
        super().__init__(image, needed, columns)
        self.key = key
        self.keys = keys
        self.count = keys.count
        self._restrict = {name: values for name, values in restrict.items() if name != key.name}

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.left.nbytes

    @property
    def room(self) -> int:
        return self.keys.room + self.left.nbytes

    def select(self, rows: pa.Table) -> pa.Table:
        own = self.keys.has(one_array(rows.column(self.key.name)))
        return filter_rows(rows.filter(pa.array(own)), self._restrict)


class ConditionBatch(Waiting):
    """Wants the rows for which a condition may be true with one of its changes."""

    def __init__(
        self, image: Image, needed: Mask | None, columns: Sequence[Column], matcher: Matcher, count: int
    ) -> None:
        super().__init__(image, needed, columns)
        self.matcher = matcher
        self.count = count

    @property
    def nbytes(self) -> int:
        return self.matcher.nbytes + self.left.nbytes

    def select(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(self.matcher.probe(rows)))


@dataclass(frozen=True)
class Asked:
    """What the window asks of a row at one moment."""

    hashed: Mapping[Column, HashedKeys]
    matchers: Sequence[Matcher]

    def columns(self, among: Sequence[Column]) -> list[Column]:
        """Those that it reads."""
        names = {name for matcher in self.matchers for name in matcher.columns}
        return [column for column in among if column in self.hashed or column.name in names]

    def probe(self, rows: pa.Table) -> Mask:
        """Which rows somebody wants."""
        found = np.zeros(rows.num_rows, np.bool_)
        for column, keys in self.hashed.items():
            found |= keys.probe(one_array(rows.column(column.name)))
        for matcher in self.matchers:
            for start in range(0, rows.num_rows, PROBED):
                part = rows.slice(start, PROBED)
                found[start : start + part.num_rows] |= matcher.probe(part)
        return found
