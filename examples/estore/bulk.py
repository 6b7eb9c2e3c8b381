"""The bulk load: Spark's executors make the rows and write them as Parquet, COPY INTO takes them from there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark programs use

import cq_engine
from estore.schema import LINES_PER_ORDER, TABLES, Sizes
from estore.values import (
    FIRST_DATE,
    ITEMS,
    REGIONS,
    SEGMENTS,
    YEAR,
    item_index,
    order_customer,
    price_cents,
    quantity,
    region_index,
    scattered,
    segment_index,
)

__all__ = ["Loaded", "bulk_rows", "load"]

_ROWS_PER_FILE = 250_000


@dataclass(frozen=True)
class Loaded:
    """What a load did."""

    rows: dict[str, int]
    generate_seconds: float
    load_seconds: float


def load(
    engine: cq_engine.Engine,
    scale: float,
    staging: str | None = None,
    tables: Mapping[str, str] = TABLES,
    *,
    scatter: bool = False,
) -> Loaded:
    """Creates the three tables and loads the bulk rows of `scale`, one commit per table.

    Args:
        staging: a directory or URI that executors can write to; default a temporary directory of this machine.
        tables: CREATE TABLE per table, where it is to be another one than TABLES.
        scatter: order numbers are `scattered`; those of the transactions have to be, too.
    """
    sizes = Sizes(scale)
    with _staging(staging) as directory:
        started = time.perf_counter()
        for table, frame in bulk_rows(engine.spark, sizes).items():
            if scatter and "oid" in frame.columns:
                frame = frame.withColumn("oid", scattered(F.col("oid")))  # noqa: PLW2901
            frame.write.mode("overwrite").parquet(f"{directory}/{table}")
        generated = time.perf_counter()
        for table, create in tables.items():
            engine.execute(create)
            engine.execute(f"COPY INTO {table} FROM '{directory}/{table}' FORMAT parquet")
    return Loaded(sizes.rows(), generated - started, time.perf_counter() - generated)


def bulk_rows(spark: SparkSession, sizes: Sizes) -> dict[str, DataFrame]:
    """The bulk rows of every table, in the order of their keys."""
    return {
        "customer": _customers(spark, sizes),
        "orders": _orders(spark, sizes),
        "orderline": _lines(spark, sizes),
    }


def _customers(spark: SparkSession, sizes: Sizes) -> DataFrame:
    cid = F.col("cid")
    return _keys(spark, sizes.customers, "cid").select(
        cid,
        F.format_string("Customer %d", cid).alias("name"),
        _pick(REGIONS, region_index(cid)).alias("region"),
        _pick(SEGMENTS, segment_index(cid)).alias("segment"),
    )


def _orders(spark: SparkSession, sizes: Sizes) -> DataFrame:
    oid = F.col("oid")
    days = F.expr(f"CAST((oid - 1) * {YEAR} DIV {sizes.orders} AS INT)")
    paid = sum((price_cents(oid, n) * quantity(oid, n) for n in range(2, LINES_PER_ORDER + 1)),
               start=price_cents(oid, 1) * quantity(oid, 1))  # fmt: skip
    return _keys(spark, sizes.orders, "oid").select(
        oid,
        order_customer(oid, sizes.customers).alias("cid"),
        F.date_add(F.lit(FIRST_DATE), days).alias("odate"),
        _money(paid, 12).alias("paid"),
    )


def _lines(spark: SparkSession, sizes: Sizes) -> DataFrame:
    oid, line = F.col("oid"), F.col("line")
    keys = _keys(spark, sizes.lines, "n").select(
        F.expr(f"(n - 1) DIV {LINES_PER_ORDER} + 1").alias("oid"),
        F.expr(f"CAST((n - 1) % {LINES_PER_ORDER} + 1 AS INT)").alias("line"),
    )
    return keys.select(
        oid,
        line,
        _pick(ITEMS, item_index(oid, line)).alias("item"),
        _money(price_cents(oid, line), 10).alias("price"),
        quantity(oid, line).cast("int").alias("qty"),
    )


def _keys(spark: SparkSession, count: int, name: str) -> DataFrame:
    """1 ... count, a contiguous range per partition and so per file."""
    partitions = max(1, -(-count // _ROWS_PER_FILE))
    return spark.range(1, count + 1, 1, partitions).withColumnRenamed("id", name)


def _pick(choices: tuple[str, ...], index: Column) -> Column:
    return F.element_at(F.array(*map(F.lit, choices)), (index + 1).cast("int"))


def _money(cents: Column, precision: int) -> Column:
    return (cents.cast("decimal(12,0)") * F.lit(Decimal("0.01"))).cast(f"decimal({precision},2)")


@contextmanager
def _staging(directory: str | None) -> Iterator[str]:
    if directory is not None:
        yield directory.rstrip("/")
        return
    with tempfile.TemporaryDirectory(prefix="estore-") as temporary:
        yield Path(temporary).as_posix()
