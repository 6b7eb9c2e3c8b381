"""Which members of a query group have deltas: the shared delta log, looked at by member.

A member's cursors move when it has deltas, not with every refresh of the query group, so that a refresh costs what it
changes and not what there is. This index says which of the cursors that stay behind have something to wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import COMMIT_VERSION, MEMBER
from cq_engine.catalog.model import ContinuousQuery, QueryGroup, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.keeping import keep
from cq_engine.spark.arrow_io import to_arrow

__all__ = ["Progress"]


class Progress:
    """For each member the newest version at which it has deltas; read from the log once, then kept up to date."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._newest: dict[int, dict[int, int]] = {}
        self._read_to: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._lock = threading.Lock()

    def newest(self, query: ContinuousQuery) -> int:
        """The newest version at which the member has a delta; 0 where it has none, or the query group is gone meanwhile."""
        group = self.services.catalog.state.groups.get(query.group or "")
        if group is None or query.result.part is None:
            return 0
        return self.newest_of(group).get(query.result.part, query.created_version)  # a snapshot's deltas

    def newest_of(self, group: QueryGroup) -> dict[int, int]:
        """The members with deltas, by id, with their newest versions."""
        catalog, log = self.services.catalog, group.query.result
        with self._lock:
            position = catalog.status(group.name).position
            since = max(self._read_to.get(log.id, 0), catalog.floor(log.id))
            if log.id not in self._newest or since < position:  # another process may have refreshed
                found = self._read(log, since, position)
                self._newest.setdefault(log.id, {}).update(found)
                self._read_to[log.id] = position
            return self._newest[log.id]

    def forget_all(self) -> None:
        """Reads the logs anew: another process has refreshed."""
        with self._lock:
            self._newest.clear()
            self._read_to.clear()
            self._settled.clear()

    def forget_gone(self) -> None:
        """Takes the logs of groups that are gone out of memory."""
        there = {group.query.result.id for group in self.services.catalog.state.groups.values()}
        with self._lock:
            keep(self._newest, there)
            keep(self._read_to, there)
            keep(self._settled, there)

    def is_known(self, group: QueryGroup) -> bool:
        """Whether the log has been read."""
        return group.query.result.id in self._newest

    def note_refresh(self, group: QueryGroup, a: int, b: int) -> dict[int, int]:
        """Takes note of a refresh of (a, b], and of what was refreshed before it and not noted: the slices of one that was
        interrupted. The members with deltas in it."""
        log = group.query.result
        with self._lock:
            if log.id in self._newest:
                a = max(min(a, self._read_to.get(log.id, a)), self.services.catalog.floor(log.id))
        if not self.services.catalog.changes(log.id, a + 1, b):
            return {}
        newest = self._read(log, a, b)
        with self._lock:  # whoever reads the log now has begun before this refresh, or sees it
            if log.id in self._newest:
                self._newest[log.id].update(newest)
                self._read_to[log.id] = max(self._read_to.get(log.id, 0), b)
        return newest

    def note_snapshot(self, query: ContinuousQuery, version: int) -> None:
        """Takes note of a member's first snapshot."""
        with self._lock:
            if query.result.id in self._newest and query.result.part is not None:
                self._newest[query.result.id][query.result.part] = version

    def _read(self, log: VersionedTable, a: int, b: int) -> dict[int, int]:
        rows = self.services.reader.changes_arrow(log, a, b)
        if rows is None:
            frame = self.services.reader.changes(log, a, b)
            rows = to_arrow(frame.groupBy(MEMBER).agg(f.max(COMMIT_VERSION).alias(COMMIT_VERSION)))
        grouped = rows.select([MEMBER, COMMIT_VERSION]).group_by(MEMBER).aggregate([(COMMIT_VERSION, "max")])
        return dict(
            zip(grouped.column(MEMBER).to_pylist(), grouped.column(f"{COMMIT_VERSION}_max").to_pylist())
        )

    def counts(self, query: ContinuousQuery, a: int, b: int) -> tuple[int, int, int]:
        """How many deltas of (a, b] are I, D and U."""
        rows = self.services.reader.changes_arrow(query.result, a, b)
        if rows is None:
            frame = self.services.reader.changes(query.result, a, b)
            rows = to_arrow(frame.select("_change_type"))
        kinds: pa.ChunkedArray = rows.column("_change_type")
        inserted, deleted, updated = (
            int(pc.sum(pc.equal(kinds, kind)).as_py() or 0)
            for kind in ("insert", "delete", "update_postimage")
        )
        return inserted, deleted, updated

    def settle(self, group: QueryGroup, delivering: Sequence[ContinuousQuery], *, now: bool = False) -> None:
        """Moves the cursors of members that wait for nothing to the query group's position, where the log has grown.

        With `now` in any case. Call it with the query group held: a refresh that is written and not noted would be missed.
        """
        catalog, log = self.services.catalog, group.query.result
        position = catalog.status(group.name).position
        since = self._settled.setdefault(log.id, position)
        rows = sum(c.rows for c in catalog.changes(log.id, since + 1, position))
        if not delivering or (rows < self.services.limits.settle_rows and not now):
            return
        self._settled[log.id] = position
        newest = self.newest_of(group)
        moved = [
            (replace(cursor, version=position), cursor)
            for query in delivering
            for cursor in catalog.cursors(query.name)
            if cursor.sequence == 0
            and not cursor.failures
            and newest.get(query.id, 0) <= cursor.version < position
        ]
        step = self.services.limits.settle_cursors
        for start in range(0, len(moved), step):  # commits come in between
            with catalog.write() as unit:
                for cursor, before in moved[start : start + step]:
                    unit.set_cursor(cursor, after=before)
