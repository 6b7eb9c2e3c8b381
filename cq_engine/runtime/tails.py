"""The change rows of one table over an interval, small enough for the driver: net changes and row versions in Arrow.

What `delta.images` says in SQL, for a few thousand rows and without a Spark plan. Both are tested against each other.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO, VERSION, WEIGHT
from cq_engine.catalog.model import CHANGE_TYPE, COMMIT_VERSION, DELETE, INSERT, VersionedTable
from cq_engine.runtime.rows import identity_columns, identity_keys

__all__ = ["Tail"]

_NEW = pa.array(["insert", "update_postimage"])


@dataclass(frozen=True)
class Tail:
    """`rows` are the change rows of (base, b] of `table`; `changes` and `versions` are about (a, b]."""

    table: VersionedTable
    rows: pa.Table
    keys: list[Hashable]
    net: pa.Table
    """`rows` netted: physical columns, `_v`, `_w`; with `net_keys` the identity of each."""
    net_keys: list[Hashable]
    a: int
    _versions: dict[bool, pa.Table] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, table: VersionedTable, rows: pa.Table, a: int, b: int, compressed: bool) -> Tail:
        keys = identity_keys(rows, identity_columns(table))
        weights = pc.if_else(pc.is_in(rows.column(CHANGE_TYPE), value_set=_NEW), 1, -1).cast(pa.int32())
        signed = rows.select([c.name for c in table.physical_columns])
        signed = signed.append_column(VERSION, rows.column(COMMIT_VERSION)).append_column(WEIGHT, weights)
        if not compressed:
            return cls(table, rows, keys, signed, keys, a)
        kept, versions = _netted(keys, signed, a, b)
        net = signed.take(pa.array(kept, pa.int64()))
        position = net.column_names.index(VERSION)
        net = net.set_column(position, VERSION, pa.array(versions, pa.int64()))
        return cls(table, rows, keys, net, [keys[i] for i in kept], a)

    @cached_property
    def changes(self) -> pa.Table:
        """The signed rows of the interval."""
        return self.net.filter(pc.greater(self.net.column(VERSION), self.a))

    @cached_property
    def touched(self) -> frozenset[Hashable]:
        """The keys with a change row."""
        return frozenset(self.keys)

    @cached_property
    def without_image(self) -> frozenset[Hashable]:
        """The keys with a change row of which nothing of the base is shown even where before-images are read there:
        those that begin with an insert, and those that changed up to `a` already."""
        kinds, versions = (
            self.rows.column(CHANGE_TYPE).to_pylist(),
            self.rows.column(COMMIT_VERSION).to_pylist(),
        )
        first: dict[Hashable, tuple[int, bool]] = {}
        for key, kind, version in zip(self.keys, kinds, versions):
            begins = (version, kind != INSERT)
            first[key] = min(first.get(key, begins), begins)
        return frozenset(key for key, (v, old) in first.items() if v <= self.a or not old)

    def absent(self, after: int) -> frozenset[Hashable]:
        """The keys that some version from `after` on does not have: those inserted or deleted later than it."""
        moved = pc.is_in(self.rows.column(CHANGE_TYPE), value_set=pa.array([INSERT, DELETE]))
        later = pc.greater(self.rows.column(COMMIT_VERSION), after)
        places = pc.indices_nonzero(pc.and_(moved, later)).to_pylist()
        return frozenset(map(self.keys.__getitem__, places))

    def versions(self, undo: bool = True) -> pa.Table:
        """The row versions that the changes imply, of all keys that they touch: physical columns, `_from`, `_to`;
        without `undo` but those that only a before-image shows."""
        if undo not in self._versions:
            self._versions[undo] = self._find_versions(undo)
        return self._versions[undo]

    def _find_versions(self, undo: bool) -> pa.Table:
        order: dict[Hashable, list[tuple[int, int, int]]] = {}
        versions = self.net.column(VERSION).to_pylist()
        weights = self.net.column(WEIGHT).to_pylist()
        for i, (key, v, w) in enumerate(zip(self.net_keys, versions, weights)):
            order.setdefault(key, []).append((v, w, i))
        picked, starts, ends = [], [], []
        for events in order.values():
            events.sort()
            first = events[0][0]
            for place, (v, w, i) in enumerate(events):
                if w > 0:
                    following = next((later for later, _, _ in events[place + 1 :] if later > v), FOREVER)
                    if following > self.a:
                        picked.append(i)
                        starts.append(v if v > self.a else BEFORE)
                        ends.append(following)
                elif undo and v == first and v > self.a:
                    picked.append(i)
                    starts.append(BEFORE)
                    ends.append(v)
        rows = self.net.take(pa.array(picked, pa.int64())).select(
            [c.name for c in self.table.physical_columns]
        )
        return rows.append_column(FROM, pa.array(starts, pa.int64())).append_column(
            TO, pa.array(ends, pa.int64())
        )

    def before_images(self, base: pa.Table) -> pa.Table:
        """The rows of `base` that the interval changes first, with `_from` and `_to`: the other way to what `undo` gives."""
        first: dict[Hashable, int] = {}
        for key, version in zip(self.net_keys, self.net.column(VERSION).to_pylist()):
            first[key] = min(first.get(key, version), version)
        ends = [first.get(key, 0) for key in identity_keys(base, identity_columns(self.table))]
        picked = [i for i, end in enumerate(ends) if end > self.a]
        rows = base.take(pa.array(picked, pa.int64()))
        rows = rows.append_column(FROM, pa.array([BEFORE] * len(picked), pa.int64()))
        return rows.append_column(TO, pa.array([ends[i] for i in picked], pa.int64()))

    def untouched(self, base: pa.Table) -> pa.Table:
        """The rows of `base` whose identity has no change."""
        touched = set(self.net_keys)
        keep = [
            i for i, key in enumerate(identity_keys(base, identity_columns(self.table))) if key not in touched
        ]
        return base if len(keep) == base.num_rows else base.take(pa.array(keep, pa.int64()))


def _netted(keys: list[Hashable], signed: pa.Table, a: int, b: int) -> tuple[list[int], list[int]]:
    """Which rows remain, and at which version: up to `a` all, of (a, b] the first before- and last after-image."""
    versions = signed.column(VERSION).to_pylist()
    weights = signed.column(WEIGHT).to_pylist()
    bounds: dict[Hashable, tuple[int, int]] = {}
    for key, v in zip(keys, versions):
        if v > a:
            low, high = bounds.get(key, (v, v))
            bounds[key] = (min(low, v), max(high, v))
    kept, tags = [], []
    for i, (key, v, w) in enumerate(zip(keys, versions, weights)):
        if v <= a:
            kept.append(i)
            tags.append(v)
        elif v == bounds[key][0 if w < 0 else 1]:
            kept.append(i)
            tags.append(b)
    return kept, tags
