"""The run of a refresh's plan: the same steps whoever computes the rows, the driver (`driver`) or Spark's executors
(`cluster`).

A delta plan's stages give the versions of groups of stored aggregates, the log statement gives the delta's rows. A
recomputation gives both from scratch. What repairs groups, counts rows and checks keys stands here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from cq_engine.algebra.nodes import FROM, TO, Given
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.change_rows import EVENTS
from cq_engine.catalog.graph import sheds
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, DataFile, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core.columns import Column
from cq_engine.planner.compiled import KEY_STATE, StoredAggregate
from cq_engine.planner.delta_plan import DeltaPlan, Stage, Statement, is_key_count
from cq_engine.planner.partial import PartialPlan
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.delta_rows import Summary
from cq_engine.refresh.interval import Interval
from cq_engine.refresh.partial import PartialBinder
from cq_engine.refresh.recompute import Recomputation, changed_state, difference, result_at
from cq_engine.refresh.result_keys import duplicate_key_error, two_rows_error
from cq_engine.refresh.shedding import Shed
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.sql import SPARK_ERRORS, run_sql

__all__ = ["Changes", "Executor", "Fallback", "FallbackError", "Outcome", "execute", "few_of", "size_guard"]

Changes: TypeAlias = pa.Table | Sequence[DataFile]
"""Change rows in memory, or in files."""
_TOO_LARGE = "spark.driver.maxResultSize"
"""Named by the error of a job whose rows are more than the driver takes."""
Rows = TypeVar("Rows")
"""How an executor has rows between statements."""


class Fallback(Enum):
    """Why an executor gave up, so that another way is taken."""

    UNPREPARED = "the shared plan has no prepared statement for it"
    TOO_LARGE = "its rows are too many for the driver"
    DIVIDE = "its rows are too many for the driver, but not those of a part of its commits"


class FallbackError(Exception):
    """Ends a run that another way takes over."""

    def __init__(self, reason: Fallback) -> None:
        super().__init__(reason.value)
        self.reason = reason


@contextmanager
def size_guard() -> Iterator[None]:
    """Falls back where Spark says that rows are more than the driver takes."""
    try:
        yield
    except SPARK_ERRORS as error:
        if _TOO_LARGE not in str(error):
            raise
        raise FallbackError(Fallback.TOO_LARGE) from error


def few_of(rows: DataFrame) -> pa.Table | None:
    """Rows of which there are few in Arrow, where the driver can have them: wide ones may be more than Spark sends it."""
    with suppress(FallbackError), size_guard():
        return to_arrow(rows)
    return None


@dataclass(frozen=True)
class Outcome:
    """What a refresh writes: change rows of the delta log, of each changed state, and of the result as a table where
    other queries read it."""

    log: Changes
    states: Sequence[tuple[VersionedTable, Changes]]
    summary: Summary
    relation: Changes = ()
    attempt: Attempt | None = None

    def relation_kinds(self, query: ContinuousQuery) -> frozenset[str]:
        """The kinds of changes in the files of `relation`: the log's, but where it was partial and rows were completed, any."""
        return EVENTS if query.verdict == PARTIAL else self.summary.kinds


