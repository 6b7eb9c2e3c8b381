"""The change rows of one table over an interval, few enough for the driver: net changes and row versions in Arrow.

What `delta.images` says in SQL, without a Spark plan. Both are tested against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.change_rows import CHANGE_TYPE, COMMIT_VERSION, DELETE, INSERT
from cq_engine.catalog.model import VersionedTable
from cq_engine.core.arrays import array, group_starts, is_in, sort_places
from cq_engine.core.capabilities import Use, can
from cq_engine.core.columns import BEFORE, FOREVER, ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT
from cq_engine.storage.change_runs import ChangeRuns
from cq_engine.storage.file_look_ups import Restrict
from cq_engine.storage.identities import Identities, KeySet, Numbers
from cq_engine.storage.rows import identity_columns

__all__ = ["UncompactedLog"]

_FEWER = 8
"""Keys are picked out of a log that has so many times their number of rows."""
_NEW = array(["insert", "update_postimage"], pa.string())


@dataclass(frozen=True)
class UncompactedLog:
    """The change rows of (base, b] of `table`, of which its columns are shown; `changes` and `versions` are about (a, b].

    What needs all of them is computed when it is asked for: a small delta asks for those that concern it (`among`).
    """

    table: VersionedTable
    source: ChangeRuns
    a: int
    b: int
    compressed: bool
    _versions: dict[bool, pa.Table] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, table: VersionedTable, rows: pa.Table | ChangeRuns, a: int, b: int, compressed: bool
    ) -> UncompactedLog:
        runs = rows if isinstance(rows, ChangeRuns) else ChangeRuns.of(rows)
        return cls(table, runs, a, b, compressed)

    @cached_property
    def parts(self) -> tuple[ChangeRuns, ChangeRuns]:
        """The change rows up to `a`, and those of the interval."""
        return self.source.split(self.a)

    @cached_property
    def rows(self) -> pa.Table:
        """All change rows, those up to `a` before the others."""
        return self.source.table if self.source.is_in_order else (self.parts[0] + self.parts[1]).table

    @cached_property
    def net(self) -> pa.Table:
        """`rows` netted: physical columns, `ROW_VERSION`, `ROW_WEIGHT`; with `net_numbers` the identity of each."""
        before = self.parts[0]
        return pa.concat_tables([self._signed(before.table), self.changes]) if before.parts else self.changes

    @cached_property
    def changes(self) -> pa.Table:
        """The signed rows of the interval."""
        if self._kept is None:
            return self._recent_signed
        signed = self._recent_signed.take(pa.array(self._kept))
        position = signed.column_names.index(ROW_VERSION)
        return signed.set_column(position, ROW_VERSION, pa.array(np.full(len(self._kept), self.b)))

    def _signed(self, rows: pa.Table) -> pa.Table:
        weights = pc.if_else(pc.is_in(rows.column(CHANGE_TYPE), value_set=_NEW), 1, -1).cast(pa.int32())
        signed = rows.select([c.name for c in self.table.physical_columns])
        signed = signed.append_column(ROW_VERSION, rows.column(COMMIT_VERSION))
        return signed.append_column(ROW_WEIGHT, weights)

    @cached_property
    def _recent_signed(self) -> pa.Table:
        return self._signed(self.parts[1].table)

    @cached_property
    def _recent(self) -> Identities:
        """The identities of the interval's change rows: what changed before is not walked for its net changes."""
        return Identities(self.parts[1].table, identity_columns(self.table))

    @cached_property
    def _kept(self) -> Numbers | None:
        """Which change rows of the interval are a net change; None: all."""
        return _net_places(self._recent.numbers, self._recent_signed) if self.compressed else None

    @cached_property
    def identities(self) -> Identities:
        """The identities of `rows`; numbered when they are asked for, since not every refresh does."""
        if self.compressed and not self.parts[0].parts:
            return self._recent
        return Identities(self.rows, identity_columns(self.table))

    @cached_property
    def net_numbers(self) -> Numbers:
        """The identities of the rows in `net`."""
        numbers, before = self.identities.numbers, self.parts[0].num_rows
        if self._kept is None:
            return numbers
        return np.append(numbers[:before], numbers[before:][self._kept])

    def among(self, keys: Restrict, most: int) -> UncompactedLog:
        """The log without the change rows of at least some identities whose values do not stand in `keys` (identity columns); as
        it is where that is at most `most` rows, or not many more than the keys are."""
        count = self.source.num_rows
        kinds = {c.name: c.type for c in self.table.physical_columns}
        known = {name: values for name, values in keys.items() if can(kinds[name], Use.EQUAL)}
        known = {name: values for name, values in known.items() if _FEWER * len(values) < count}
        if count <= most or not known:
            return self
        schema = self.source.schema
        try:
            fitting = {name: values.cast(schema.field(name).type) for name, values in known.items()}
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # values that the column cannot have
            return self
        return UncompactedLog.of(self.table, self.source.having(fitting), self.a, self.b, self.compressed)

    @cached_property
    def touched(self) -> KeySet:
        """The keys with a change row."""
        return KeySet(self.identities, self.identities.numbers)

    @cached_property
    def without_image(self) -> KeySet:
        """The keys with a change row of which nothing of the base is shown even where before-images are read there:
        those that begin with an insert, and those that changed up to `a` already."""
        versions = _numbers(self.rows, COMMIT_VERSION)
        old = np.asarray(pc.not_equal(self.rows.column(CHANGE_TYPE), INSERT))
        order = sort_places(self.identities.numbers, versions, old)
        keys = self.identities.numbers[order]
        first = order[group_starts(keys)]
        return KeySet(
            self.identities, self.identities.numbers[first][(versions[first] <= self.a) | ~old[first]]
        )

    def absent(self, after: int) -> KeySet:
        """The keys that some version from `after` on does not have: those inserted or deleted later than it."""
        moved = pc.is_in(self.rows.column(CHANGE_TYPE), value_set=pa.array([INSERT, DELETE]))
        later = pc.greater(self.rows.column(COMMIT_VERSION), after)
        return KeySet(self.identities, self.identities.numbers[np.asarray(pc.and_(moved, later))])

    def versions(self, undo: bool = True) -> pa.Table:
        """The row versions that the changes imply, of all keys that they touch: physical columns, `ROW_FROM`, `ROW_TO`;
        without `undo` but those that only a before-image shows."""
        if undo not in self._versions:
            self._versions[undo] = self._find_versions(undo)
        return self._versions[undo]

    @cached_property
    def recent(self) -> UncompactedLog:
        """The log of the interval's change rows alone."""
        before, recent = self.parts
        if not before.parts:
            return self
        return UncompactedLog.of(self.table, recent, self.a, self.b, self.compressed)

    def moving(self) -> pa.Table:
        """The row versions that begin or end in the interval. What a row was that changed before it, too, its before-image in the
        interval says, so that the history up to there is not walked."""
        return self.recent.versions()

    def _find_versions(self, undo: bool) -> pa.Table:
        if self.net.num_rows == 0:
            return self._valid(self.net.slice(0, 0), [], [])
        versions, weights = _numbers(self.net, ROW_VERSION), _numbers(self.net, ROW_WEIGHT)
        order = sort_places(self.net_numbers, versions, weights)
        keys, versions, weights = self.net_numbers[order], versions[order], weights[order]
        new_key = group_starts(keys)
        first = versions[new_key][np.cumsum(new_key) - 1]
        following = _next_versions(keys, versions)
        new = (weights > 0) & (following > self.a)
        old = (weights < 0) & (versions == first) & (versions > self.a) & undo
        starts = np.where(new & (versions > self.a), versions, BEFORE)
        ends = np.where(new, following, versions)
        shown = new | old
        return self._valid(self.net.take(pa.array(order[shown])), starts[shown], ends[shown])

    def _valid(self, rows: pa.Table, starts: object, ends: object) -> pa.Table:
        rows = rows.select([c.name for c in self.table.physical_columns])
        rows = rows.append_column(ROW_FROM, pa.array(starts, pa.int64()))
        return rows.append_column(ROW_TO, pa.array(ends, pa.int64()))

    def image(self, base: pa.Table) -> pa.Table:
        """The rows at `a` == b; `base` are those of the image from which the change rows go on, or some of them."""
        changed = self.versions().select([c.name for c in self.table.physical_columns])
        return pa.concat_tables([self.untouched(base).select(changed.column_names), changed])

    def before_images(self, base: pa.Table) -> pa.Table:
        """The rows of `base` that the interval changes first, with `ROW_FROM` and `ROW_TO`: the other way to what `undo`
        gives."""
        versions = _numbers(self.net, ROW_VERSION)
        order = sort_places(self.net_numbers, versions)
        order = order[group_starts(self.net_numbers[order])]
        order = order[versions[order] > self.a]
        keys = self.net_numbers[order]
        wanted = self.identities.find(base)
        places = np.searchsorted(keys, wanted)
        found = np.zeros(len(wanted), np.bool_)
        inside = places < len(keys)
        found[inside] = keys[places[inside]] == wanted[inside]
        ends = versions[order][places[found]]
        return self._valid(base.filter(pa.array(found)), np.full(len(ends), BEFORE), ends)

    def untouched(self, base: pa.Table) -> pa.Table:
        """The rows of `base` whose identity has no change."""
        touched = is_in(self.identities.find(base), self.net_numbers)
        return base.filter(pa.array(~touched)) if touched.any() else base


def _numbers(rows: pa.Table, name: str) -> Numbers:
    return np.asarray(rows.column(name), dtype=np.int64)


def _next_versions(keys: Numbers, versions: Numbers) -> Numbers:
    """Of rows sorted by key and version: the key's next later version, or FOREVER."""
    starts = group_starts(keys, versions)
    places = np.flatnonzero(starts)
    later = np.full(len(places), FOREVER, np.int64)
    same = keys[places[1:]] == keys[places[:-1]]
    later[:-1][same] = versions[places[1:]][same]
    everywhere: Numbers = later[np.cumsum(starts) - 1]
    return everywhere


def _net_places(keys: Numbers, signed: pa.Table) -> Numbers:
    """Which rows of an interval remain: of each key the first before- and the last after-image."""
    versions, weights = _numbers(signed, ROW_VERSION), _numbers(signed, ROW_WEIGHT)
    order = sort_places(keys, versions)
    new_key = group_starts(keys[order])
    group = np.cumsum(new_key) - 1
    ends = np.append(new_key[1:], True)[: len(order)]
    low, high = versions[order][new_key][group], versions[order][ends][group]
    kept: Numbers = np.sort(order[np.where(weights[order] < 0, low, high) == versions[order]])
    return kept
