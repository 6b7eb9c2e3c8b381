"""Flush: inline change sets to Parquet, one file per table and run, swapped in the catalog in one transaction.

Files hold what inline rows hold, in the order of the versions, and `_commit_timestamp` besides. The rows stay in the
cache, so that a small interval is still served from memory (`Catalog.cached`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    REFRESH_TIME,
    SEQUENCE,
)
from cq_engine.catalog.model import ChangeSet, VersionedTable
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.tables import write_parquet
from cq_engine.catalog.view import Replaced, WriteSet, versioned_tables
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.troubles import Troubles
from cq_engine.core.types import arrow_schema

__all__ = ["flush", "log_columns", "with_timestamps"]


def log_columns(table: VersionedTable) -> tuple[Column, ...]:
    """The columns of a change log as it lies in files and is published.

    The table's columns, `_row_id` where that is the identity, for a delta log `_sequence` and `_refresh_time`, then
    `_change_type`, `_commit_version`, `_commit_timestamp`.
    """
    delta = (Column(SEQUENCE, "bigint"), Column(REFRESH_TIME, "timestamp")) if table.kind == "delta" else ()
    own = [c for c in table.physical_columns if c.name not in (SEQUENCE, REFRESH_TIME)]
    return (
        *own,
        *delta,
        Column(CHANGE_TYPE, "string"),
        Column(COMMIT_VERSION, "bigint"),
        Column(COMMIT_TIMESTAMP, "timestamp"),
    )


def flush(catalog: Catalog, troubles: Troubles | None = None) -> int:
    """Writes all inline change sets to files. Returns how many change sets there were.

    What fails for one table stays inline, and goes to `troubles`; without, it is raised when the others are written.
    """
    found = Troubles() if troubles is None else troubles
    runs = list(_runs(catalog))
    if not runs:
        return 0
    attempt = catalog.attempt("flush")
    replaced: list[Replaced] = []
    try:
        for number, (table, run) in enumerate(runs):
            with found.of(table.name):
                replaced.append(_write_run(catalog, attempt, number, table, run))
        if replaced:
            faults.point("publish.staged")
            catalog.write_set(WriteSet(replaced=replaced), attempt)
        else:
            attempt.abandon()
    except BaseException:
        attempt.abandon()
        raise
    if troubles is None:
        found.check("writing small changes to files")
    return sum(len(each.old) for each in replaced)


def _write_run(
    catalog: Catalog, attempt: Attempt, number: int, table: VersionedTable, run: Sequence[ChangeSet]
) -> Replaced:
    """One run of change sets, in one file, which is not there where this fails."""
    path = f"{attempt.directory(table, 'log')}/part-{number:05d}.parquet"
    inline = pa.concat_tables(
        [conform_log(rows, table) for rows in catalog.read_changes(list(run))], promote_options="default"
    )
    rows = with_timestamps(catalog, inline, run[0].low, run[-1].high)
    stats = {*table.identity, *table.cluster_by, COMMIT_VERSION}
    try:
        file = write_parquet(rows, path, catalog.store, stats)
    except BaseException:
        catalog.store.delete(path)
        raise
    merged = ChangeSet(
        table.id,
        run[0].low,
        run[-1].high,
        rows.num_rows,
        frozenset().union(*(c.kinds for c in run)),
        files=(file,),
        id=catalog.next_change_id(),
    )
    return Replaced(table.id, tuple(run), merged, inline)


def conform_log(rows: pa.Table, table: VersionedTable) -> pa.Table:
    """Change rows with the columns and types of the log's files, without `_commit_timestamp`; columns that were added
    to the table later are NULL."""
    schema = arrow_schema(c for c in log_columns(table) if c.name != COMMIT_TIMESTAMP)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def with_timestamps(catalog: Catalog, rows: pa.Table, low: int, high: int) -> pa.Table:
    """`rows`, of the versions [low, high], with `_commit_timestamp` after `_commit_version`."""
    known = catalog.timestamps(low, high)
    kind = pa.timestamp("us", tz="UTC")
    moments = pa.array(known.values(), kind)
    places = pc.index_in(rows.column(COMMIT_VERSION), value_set=pa.array(known.keys(), pa.int64()))
    return rows.append_column(pa.field(COMMIT_TIMESTAMP, kind), pa.chunked_array([moments]).take(places))


def _runs(catalog: Catalog) -> Iterator[tuple[VersionedTable, list[ChangeSet]]]:
    """Per table, inline change sets that follow each other without one in files between them."""
    view = catalog.view
    tables = versioned_tables(view.state)
    with view.lock:
        found = {number: list(view.layout(number).changes) for number in tables}
    for number, changes in found.items():
        run: list[ChangeSet] = []
        size = 0
        for change_set in changes:
            inline = change_set.inline_id is not None
            if run and (not inline or size >= catalog.limits.flush_rows):
                yield tables[number], run
                run, size = [], 0
            if inline:
                run.append(change_set)
                size += change_set.rows
        if run:
            yield tables[number], run
