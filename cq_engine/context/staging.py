"""Rows that executors write straight into the warehouse, and files written by the driver."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.catalog import tables
from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import DataFile, Table
from cq_engine.context.services import Services
from cq_engine.core.beside import is_much, together
from cq_engine.spark.sql import quote
from cq_engine.spark.widths import Size, cores, file_count
from cq_engine.storage.data_files import write_files

if TYPE_CHECKING:
    from cq_engine.catalog.attempts import Attempt

__all__ = ["SIGN", "clustering", "discard", "fresh_row_ids", "stage_arrow", "stage_plain", "stage_rows"]

SIGN = "_cq_sign"
"""−1 for a row that is gone, +1 for a new row."""

_PARTITION_BITS = 33
"""Those below the partition's number in what `monotonically_increasing_id` gives."""

_numbers = itertools.count(1)


def clustering(table: Table) -> tuple[str, ...]:
    """The columns by which files are sorted: CLUSTER BY, by default the row identity."""
    return table.storage.cluster_by or table.storage.identity


def stage_plain(
    services: Services,
    attempt: Attempt,
    table: Table,
    frame: DataFrame,
    size: Size,
    *,
    in_ranges: bool = False,
) -> list[DataFile]:
    """Writes rows of the table's own columns, about so many, as plain rows, sorted by the clustering columns over range
    partitions, and with fresh hidden identities where the table has them. With `in_ranges` the frame's own partitions are
    such ranges, however many there are; not of a table with hidden identities, which are reserved by partition.

    Raises CQError where an expression fails on some row.
    """
    limits, in_ranges = services.limits, in_ranges and not table.storage.has_row_id
    count = file_count(size, cores(services.spark()), limits, limits.staged_file_rows)
    keys = [f.col(quote(name)) for name in clustering(table) if name != ROW_ID]
    if not keys:
        frame = frame.repartition(count)
    else:
        ranges = frame if in_ranges else frame.repartitionByRange(count, *keys)
        frame = ranges.sortWithinPartitions(*keys)
    if table.storage.has_row_id:
        frame = frame.withColumn(ROW_ID, fresh_row_ids(services, table, count))
    return stage_rows(
        services, attempt, table, frame, "snapshot", limits.staged_file_rows if in_ranges else 0
    )


def fresh_row_ids(services: Services, table: Table, partitions: int) -> SparkColumn:
    """Hidden identities of rows that are in so many partitions at most: no row of the table has had or will have them.

    So many are reserved for each partition that `monotonically_increasing_id` can give. Those that are not used are lost, also
    where what they were for is given up: a table has enough for 2³⁰ partitions.
    """
    first = services.catalog.reserve_row_ids(table.storage.id, partitions << _PARTITION_BITS)
    return f.lit(first).cast("bigint") + f.monotonically_increasing_id()


def stage_rows(
    services: Services, attempt: Attempt, table: Table, frame: DataFrame, role: str, most: int = 0
) -> list[DataFile]:
    """Writes a frame as it is partitioned, into a directory of its own; in files of at most `most` rows, if that is not 0.

    `role` is snapshot (plain rows) or log (change rows and signed rows). Raises CQError.
    """
    return write_files(
        services.catalog.store,
        frame,
        _fresh_directory(attempt, table, role),
        _stats_columns(table),
        services.limits,
        small_groups=True,
        most=most,
    )


def stage_arrow(
    services: Services, attempt: Attempt, table: Table, rows: pa.Table, role: str
) -> list[DataFile]:
    """Writes Arrow rows from the driver, in files of a bounded size, in the order given. Many rows are written by two cores."""
    directory = _fresh_directory(attempt, table, role)
    columns, size, half = _stats_columns(table), services.limits.staged_file_rows, rows.num_rows // 2
    size = min(size, half + 1) if is_much(half) else size
    writes = [
        partial(
            tables.write_parquet,
            rows.slice(start, size),
            f"{directory}/part-{n:05d}.parquet",
            services.catalog.store,
            columns,
        )
        for n, start in enumerate(range(0, rows.num_rows, size))
    ]
    store = services.catalog.store
    return store.ask(
        lambda: together(writes, min(size, rows.num_rows)), lambda: store.delete_directory(directory)
    )


def discard(services: Services, files: Sequence[DataFile]) -> None:
    """Removes staged files that nothing refers to any more."""
    for file in files:
        services.catalog.store.delete(file.path)


def _fresh_directory(attempt: Attempt, table: Table, role: str) -> str:
    """One attempt may write several sets of files of a table."""
    return f"{attempt.directory(table.storage, role)}/{next(_numbers):04d}"


def _stats_columns(table: Table) -> Sequence[str]:
    return list(
        dict.fromkeys([*clustering(table), *table.storage.identity, *(c.name for c in table.columns[:32])])
    )
