"""Change rows that the driver has computed and that are too many for the catalog: they go into files, before the catalog is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import COMMIT_VERSION
from cq_engine.catalog.flush import conform_log, with_timestamps
from cq_engine.catalog.model import ContinuousQuery, DataFile, VersionedTable
from cq_engine.catalog.tables import write_parquet
from cq_engine.context.services import Services
from cq_engine.refresh.executors import Changes, Outcome
from cq_engine.refresh.interval import Interval

__all__ = ["stage_large"]


def stage_large(services: Services, query: ContinuousQuery, interval: Interval, outcome: Outcome) -> Outcome:
    """The outcome with files in the place of tables of more than `Limits.refresh_inline_bytes`: the catalog's database has them as one
    value, which it reads as a whole, and of which SQLite and PostgreSQL take 1 GB at most.

    Raises StorageError where they cannot be written; the outcome's attempt is given up then.
    """
    most = services.limits.refresh_inline_bytes
    every = [outcome.log, outcome.relation, *(rows for _, rows in outcome.states)]
    if not any(_is_large(rows, most) for rows in every):
        return outcome
    attempt = outcome.attempt or services.catalog.attempt("refresh")

    def staged(table: VersionedTable, rows: Changes, low: int, high: int) -> Changes:
        return _write(services, attempt, table, rows, low, high) if _is_large(rows, most) else rows

    low, high = outcome.summary.low, outcome.summary.high
    try:
        relation = outcome.relation
        if query.relation is not None:
            relation = staged(query.relation.storage, relation, low, high)
        return replace(
            outcome,
            log=staged(query.result, outcome.log, low, high),
            relation=relation,
            states=[(table, staged(table, rows, interval.b, interval.b)) for table, rows in outcome.states],
            attempt=attempt,
        )
    except BaseException:
        attempt.abandon()
        raise


def _is_large(rows: Changes, most: int) -> bool:
    return isinstance(rows, pa.Table) and rows.num_rows > 0 and rows.nbytes > most


def _write(
    services: Services, attempt: Attempt, table: VersionedTable, rows: pa.Table, low: int, high: int
) -> Sequence[DataFile]:
    """As a flush writes them, in files of a bounded size."""
    catalog, size = services.catalog, services.limits.staged_file_rows
    rows = with_timestamps(catalog, conform_log(rows, table), low, high)
    directory, stats = attempt.directory(table, "log"), {*table.identity, *table.cluster_by, COMMIT_VERSION}
    return [
        write_parquet(rows.slice(start, size), f"{directory}/rows-{n:05d}.parquet", catalog.store, stats)
        for n, start in enumerate(range(0, rows.num_rows, size))
    ]
