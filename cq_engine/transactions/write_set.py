"""What a transaction has changed in one table so far, as a signed difference to its snapshot.

A row that is gone from the snapshot weighs −1, a row that is new weighs +1. A removal takes away an equal new row if
there is one, else a row of the snapshot. So statements may pass through states that break a key; only the net counts.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import pyarrow as pa

from cq_engine.catalog.change_rows import CHANGE_TYPE, DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE
from cq_engine.catalog.model import DataFile, Table
from cq_engine.core.arrays import array, repeated
from cq_engine.storage.identities import KeySet
from cq_engine.storage.rows import Heap, conform, identity_columns, identity_keys, row_values

__all__ = ["BulkPending", "Net", "NetPending", "SmallPending"]


@dataclass(frozen=True)
class Net:
    """The net change of one table: three sets of rows with disjoint identities; `old[i]` became `new[i]`."""

    inserted: pa.Table
    deleted: pa.Table
    old: pa.Table
    new: pa.Table

    @property
    def rows(self) -> int:
        return self.inserted.num_rows + self.deleted.num_rows + self.old.num_rows  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """About the bytes of its change rows."""
        return sum(rows.nbytes for rows in (self.inserted, self.deleted, self.old, self.new))

    @property
    def kinds(self) -> frozenset[str]:
        """Which of INSERT, DELETE, UPDATE occur."""
        sizes = {"INSERT": self.inserted, "DELETE": self.deleted, "UPDATE": self.old}
        return frozenset(kind for kind, rows in sizes.items() if rows.num_rows)

    def removed_rows(self) -> pa.Table:
        """Rows that left: deleted ones and pre-images."""
        return pa.concat_tables([self.deleted, self.old])

    def added_rows(self) -> pa.Table:
        """Rows that came: inserted ones and post-images."""
        return pa.concat_tables([self.inserted, self.new])

    def changes(self) -> pa.Table:
        """As change rows, without a commit version."""
        parts = (
            (self.inserted, INSERT),
            (self.deleted, DELETE),
            (self.old, UPDATE_PREIMAGE),
            (self.new, UPDATE_POSTIMAGE),
        )
        return pa.concat_tables(
            [
                rows.append_column(CHANGE_TYPE, repeated(kind, pa.string(), rows.num_rows))
                for rows, kind in parts
            ]
        ).combine_chunks()


@dataclass
class _Entry:
    before: int = -1
    after: list[int] = field(default_factory=list)


class SmallPending:
    """On the driver: Arrow rows, and for every touched identity which of them are before and after."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._identity = identity_columns(table.storage)
        self._heap = Heap(table.storage.physical_columns)
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def rows(self) -> int:
        """Rows that this holds, dead ones included: what bounds its memory."""
        return len(self._heap)

    def apply(self, removed: pa.Table, added: pa.Table) -> None:
        """Takes in the effect of one statement: rows that it saw and removed, and rows that it added."""
        if removed.num_rows:
            self._remove(conform(removed, self._heap.columns))
        if added.num_rows:
            start = self._heap.append(added)
            for n, key in enumerate(identity_keys(added, self._identity)):
                self._entries.setdefault(key, _Entry()).after.append(start + n)

    def _remove(self, rows: pa.Table) -> None:
        start = self._heap.append(rows)
        values: list[Hashable] | None = None
        for n, key in enumerate(identity_keys(rows, self._identity)):
            entry = self._entries.setdefault(key, _Entry())
            if not entry.after:
                entry.before = start + n
                continue
            values = row_values(rows) if values is None else values
            mine = row_values(self._heap.take(entry.after))
            if values[n] in mine:
                del entry.after[mine.index(values[n])]
            else:
                entry.before = start + n

    def hidden_rows(self) -> pa.Table:
        """The snapshot rows that are gone."""
        return self._heap.take(entry.before for entry in self._entries.values() if entry.before >= 0)

    def added_rows(self) -> pa.Table:
        """The rows that are new, in the order of their identities' first change."""
        return self._heap.take(position for entry in self._entries.values() for position in entry.after)

    def overlay(self, image: pa.Table) -> pa.Table:
        """The snapshot `image` with this difference applied."""
        hidden = self.hidden_rows()
        if hidden.num_rows:
            image = image.filter(pa.array(~KeySet.of(hidden, self._identity).holds(image)))
        return pa.concat_tables([image, self.added_rows()])

    def duplicates(self) -> pa.Table:
        """New rows that share their identity with another new row: at most a few."""
        several = [entry.after for entry in self._entries.values() if len(entry.after) > 1]
        return self._heap.take(position for after in several[:5] for position in after[:1])

    def net(self) -> Net:
        """The net change. Rows that are equal before and after are left out."""
        single = [e for e in self._entries.values() if e.before >= 0 and e.after]
        old = self._heap.take(e.before for e in single)
        new = self._heap.take(e.after[0] for e in single)
        differs = [n for n, (a, b) in enumerate(zip(row_values(old), row_values(new))) if a != b]
        more = [position for e in single for position in e.after[1:]]
        picked = array(differs, pa.int64())
        return Net(
            self._heap.take([p for e in self._entries.values() if e.before < 0 for p in e.after] + more),
            self._heap.take(e.before for e in self._entries.values() if e.before >= 0 and not e.after),
            old.take(picked),
            new.take(picked),
        )


class NetPending(SmallPending):
    """A net change that is known as a whole."""

    def __init__(self, table: Table, net: Net) -> None:
        super().__init__(table)
        self._net = net

    def hidden_rows(self) -> pa.Table:
        return self._net.removed_rows()

    def added_rows(self) -> pa.Table:
        return self._net.added_rows()

    def net(self) -> Net:
        return self._net


@dataclass(frozen=True)
class BulkPending:
    """Staged by executors. `plain` files hold new rows only; `signed` files hold physical columns and `_cq_sign`.

    Exactly one of the two is not empty (both are where nothing is pending).
    """

    table: Table
    plain: tuple[DataFile, ...] = ()
    signed: tuple[DataFile, ...] = ()
