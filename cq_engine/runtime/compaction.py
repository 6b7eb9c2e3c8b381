"""Compaction: changes are merged into the snapshot, so that reads start from files and the tail stays short."""

from __future__ import annotations

import math

from cq_engine import faults
from cq_engine.algebra.emit import quote
from cq_engine.catalog import tables
from cq_engine.catalog.model import ContinuousQuery, VersionedTable
from cq_engine.runtime.services import Services
from cq_engine.runtime.staging import ROW_GROUPS

__all__ = ["Compactor"]

ROWS_PER_FILE = 500_000
STATE_TAIL = 20_000
"""A state's change rows beyond which it is compacted, where they are also more than a fifth of it."""


class Compactor:
    """Rewrites snapshots. Nothing is removed here that a reader could still need."""

    def __init__(self, services: Services) -> None:
        self.services = services

    def after_refresh(self, query: ContinuousQuery, *, shared: bool = False) -> None:
        """Compacts the query's states, and its result where others read it, where their tails have grown.

        The states of a template (`shared`) are compacted below its position, at which new members' rows are added.
        """
        at = self.services.catalog.status(query.name).position - shared
        stored = [state for _, state in query.states]
        if query.relation is not None:
            stored.append(query.relation.storage)
        for state in stored:
            layout = self.services.catalog.layout(state.id, at)
            tail = sum(s.rows for s in layout.changes if s.low <= at)
            if tail > STATE_TAIL and 5 * tail > sum(f.rows for f in layout.snapshot):
                self.compact(state, at)

    def compact(self, table: VersionedTable, version: int | None = None) -> None:
        """Writes the image at `version` (default: the newest commit) as the table's snapshot."""
        catalog = self.services.catalog
        at = catalog.newest_version if version is None else version
        layout = catalog.layout(table.id, at)
        if not any(s.low <= at for s in layout.changes):
            return
        image = self.services.reader.image(table, at)
        rows = sum(f.rows for f in layout.snapshot) + sum(s.rows for s in layout.changes)
        keys = [quote(name) for name in (table.cluster_by or table.identity)]
        count = max(1, math.ceil(rows / ROWS_PER_FILE))
        if keys:
            image = image.repartitionByRange(count, *keys).sortWithinPartitions(*keys)
        else:
            image = image.repartition(count)
        attempt = catalog.attempt("compact")
        directory = attempt.directory(table, "snapshot") + f"/v{at}"
        image.write.options(**ROW_GROUPS).parquet(directory)
        wanted = dict.fromkeys([*table.cluster_by, *table.identity, *(c.name for c in table.columns[:32])])
        files = tables.data_files(directory, catalog.warehouse, list(wanted))
        faults.point("compact.staged")
        with catalog.lock, catalog.write(attempt) as unit:
            unit.advance_snapshot(table, at, files, [f.path for f in layout.snapshot])
        faults.point("compact.after_catalog")
