"""Data files of the warehouse that Spark's executors read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession

from cq_engine.catalog import tables
from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.base import Store
from cq_engine.core.columns import Column
from cq_engine.core.types import spark_schema
from cq_engine.spark.settings import writer
from cq_engine.spark.sql import translate_errors

__all__ = ["read_files", "write_files"]


def read_files(
    spark: SparkSession, store: Store, files: Sequence[DataFile], columns: Sequence[Column]
) -> DataFrame:
    """The rows of one file or several as a DataFrame with exactly `columns`; columns a file lacks are NULL.

    Raises CQError.
    """
    with translate_errors():  # Spark looks for them at once
        return spark.read.schema(spark_schema(columns)).parquet(*(store.path(file.path) for file in files))


def write_files(
    store: Store,
    frame: DataFrame,
    directory: str,
    stats_columns: Iterable[str] = (),
    *,
    row_group: int | None = None,
    most: int = 0,
    durable: bool = True,
) -> list[DataFile]:
    """Writes a frame as it is partitioned, into a directory that is not there yet; what was written, in the order of the
    partitions, without files of no rows.

    In groups of `row_group` rows, and in files of at most `most` rows, where that is not 0. What nobody refers to after
    this statement need not be `durable`. Raises CQError where an expression fails on some row, StorageError.
    """
    options = {"maxRecordsPerFile": str(most)}
    if row_group is not None:
        options["parquet.block.row.count.limit"] = str(row_group)
    with translate_errors():
        writer(frame).options(**options).parquet(store.path(directory))
    return tables.data_files(directory, store, stats_columns, durable=durable)
