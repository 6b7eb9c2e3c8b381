"""Net changes that are too many for the driver: signed rows in staged Parquet files, combined by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from cq_engine.catalog.change_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
)
from cq_engine.catalog.model import Table
from cq_engine.context.staging import SIGN
from cq_engine.core.columns import Column
from cq_engine.planner.comparable import comparable
from cq_engine.spark.sql import quote
from cq_engine.storage.reader import Reader, join_identities
from cq_engine.transactions.write_set import BulkPending, SmallPending

__all__ = ["change_rows", "hide", "net", "overlay", "sign", "signed_pairs"]

_SIGN_COLUMN = Column(SIGN, "int", nullable=False)


def _columns(table: Table) -> list[SparkColumn]:
    return [f.col(quote(c.name)) for c in table.storage.physical_columns]


def sign(reader: Reader, pending: SmallPending | BulkPending) -> DataFrame:
    """What is pending as physical columns and `_cq_sign`."""
    columns = pending.table.storage.physical_columns
    if isinstance(pending, SmallPending):
        gone = reader.frame(pending.hidden_rows(), columns).withColumn(SIGN, f.lit(-1))
        new = reader.frame(pending.added_rows(), columns).withColumn(SIGN, f.lit(1))
        return gone.unionAll(new)
    parts = []
    if pending.plain:
        parts.append(reader.files(pending.plain, columns).withColumn(SIGN, f.lit(1)))
    if pending.signed or not pending.plain:
        parts.append(reader.files(pending.signed, [*columns, _SIGN_COLUMN]))
    return reduce(DataFrame.unionAll, parts)


def signed_pairs(table: Table, pairs: DataFrame) -> DataFrame:
    """An effect's pairs as signed rows, without those that change nothing."""
    columns = table.storage.physical_columns
    old = f.struct(*(f.col(f"_o{n}").alias(c.name) for n, c in enumerate(columns)), f.lit(-1).alias(SIGN))
    new = f.struct(*(f.col(f"_n{n}").alias(c.name) for n, c in enumerate(columns)), f.lit(1).alias(SIGN))
    rows = (
        f.when(f.col("_kind") == "U", f.array(old, new))
        .when(f.col("_kind") == "D", f.array(old))
        .otherwise(f.array(new))
    )
    return pairs.select(f.explode(rows).alias("_r")).select("_r.*")


def net(table: Table, parts: Sequence[DataFrame]) -> DataFrame:
    """The sum of signed rows: a row that went and came again is gone from it."""
    total = f.sum(SIGN).alias("_cq_total")
    columns = table.storage.physical_columns
    forms = {c.name: comparable(quote(c.name), c.type) for c in columns}
    grouped = reduce(DataFrame.unionAll, parts).groupBy(
        *(f.expr(form).alias(f"_cq_g{n}") for n, form in enumerate(forms.values()))
    )
    firsts = [f.first(quote(c.name)).alias(c.name) for c in columns]
    summed = grouped.agg(*firsts, total).where(f.col("_cq_total") != 0)
    sign = f.when(f.col("_cq_total") > 0, f.lit(1)).otherwise(f.lit(-1))
    copies = f.explode(f.array_repeat(sign, f.abs("_cq_total").cast("int")))
    return summed.select(*_columns(table), copies.alias(SIGN))


def hide(table: Table, image: DataFrame, gone: DataFrame) -> DataFrame:
    """`image` without the rows whose identity stands in `gone`."""
    return join_identities(image, gone, table.storage.identity, "left_anti")


def overlay(reader: Reader, image: DataFrame, pending: SmallPending | BulkPending) -> DataFrame:
    """The snapshot's `image` with what is pending."""
    table = pending.table
    if isinstance(pending, SmallPending):
        columns = table.storage.physical_columns
        gone = pending.hidden_rows()
        if gone.num_rows:
            image = hide(table, image, reader.frame(gone, columns))
        added = pending.added_rows()
        return image.unionAll(reader.frame(added, columns)) if added.num_rows else image
    rows = sign(reader, pending)
    if pending.signed:
        image = hide(table, image, rows.where(f.col(SIGN) < 0))
    return image.unionAll(rows.where(f.col(SIGN) > 0).select(*_columns(table)))


def change_rows(table: Table, rows: DataFrame, version: int, timestamp: datetime) -> DataFrame:
    """Net signed rows as change rows of one commit."""
    same = Window.partitionBy(*(f.col(quote(name)) for name in table.storage.identity))
    both = (f.min(SIGN).over(same) < 0) & (f.max(SIGN).over(same) > 0)
    gone = f.col(SIGN) < 0
    kind = (
        f.when(both & gone, f.lit(UPDATE_PREIMAGE))
        .when(both, f.lit(UPDATE_POSTIMAGE))
        .when(gone, f.lit(DELETE))
        .otherwise(f.lit(INSERT))
    )
    micros = int(timestamp.timestamp()) * 1_000_000 + timestamp.microsecond
    return rows.select(
        *_columns(table),
        kind.alias(CHANGE_TYPE),
        f.lit(version).cast("bigint").alias(COMMIT_VERSION),
        f.timestamp_micros(f.lit(micros).cast("bigint")).alias(COMMIT_TIMESTAMP),
    )
