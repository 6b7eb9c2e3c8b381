"""USING LOG and USING COPY over an Iceberg table: snapshots that append are read by what they append, others are compared."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.arrays import repeated
from cq_engine.core.errors import AnalysisError, SourceError
from cq_engine.sources.iceberg.table import (
    appended,
    appends_since,
    columns_of,
    condition_of,
    image,
    open_table,
)
from cq_engine.sources.methods.base import Method, Place, as_spelled
from cq_engine.sources.options import option
from cq_engine.sources.tick import COMMITTED, INSERT, TRANSACTION, UPSERT, Tick, with_operation
from cq_engine.storage.rows import conform

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["IcebergFeed"]

_log = logging.getLogger(__name__)


class IcebergFeed(Method):
    """Positions are the id of the Iceberg table and of the snapshot up to which it was read."""

    needs_key = False

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        capture = as_spelled(
            capture, columns_of(open_table(declared, capture.relation)), "the Iceberg table", place
        )
        condition_of(capture)
        if capture.method.kind == "COPY" and table.primary_key is None:
            raise AnalysisError(
                f"table {table.name} has no primary key",
                detail="COPY compares snapshots of the Iceberg table, whose rows are known again by it",
                hint="give the table a primary key, or write USING LOG",
            )
        notes = [] if table.primary_key else ["it follows as long as the Iceberg table is only appended to"]
        return capture, notes

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        now, position = open_table(declared, tick.capture.relation), tick.position
        snapshot = now.current_snapshot()
        newest = None if snapshot is None else snapshot.snapshot_id
        reached = {"id": str(now.metadata.table_uuid), "snapshot": newest}
        if (
            position is None
            and tick.capture.method.kind == "LOG"
            and option(tick.capture, "initial") == "none"
        ) or position == reached:
            tick.move(reached)
        else:
            self._read(tick, declared, now, position, reached)

    def _read(
        self,
        tick: Tick,
        declared: DeclaredSource,
        now: IcebergTable,
        position: Mapping[str, Any] | None,
        reached: Mapping[str, Any],
    ) -> None:
        """From the position to the newest snapshot."""
        snapshots = None
        if position is not None and position["id"] == reached["id"] and tick.capture.method.kind == "LOG":
            snapshots = appends_since(now, position["snapshot"])
        if snapshots is not None:
            rest = self._append(tick, declared, now, snapshots, reached["id"])
            if not rest:
                return
        if tick.key:
            tick.replace(image(declared, now, tick.capture), reached)
        elif position is None:
            tick.load(image(declared, now, tick.capture), reached)
        else:
            raise SourceError(
                f"capture {tick.capture.name} cannot follow the Iceberg table: it was not only appended to",
                detail=f"table {tick.capture.table} has no primary key by which rows could be found",
                hint="create the table anew with a primary key",
            )

    def _append(
        self,
        tick: Tick,
        declared: DeclaredSource,
        now: IcebergTable,
        snapshots: Sequence[Snapshot],
        table: str,
    ) -> Sequence[Snapshot]:
        """Adds what each snapshot has appended, as a commit of its own with its time. Those that are left are more than the
        driver takes, and have to be compared."""
        for n, snapshot in enumerate(snapshots):
            here = {"id": table, "snapshot": snapshot.snapshot_id}
            batches = appended(declared, now, tick.capture, snapshot)
            rows, rest = tick.take(batches, tick.services.limits.apply_rows)
            if rows is None and tick.key:
                _log.info(
                    "capture %s: a snapshot has appended many rows; all are compared", tick.capture.name
                )
                return snapshots[n:]
            if rows is None:
                tick.load(rest, here)
            elif rows.num_rows:
                tick.apply({tick.table.name: _changes(tick, rows, snapshot)}, here, transactional=True)
            else:
                tick.move(here)
        return ()


def _changes(tick: Tick, rows: pa.Table, snapshot: Snapshot) -> pa.Table:
    moment = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc)
    given = with_operation(conform(rows, tick.columns), UPSERT if tick.key else INSERT)
    count = given.num_rows
    given = given.append_column(TRANSACTION, repeated(snapshot.sequence_number or 0, pa.int64(), count))
    return given.append_column(COMMITTED, repeated(moment, pa.timestamp("us", tz="UTC"), count))
