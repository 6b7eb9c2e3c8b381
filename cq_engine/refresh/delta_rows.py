"""The rows that a refresh writes through the driver: of the delta log, in order, and of its states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO
from cq_engine.catalog.change_rows import DELETES, PARTIAL_UPDATE, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, UPSERT
from cq_engine.catalog.model import VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.arrays import repeated
from cq_engine.planner.compiled import StoredAggregate
from cq_engine.storage.rows import change_columns, conform

__all__ = ["UPDATED", "Summary", "log_rows_in_order", "state_rows", "summarize"]

UPDATED = (UPDATE_POSTIMAGE, PARTIAL_UPDATE, UPSERT)
"""The change types that are counted as updates, one of them for each delta."""


@dataclass(frozen=True)
class Summary:
    """Of a delta's rows: how many are I, D and U and have the key of another, the smallest and largest version.

    A partial update and an upsert count as U, a partial deletion as D.
    """

    rows: int = 0
    inserted: int = 0
    deleted: int = 0
    updated: int = 0
    duplicates: int = 0
    low: int = 0
    high: int = 0
    upserted: int = 0
    """How many of the U are upserts, of rows that may be new."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many rows are I, D and U."""
        return self.inserted, self.deleted, self.updated

    @property
    def kinds(self) -> frozenset[str]:
        """Which of INSERT, DELETE, UPDATE the rows are."""
        counts = (self.inserted + self.upserted, self.deleted, self.updated)
        return frozenset(k for k, count in zip(("INSERT", "DELETE", "UPDATE"), counts) if count)


def summarize(log: pa.Table) -> Summary:
    """The numbers of a delta's rows, with `_duplicate`."""
    if log.num_rows == 0:
        return Summary()
    kinds = log.column("_change_type").combine_chunks()
    counts = {item["values"]: item["counts"] for item in pc.value_counts(kinds).to_pylist()}
    bounds = pc.min_max(log.column("_commit_version"))
    return Summary(
        log.num_rows,
        counts.get("insert", 0),
        sum(counts.get(kind, 0) for kind in DELETES),
        sum(counts.get(kind, 0) for kind in UPDATED),
        pc.sum(log.column("_duplicate")).as_py() or 0,
        bounds["min"].as_py(),
        bounds["max"].as_py(),
        counts.get(UPSERT, 0),
    )


def log_rows_in_order(
    table: VersionedTable, log: pa.Table, services: Services, *, numbered: bool = True
) -> pa.Table:
    """Rows of a delta log in commit order, before-image first, with the time of the refresh; `numbered` without gaps, or to be."""
    order = [("_commit_version", "ascending"), ("_sequence", "ascending"), ("_change_type", "descending")]
    if not _is_in_order(log):
        log = log.take(pc.sort_indices(log.select([n for n, _ in order]), sort_keys=order))
    if not numbered:
        log = _without_gaps(log)
    now = repeated(services.clock.now(), pa.timestamp("us", tz="UTC"), log.num_rows)
    return conform(log.append_column("_refresh_time", now), change_columns(table))


def _without_gaps(log: pa.Table) -> pa.Table:
    """The rows, in order, with `_sequence` 1, 2, 3, … in each version."""
    versions, numbers = (np.asarray(log.column(n)) for n in ("_commit_version", "_sequence"))
    begins = np.append(True, np.diff(versions) != 0)[: len(versions)]
    counted = np.cumsum(begins | np.append(True, np.diff(numbers) != 0)[: len(versions)])
    dense = counted - counted[begins][np.cumsum(begins) - 1] + 1
    place = log.column_names.index("_sequence")
    return log.set_column(place, log.schema.field(place), pa.array(dense, pa.int64()))


def _is_in_order(log: pa.Table) -> bool:
    versions, numbers = (np.asarray(log.column(n)) for n in ("_commit_version", "_sequence"))
    later, same = np.diff(versions) > 0, np.diff(versions) == 0
    before = np.asarray(pc.equal(log.column("_change_type"), UPDATE_PREIMAGE))[:-1]
    return bool(np.all(later | (same & ((np.diff(numbers) > 0) | ((np.diff(numbers) == 0) & before)))))


def state_rows(rows: pa.Table, stored: StoredAggregate, version: int) -> pa.Table:
    """A state's change rows from its groups' versions: the last one of each group, deleted where it has no rows."""
    if FROM in rows.column_names:
        last = pc.and_(pc.equal(rows.column(TO), FOREVER), pc.greater(rows.column(FROM), BEFORE))
        rows = rows.filter(last)
    kinds = repeated("update_postimage", pa.string(), rows.num_rows)
    if stored.keys:
        kinds = pc.if_else(pc.equal(rows.column("_n"), 0), "delete", "update_postimage")
    versions_column = repeated(version, pa.int64(), rows.num_rows)
    shown = rows.select([c.name for c in stored.columns])
    return shown.append_column("_change_type", kinds).append_column("_commit_version", versions_column)
