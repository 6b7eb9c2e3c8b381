"""The driver as executor: the rows of a refresh are in Arrow.

A statement whose every part means to Arrow what it means to Spark is evaluated here (`cq_engine.evaluation`), if its
rows are few; Spark runs the others, prepared where they can be, and their rows come through Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from cq_engine.algebra.nodes import BEFORE, FROM, Given
from cq_engine.catalog.model import ContinuousQuery, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.core.values import python_rows
from cq_engine.delta.stored import HIT
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError
from cq_engine.planner.compiled import StoredAggregate
from cq_engine.planner.delta_plan import Statement
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.delta_rows import Summary, log_rows_in_order, state_rows, summarize
from cq_engine.refresh.executors import Changes, Executor, Fallback, FallbackError, size_guard
from cq_engine.refresh.interval import Interval
from cq_engine.refresh.plan_cache import CachedPlan
from cq_engine.refresh.relations import few_changes
from cq_engine.refresh.shedding import Shed, room_for, shed_rows
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.settings import few_rows_settings, small_settings
from cq_engine.spark.sql import run_sql
from cq_engine.storage.rows import change_columns, conform

__all__ = ["Driver"]


class Driver(Executor[pa.Table]):
    """Has rows in Arrow. `cached` is the delta plan whose statements it runs, if it runs one; those for many rows where
    `many`, and else those for as many as there are."""

    def __init__(
        self,
        services: Services,
        query: ContinuousQuery,
        interval: Interval,
        binder: IntervalBinder,
        cached: CachedPlan | None,
        many: bool = False,
    ) -> None:
        super().__init__(services, query, interval, binder)
        self._cached = cached
        self._many = many
        self._most = services.limits.refresh_rows

    def run(self, statement: Statement) -> pa.Table:
        rows = self._evaluate(statement)
        return self._check_size(self._run_by_spark(statement) if rows is None else rows)

    def _evaluate(self, statement: Statement) -> pa.Table | None:
        """The rows without Spark; None where only Spark gives them."""
        assert self._cached is not None
        most, binder = min(self.services.limits.arrow_rows, self._most), self.binder
        if self.query.functions or statement.name in self._cached.only_spark:
            return None
        try:
            rows = self._source_rows(statement, most)
            if rows is None:
                return None
            table = statement.evaluate(lambda leaf: rows[id(leaf)], most)
        except (UnsupportedError, pa.ArrowNotImplementedError):
            self._cached.only_spark.add(statement.name)
            return None
        except (TooLargeError, pa.ArrowInvalid) as error:
            if isinstance(error, TooLargeError):
                self._divide()
            self._cached.note_overflow(statement.name, self.services.limits.plan_misses)
            return None
        self._cached.overflows.pop(statement.name, None)
        binder.report.in_arrow.append(statement.name)
        return table

    def _source_rows(self, statement: Statement, most: int) -> dict[int, Rows] | None:
        """By the id of each leaf its rows; None where the driver cannot have them, or they are more than `most`."""
        rows: dict[int, Rows] = {}
        for leaf in statement.leaves:
            found = self.binder.source_rows(leaf)
            if found is None:
                if self.binder.rows.too_large:
                    self._divide()
                return None
            most -= found.rows.num_rows
            if most < 0:
                self._divide()
                return None
            rows[id(leaf)] = Rows.of(found.rows, found.columns, leaf.columns)
        return rows

    def _divide(self) -> None:
        """Gives up where a part of the interval may do with fewer rows."""
        if self.interval.divisible:
            raise FallbackError(Fallback.DIVIDE)

    def _run_by_spark(self, statement: Statement) -> pa.Table:
        assert self._cached is not None
        spark, binder, cached = self.services.spark(), self.binder, self._cached
        with size_guard():
            # What a function of the user means may change from one refresh to the next.
            lasting = not self.query.functions
            what = (statement.name, statement.text, binder, self._most + 1, self._many)
            rows = cached.run(spark, *what) if lasting else None
            if rows is not None:
                cached.misses = 0
                return rows
            if not cached.serves(self.interval.changed, self.interval.insert_only):
                cached.misses += 1
                raise FallbackError(Fallback.UNPREPARED)
            text = statement.text(binder, binder.attach)
            with self._settings(spark):
                return to_arrow(run_sql(spark, text, binder.relations).limit(self._most + 1))

    def _settings(self, spark: SparkSession) -> AbstractContextManager[None]:
        """How Spark plans a statement over the rows that are bound now."""
        if self.binder.scans:
            return nullcontext()
        few = self.binder.report.rows <= self.services.limits.compiled_rows
        return few_rows_settings(spark) if few else small_settings(spark)

    def load(self, frame: DataFrame) -> pa.Table:
        with size_guard():
            return self._collect(frame)

    def _collect(self, frame: DataFrame) -> pa.Table:
        return self._check_size(to_arrow(frame.limit(self._most + 1)))

    def bind(self, leaf: Given, rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
        self.binder.bind_rows(leaf, rows, columns)
        return rows

    def union(self, parts: Sequence[pa.Table]) -> pa.Table:
        schema = parts[0].schema
        return self._check_size(
            pa.concat_tables([p if p.schema.equals(schema) else p.cast(schema) for p in parts])
        )

    def split_hits(self, rows: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, pa.Table | None]:
        wrong = pc.equal(rows.column(HIT), 1)
        hits, rows = rows.filter(wrong), rows.filter(pc.invert(wrong)).drop_columns([HIT])
        if hits.num_rows == 0:
            return rows, None
        return rows, hits.select(keys).group_by(list(keys)).aggregate([]) if keys else hits

    def repeated_keys(self, rows: pa.Table, keys: Sequence[str]) -> Sequence[Sequence[object]]:
        many = pc.greater(rows.column("_n"), 1)
        if FROM in rows.column_names:
            many = pc.and_(many, pc.greater(rows.column(FROM), BEFORE))
        return [[row[k] for k in keys] for row in python_rows(rows.filter(many).slice(0, 1))]

    def state_changes(self, table: VersionedTable, stored: StoredAggregate, rows: pa.Table) -> Changes:
        return conform(state_rows(rows, stored, self.interval.b), change_columns(table))

    def shed(self, log: pa.Table) -> tuple[pa.Table, Shed]:
        assert self.query.relation is not None
        table, a = self.query.relation.storage, self.interval.a
        room = room_for(self.services.catalog, self.query)
        return shed_rows(log, table, room, lambda keys: self.services.reader.lookup(table, a, keys), a)

    def summarize(self, log: pa.Table) -> Summary:
        return summarize(log)

    def sample(self, log: pa.Table, *, duplicates: bool) -> pa.Table:
        chosen = log.filter(log.column("_duplicate")) if duplicates else log
        return chosen.slice(0, self.services.limits.error_rows)

    def log_changes(self, log: pa.Table) -> Changes:
        return log_rows_in_order(self.query.result, log, self.services)

    def relation_changes(self, relation: VersionedTable, log: Changes) -> Changes:
        return few_changes(self.services, self.query, relation, log, self.interval.a)

    def _check_size(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows > self._most:
            raise FallbackError(Fallback.TOO_LARGE)
        return rows
