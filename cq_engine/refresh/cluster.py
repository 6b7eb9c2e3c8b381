"""Spark's executors as executor: the rows of a refresh stay with them and are written to files, never through the
driver."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import reduce
from types import TracebackType

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cq_engine.algebra.nodes import BEFORE, FOREVER, FROM, TO, Given
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import DELETES, INSERT, UPSERT
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, DataFile, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.core.values import python_rows
from cq_engine.delta.stored import HIT
from cq_engine.planner.compiled import StoredAggregate
from cq_engine.planner.delta_plan import Statement
from cq_engine.refresh.delta_rows import UPDATED, Summary, log_rows_in_order
from cq_engine.refresh.executors import Changes, Executor, few_of
from cq_engine.refresh.relations import change_files, change_width, completed_files, few_changes
from cq_engine.refresh.shedding import Shed, room_for, shed_frame
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.jobs import LOST
from cq_engine.spark.persisting import release
from cq_engine.spark.settings import wide_settings
from cq_engine.spark.sql import fresh_name, quote, run_sql
from cq_engine.spark.widths import Size, numbering_parts, size_of_rows
from cq_engine.storage.data_files import write_files
from cq_engine.storage.rows import change_columns, conform
from cq_engine.storage.sizes import size_at

__all__ = ["Cluster", "write_log"]


class Cluster(Executor[DataFrame]):
    """Has rows as DataFrames. What is needed twice is kept with the executors until the block ends."""

    attempt: Attempt

    def __enter__(self) -> Cluster:
        self._kept: list[DataFrame] = []
        self._passing = ""
        self._rows = 0
        self._wide = ExitStack()
        size, limits = self._input_size(), self.services.limits
        width = self._wide.enter_context(wide_settings(self.services.spark(), size.bytes, limits))
        if max(size.rows, self.interval.rows) > limits.log_rows:
            self.parts = numbering_parts(width)
        try:
            self.attempt = self.services.catalog.attempt("refresh")
        except BaseException:
            self._wide.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
            for frame in self._kept:
                release(frame)
            if kind is None and self._passing:  # what failed has been given up with all its files
                with suppress(CQError, OSError):
                    self.services.catalog.store.delete_directory(self._passing)
        finally:
            with suppress(*LOST):
                self._wide.close()

    def _input_size(self) -> Size:
        """About what the statements read at most: the query's tables, and its states."""
        catalog, at = self.services.catalog, self.interval.b
        tables = [*self.binder.tables.values(), *self.binder.states.values()]
        return size_at(catalog, (each for each in tables if each.kind != "constants"), at)

    def run(self, statement: Statement) -> DataFrame:
        text = statement.text(self.binder, self.binder.attach)
        return self.load(run_sql(self.services.spark(), text, self.binder.relations))

    def load(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def bind(self, leaf: Given, rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
        """Few rows go to the driver: what they meet can be looked up by their keys. Others go into files, until the block ends. In either
        case Spark plans the next statement without the plan of this one, which it would put in wherever the rows are read: rows that
        are kept have theirs, too, and those of stages upon stages multiply."""
        few = self._few(rows, rows.count())
        if few is None:
            rows = self._from_files(leaf.name, rows, columns)
            self.binder.bind_frame(leaf, rows)
        else:
            self.binder.bind_rows(leaf, few, columns)
        return rows

    def _from_files(self, name: str, rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
        """The rows, read from files that a refresh has beside those of its log, and that go before it is committed."""
        store, limits = self.services.catalog.store, self.services.limits
        self._passing = self.attempt.directory(self.query.result, "snapshot")
        named = rows.toDF(*(c.name for c in columns))
        files = write_files(store, named, f"{self._passing}/{fresh_name(name)}", (), limits, durable=False)
        return self.services.reader.files(files, columns)

    def _few(self, rows: DataFrame, count: int) -> pa.Table | None:
        """So many rows in Arrow, where the driver can have them."""
        return few_of(rows) if count <= self.services.limits.log_rows else None

    def union(self, parts: Sequence[DataFrame]) -> DataFrame:
        return reduce(DataFrame.unionByName, parts)

    def split_hits(self, rows: DataFrame, keys: Sequence[str]) -> tuple[DataFrame, DataFrame | None]:
        right, wrong = rows.where(f"{HIT} = 0").drop(HIT), rows.where(f"{HIT} = 1")
        if wrong.isEmpty():
            return right, None
        return right, wrong.select(*keys).distinct() if keys else wrong

    def repeated_keys(self, rows: DataFrame, keys: Sequence[str]) -> Sequence[Sequence[object]]:
        many = rows.where("_n > 1")
        if FROM in rows.columns:
            many = many.where(f"{FROM} > {BEFORE}")
        return [[row[k] for k in keys] for row in python_rows(to_arrow(many.limit(1)))]

    def state_changes(self, table: VersionedTable, stored: StoredAggregate, rows: DataFrame) -> Changes:
        if FROM in rows.columns:
            rows = rows.where(f"{TO} = {FOREVER} AND {FROM} > {BEFORE}")
        kind = f.lit("update_postimage")
        if stored.keys:
            kind = f.when(f.col("_n") == 0, "delete").otherwise(kind)
        version = f.lit(self.interval.b).cast("bigint")
        rows = rows.withColumn("_change_type", kind).withColumn("_commit_version", version)
        columns = change_columns(table)
        shown = rows.select(*(f.col(quote(c.name)) for c in columns))
        count = shown.count()
        few = self._few(shown, count)
        if few is not None:
            return conform(few, columns)
        if table.identity:
            keys = [f.col(quote(k)) for k in table.identity]
            width = change_width(self.services, size_of_rows(count, columns))
            shown = shown.repartitionByRange(width, *keys).sortWithinPartitions(*keys)
        directory = self.attempt.directory(table, "log") + f"/{table.id}"
        store, limits = self.services.catalog.store, self.services.limits
        return write_files(store, shown, directory, table.identity, limits, small_groups=True)

    def shed(self, log: DataFrame) -> tuple[DataFrame, Shed]:
        assert self.query.relation is not None
        table, a = self.query.relation.storage, self.interval.a
        room = room_for(self.services.catalog, self.query)
        kept, counted = shed_frame(log, table, self.services.reader.image(table, a), room, a)
        kept = self.load(kept)
        return kept, counted(kept)

    def summarize(self, log: DataFrame) -> Summary:
        def count(*kinds: str) -> SparkColumn:
            return f.count_if(f.col("_change_type").isin(*kinds))

        row = log.agg(
            f.count(f.lit(1)),
            count(INSERT),
            count(*DELETES),
            count(*UPDATED),
            f.count_if(f.col("_duplicate")),
            f.coalesce(f.min("_commit_version"), f.lit(0)),
            f.coalesce(f.max("_commit_version"), f.lit(0)),
            count(UPSERT),
        ).collect()[0]
        self._rows = int(row[0])
        return Summary(*row)

    def sample(self, log: DataFrame, *, duplicates: bool) -> pa.Table:
        return to_arrow(
            (log.where("_duplicate") if duplicates else log).limit(self.services.limits.error_rows)
        )

    def log_changes(self, log: DataFrame) -> Changes:
        few = self._few(log, self._rows)
        if few is not None:
            return log_rows_in_order(self.query.result, few, self.services, numbered=self.parts == 1)
        a, b = self.interval.a, self.interval.b
        return write_log(self.services, self.attempt, self.query, log, a, b, rows=self._rows)

    def relation_changes(self, relation: VersionedTable, log: Changes) -> Changes:
        if isinstance(log, pa.Table):
            return few_changes(self.services, self.query, relation, log, self.interval.a)
        if self.query.verdict == PARTIAL:
            return completed_files(self.services, relation, log, self.interval.a, self.attempt)
        return change_files(self.services, relation, log, self.interval.a, self.attempt)


def write_log(
    services: Services,
    attempt: Attempt,
    query: ContinuousQuery,
    log: DataFrame,
    a: int,
    b: int,
    *,
    rows: int,
) -> list[DataFile]:
    """The delta log's rows, so many, clustered by version, with their commit timestamps as published."""
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
    columns = change_columns(query.result)
    shown = [c.name for c in columns]
    width = change_width(services, size_of_rows(rows, columns))
    ordered = (
        log.withColumn("_refresh_time", now)
        .join(f.broadcast(times), "_commit_version", "left")
        .select(*(f.col(quote(n)) for n in shown), f.col("_commit_timestamp"))
        .repartitionByRange(width, "_commit_version", "_sequence")
        .sortWithinPartitions("_commit_version", "_sequence", f.col("_change_type").desc())
    )
    directory = f"{attempt.directory(query.result, 'log')}/{fresh_name('log')}"
    return write_files(services.catalog.store, ordered, directory, ["_commit_version"], services.limits)
