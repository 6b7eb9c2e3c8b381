"""Data files of the warehouse that Spark's executors read and write: with Spark's own reader and writer where they lie in a
directory, through Arrow elsewhere (`storage/arrow_files.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog import tables
from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.base import Store
from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.core.types import spark_schema
from cq_engine.spark.settings import writer
from cq_engine.spark.sql import translate_errors

__all__ = ["read_files", "write_files"]


def read_files(
    spark: SparkSession,
    store: Store,
    files: Sequence[DataFile],
    columns: Sequence[Column],
    limits: Limits,
    restrict: Mapping[str, pa.Array] | None = None,
) -> DataFrame:
    """The rows of one file or several as a DataFrame with exactly `columns`; columns a file lacks are NULL.

    With `restrict` (column → wanted values) rows without a wanted value may be missing. Raises CQError.
    """
    if not store.is_local:
        from cq_engine.storage import arrow_files  # which a warehouse in a directory does without

        return arrow_files.read(spark, store, files, columns, restrict or {}, limits=limits)
    with translate_errors():  # Spark looks for them at once
        return spark.read.schema(spark_schema(columns)).parquet(*(store.path(file.path) for file in files))


def write_files(
    store: Store,
    frame: DataFrame,
    directory: str,
    stats_columns: Iterable[str],
    limits: Limits,
    *,
    small_groups: bool = False,
    most: int = 0,
    durable: bool = True,
) -> list[DataFile]:
    """Writes a frame as it is partitioned, into a directory that is not there yet; what was written, in the order of the
    partitions, without files of no rows.

    With `small_groups` in row groups for look-ups, and in files of at most `most` rows, where that is not 0. What nobody
    refers to after this statement need not be `durable`. Raises CQError where an expression fails on some row, StorageError.
    """
    if not store.is_local:
        from cq_engine.storage import arrow_files

        size = limits.row_group_rows if small_groups else limits.store_batch_rows
        return arrow_files.write(store, frame, directory, list(stats_columns), row_group=size, most=most)
    options = {"maxRecordsPerFile": str(most)}
    if small_groups:
        options["parquet.block.row.count.limit"] = str(limits.row_group_rows)
    with translate_errors():
        writer(frame).options(**options).parquet(store.path(directory))
    return tables.data_files(directory, store, stats_columns, durable=durable)
