"""The rows that a refresh writes: of the delta log, in order, and of its states."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO
from cq_engine.catalog.model import VersionedTable
from cq_engine.context.services import Services
from cq_engine.planner.compiled import StoredAggregate
from cq_engine.storage.rows import change_columns, conform

__all__ = ["bounds_of", "counts_of", "log_rows_in_order", "state_rows"]


def counts_of(rows: pa.Table) -> tuple[int, int, int]:
    """How many rows of a delta log are I, D and U."""
    kinds = rows.column("_change_type").combine_chunks()
    found = {item["values"]: item["counts"] for item in pc.value_counts(kinds).to_pylist()}
    return found.get("insert", 0), found.get("delete", 0), found.get("update_postimage", 0)


def bounds_of(rows: pa.Table) -> tuple[int, int]:
    """The smallest and the largest commit version of a delta log's rows; zeros where there are none."""
    if rows.num_rows == 0:
        return (0, 0)
    bounds = pc.min_max(rows.column("_commit_version"))
    return bounds["min"].as_py(), bounds["max"].as_py()


def log_rows_in_order(table: VersionedTable, log: pa.Table, services: Services) -> pa.Table:
    """Rows of a delta log in commit order, before-image first, with the time of the refresh."""
    order = [("_commit_version", "ascending"), ("_sequence", "ascending"), ("_change_type", "descending")]
    if log.num_rows:
        log = log.take(pc.sort_indices(log.select([n for n, _ in order]), sort_keys=order))
    now = pa.array([services.clock.now()] * log.num_rows, pa.timestamp("us", tz="UTC"))
    return conform(log.append_column("_refresh_time", now), change_columns(table))


def state_rows(versions: pa.Table, stored: StoredAggregate, version: int) -> pa.Table:
    """A state's change rows from its groups' versions: the last one of each group, deleted where it has no rows."""
    last = pc.and_(pc.equal(versions.column(TO), FOREVER), pc.greater(versions.column(FROM), BEFORE))
    rows = versions.filter(last)
    kinds = pa.array(["update_postimage"] * rows.num_rows, pa.string())
    if stored.keys:
        kinds = pc.if_else(pc.equal(rows.column("_n"), 0), "delete", "update_postimage")
    versions_column = pa.array([version] * rows.num_rows, pa.int64())
    shown = rows.select([c.name for c in stored.columns])
    return shown.append_column("_change_type", kinds).append_column("_commit_version", versions_column)