class Executor(ABC, Generic[Rows]):
    """Computes rows over one interval, and makes change rows of them. Used as a context: files that it wrote are
    garbage where the block fails."""

    attempt: Attempt | None = None
    """What its files are written under."""
    parts = 1
    """In how many parts the rows of a version are numbered (`delta.numbering`)."""

    def __init__(
        self, services: Services, query: ContinuousQuery, interval: Interval, binder: IntervalBinder
    ) -> None:
        self.services = services
        self.query = query
        self.interval = interval
        self.binder = binder

    def __enter__(self) -> Executor[Rows]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self.attempt is not None:
            self.attempt.abandon()

    @abstractmethod
    def run(self, statement: Statement) -> Rows:
        """The rows of a delta plan's statement, computed once. Raises FallbackError."""

    @abstractmethod
    def load(self, frame: DataFrame) -> Rows:
        """The rows of a DataFrame, computed once. Raises FallbackError."""

    @abstractmethod
    def bind(self, leaf: Given, rows: Rows, columns: Sequence[Column]) -> Rows:
        """Makes rows the input `leaf` of later statements, and gives them as they are read from then on."""

    @abstractmethod
    def union(self, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, in the types of the first."""

    @abstractmethod
    def split_hits(self, rows: Rows, keys: Sequence[str]) -> tuple[Rows, Rows | None]:
        """The rows whose mark HIT is 0, and the distinct keys of the others; None where there are no others."""

    @abstractmethod
    def repeated_keys(self, rows: Rows, keys: Sequence[str]) -> Sequence[Sequence[object]]:
        """A declared key that two result rows have, if any: of versions, at a commit of the interval."""

    @abstractmethod
    def state_changes(self, table: VersionedTable, stored: StoredAggregate, rows: Rows) -> Changes:
        """Change rows of a state: of a group's versions the last one, a delete where its count is 0."""

    @abstractmethod
    def shed(self, log: Rows) -> tuple[Rows, Shed]:
        """A delta's rows without those that are left out of the result (`shedding`), and how many those are."""

    @abstractmethod
    def summarize(self, log: Rows) -> Summary:
        """The numbers of a delta's rows."""

    @abstractmethod
    def sample(self, log: Rows, *, duplicates: bool) -> pa.Table:
        """Some of a delta's rows; `duplicates`: of those with one key."""

    @abstractmethod
    def log_changes(self, log: Rows) -> Changes:
        """A delta's rows as change rows of the delta log."""

    @abstractmethod
    def relation_changes(self, relation: VersionedTable, log: Changes) -> Changes:
        """Change rows of the result as a table, from those of the log."""


def execute(plan: DeltaPlan | Recomputation | PartialPlan, executor: Executor[Rows]) -> Outcome | Fallback:
    """What the plan gives. Raises ResultKeyError where two rows of the result have one key; PySpark's exceptions pass."""
    try:
        with executor:
            if isinstance(plan, Recomputation):
                outcome = _recompute(plan, executor)
            elif isinstance(plan, PartialPlan):
                outcome = _run_partial(plan, executor)
            else:
                outcome = _run_stages(plan, executor)
            relation = executor.query.relation
            if relation is None or not outcome.summary.rows:
                return outcome
            return replace(outcome, relation=executor.relation_changes(relation.storage, outcome.log))
    except FallbackError as error:
        return error.reason


def _run_stages(plan: DeltaPlan, executor: Executor[Rows]) -> Outcome:
    tables, report = dict(executor.query.states), executor.binder.report
    states: list[tuple[VersionedTable, Changes]] = []
    repeated: list[Sequence[object]] = []
    for stage in plan.stages:
        stored, label = stage.stored, stage.stored.state.label
        with report.step(f"state {label}"):
            versions = _versions(stage, executor)
            columns = (*stored.columns, Column(FROM, "bigint"), Column(TO, "bigint"))
            versions = executor.bind(stage.node, versions, columns)
            if is_key_count(stage):
                repeated += executor.repeated_keys(versions, stored.keys)
            states.append((tables[label], executor.state_changes(tables[label], stored, versions)))
    with report.step("delta"):
        return _outcome(executor, executor.run(plan.numbered_in(executor.parts)), states, repeated)


def _versions(stage: Stage, executor: Executor[Rows]) -> Rows:
    """The stage's versions; groups whose accumulators could not be carried on are read again."""
    stored = stage.stored
    rows = executor.run(stage.statement)
    if stage.hit is None:
        return rows
    rows, hits = executor.split_hits(rows, stored.keys)
    if hits is None:
        return rows
    if stored.keys:
        executor.bind(stage.hit, hits, stored.columns[: len(stored.keys)])
    return executor.union([rows, executor.run(stage.repair_statement)])


def _recompute(plan: Recomputation, executor: Executor[Rows]) -> Outcome:
    services, compiled, interval = executor.services, plan.compiled, executor.interval
    tables, report = dict(executor.query.states), executor.binder.report
    states: list[tuple[VersionedTable, Changes]] = []
    repeated: list[Sequence[object]] = []
    for stored in compiled.states:
        label = stored.state.label
        with report.step(f"state {label}"):
            frame = changed_state(services, compiled, stored, tables[label], interval)
            rows = executor.load(frame)
            if label == KEY_STATE:
                repeated += executor.repeated_keys(rows, stored.keys)
            states.append((tables[label], executor.state_changes(tables[label], stored, rows)))
    with report.step("delta"):
        parts = []
        for before, after, version in plan.steps:
            old, new = (result_at(services, compiled, each) for each in (before, after))
            frame = difference(services, old, new, compiled.key, version, executor.parts)
            parts.append(executor.load(frame))
        return _outcome(executor, executor.union(parts), states, repeated)


def _run_partial(plan: PartialPlan, executor: Executor[Rows]) -> Outcome:
    binder = PartialBinder(executor.binder, plan, executor.interval.b)
    with executor.binder.report.step("delta"):
        statement = plan.sql(binder, executor.binder.attach, executor.parts)
        frame = run_sql(executor.services.spark(), statement, executor.binder.relations)
        return _outcome(executor, executor.load(frame), [], [])


def _outcome(
    executor: Executor[Rows],
    log: Rows,
    states: Sequence[tuple[VersionedTable, Changes]],
    repeated: Sequence[Sequence[object]],
) -> Outcome:
    query = executor.query
    if repeated:
        raise two_rows_error(query, repeated[0], executor.sample(log, duplicates=False))
    if sheds(query):
        log, executor.binder.report.shed = executor.shed(log)
    summary = executor.summarize(log)
    if summary.duplicates:
        raise duplicate_key_error(query, executor.sample(log, duplicates=True))
    changes = executor.log_changes(log) if summary.rows else ()
    return Outcome(changes, states, summary, attempt=executor.attempt)
