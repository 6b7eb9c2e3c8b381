"""Large outputs of a refresh: written by executors, never through the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.nodes import BEFORE, FOREVER
from cq_engine.catalog import tables
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import ContinuousQuery, DataFile, VersionedTable
from cq_engine.context.services import Services
from cq_engine.context.staging import row_groups
from cq_engine.core.columns import Column
from cq_engine.delta.stored import HIT
from cq_engine.planner.delta_plan import DeltaPlan, Stage, is_key_count
from cq_engine.refresh.result_keys import duplicate_key, two_rows
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.settings import writer
from cq_engine.spark.sql import quote, run_sql
from cq_engine.storage.rows import change_columns

if TYPE_CHECKING:
    from cq_engine.refresh.binding import IntervalBinder
    from cq_engine.refresh.refresh import Interval, Outcome

__all__ = ["write_difference", "write_log", "write_outputs", "write_state"]

_LEVEL = StorageLevel.MEMORY_AND_DISK


def write_outputs(
    services: Services, query: ContinuousQuery, plan: DeltaPlan, binder: IntervalBinder, interval: Interval
) -> Outcome:
    """Runs the plan once, keeps its rows with the executors, and writes each output to files of its own."""
    spark = services.spark()
    tables_of = dict(query.states)
    attempt = services.catalog.attempt("refresh")
    kept: list[DataFrame] = []
    try:
        written: list[tuple[VersionedTable, list[DataFile]]] = []
        for stage in plan.stages:
            versions = _versions(services, stage, binder, kept)
            binder.bind_frame(stage.node, versions)
            if is_key_count(stage):
                _check_keys(query, stage, versions)
            table = tables_of[stage.stored.state.label]
            last = versions.where(f"_to = {FOREVER} AND _from > {BEFORE}")
            written.append(
                (table, write_state(attempt, services, table, last, interval.b, not stage.stored.keys))
            )
        log = run_sql(spark, plan.sql(binder, binder.attach), binder.relations)
        return write_difference(services, attempt, query, log, written, interval)
    except BaseException:
        attempt.abandon()
        raise
    finally:
        for frame in kept:
            frame.unpersist()


def write_difference(
    services: Services,
    attempt: Attempt,
    query: ContinuousQuery,
    rows: DataFrame,
    states: Sequence[tuple[VersionedTable, list[DataFile]]],
    interval: Interval,
) -> Outcome:
    """The delta log's rows (with `_duplicate`), evaluated once and written to files, and the files of the states.

    Raises ResultKeyError where two rows have one key.
    """
    from cq_engine.refresh.refresh import Outcome

    log = rows.persist(_LEVEL)
    try:
        summary = _summary(log)
        if summary["duplicates"]:
            raise duplicate_key(query, to_arrow(log.where("_duplicate").limit(10)))
        files = write_log(services, attempt, query, log, interval.a, interval.b) if summary["rows"] else []
    finally:
        log.unpersist()
    counts = (summary["inserted"], summary["deleted"], summary["updated"])
    return Outcome(files, states, counts, (summary["low"] or 0, summary["high"] or 0), attempt)


def _versions(services: Services, stage: Stage, binder: IntervalBinder, kept: list[DataFrame]) -> DataFrame:
    """The stage's versions; groups whose accumulators could not be carried on are read again."""
    spark = services.spark()
    versions = run_sql(spark, stage.sql(binder, binder.attach), binder.relations).persist(_LEVEL)
    kept.append(versions)
    if stage.hit is None:
        return versions
    right, wrong = versions.where(f"{HIT} = 0").drop(HIT), versions.where(f"{HIT} = 1")
    if wrong.isEmpty():
        return right
    if stage.stored.keys:
        binder.bind_frame(stage.hit, wrong.select(*stage.stored.keys).distinct())
    again = run_sql(spark, stage.repair_sql(binder, binder.attach), binder.relations)
    whole = right.unionByName(again).persist(_LEVEL)
    kept.append(whole)
    return whole


def _check_keys(query: ContinuousQuery, stage: Stage, versions: DataFrame) -> None:
    twice = to_arrow(versions.where(f"_n > 1 AND _from > {BEFORE}").limit(1))
    if twice.num_rows:
        raise two_rows(query, [twice.column(k)[0].as_py() for k in stage.stored.keys], None)


def _summary(log: DataFrame) -> dict[str, int]:
    def count(kind: str) -> SparkColumn:
        return f.count_if(f.col("_change_type") == kind)

    row = log.agg(
        f.count(f.lit(1)).alias("rows"),
        f.count_if(f.col("_duplicate")).alias("duplicates"),
        count("insert").alias("inserted"),
        count("delete").alias("deleted"),
        count("update_postimage").alias("updated"),
        f.min("_commit_version").alias("low"),
        f.max("_commit_version").alias("high"),
    ).collect()[0]
    return row.asDict()


def write_log(
    services: Services, attempt: Attempt, query: ContinuousQuery, log: DataFrame, a: int, b: int
) -> list[DataFile]:
    """The delta log's rows, clustered by version, with their commit timestamps as published."""
    reader = services.reader
    moments = services.catalog.timestamps(a + 1, b)
    clock = pa.table(
        {
            "_commit_version": pa.array(list(moments), pa.int64()),
            "_commit_timestamp": pa.array(list(moments.values()), pa.timestamp("us", tz="UTC")),
        }
    )
    times = reader.frame(
        clock, [Column("_commit_version", "bigint"), Column("_commit_timestamp", "timestamp")]
    )
    now = f.lit(services.clock.now()).cast("timestamp")
    shown = [c.name for c in change_columns(query.result)]
    rows = (
        log.withColumn("_refresh_time", now)
        .join(f.broadcast(times), "_commit_version", "left")
        .select(*(f.col(quote(n)) for n in shown), f.col("_commit_timestamp"))
        .repartitionByRange(4, "_commit_version", "_sequence")
        .sortWithinPartitions("_commit_version", "_sequence", f.col("_change_type").desc())
    )
    directory = attempt.directory(query.result, "log") + "/log"
    writer(rows).parquet(directory)
    return tables.data_files(directory, services.catalog.warehouse, ["_commit_version"])


def write_state(
    attempt: Attempt, services: Services, table: VersionedTable, part: DataFrame, version: int, scalar: bool
) -> list[DataFile]:
    """A state's new rows as change rows of `version`; groups with a count of 0 leave, unless the state is one row."""
    kind = (
        f.lit("update_postimage")
        if scalar
        else f.when(f.col("_n") == 0, "delete").otherwise("update_postimage")
    )
    rows = part.withColumn("_change_type", kind).withColumn("_commit_version", f.lit(version).cast("bigint"))
    shown = rows.select(*(f.col(quote(c.name)) for c in change_columns(table)))
    if table.identity:
        keys = [f.col(quote(k)) for k in table.identity]
        shown = shown.repartitionByRange(2, *keys).sortWithinPartitions(*keys)
    directory = attempt.directory(table, "log") + f"/{table.id}"
    writer(shown).options(**row_groups(services.limits)).parquet(directory)
    return tables.data_files(directory, services.catalog.warehouse, table.identity)
