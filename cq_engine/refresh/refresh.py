"""A refresh: the delta of (a, b] computed by Spark, made durable with the new position in one catalog transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cq_engine.algebra.nodes import FROM, TO
from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import ContinuousQuery, DataFile, QueryStatus, RefreshRecord, VersionedTable
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError, RefreshError
from cq_engine.delta.stored import HIT
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.delta_plan import Stage, is_key_count
from cq_engine.planner.forms import Decision
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.bulk_delta import write_outputs
from cq_engine.refresh.delta_rows import bounds_of, counts_of, log_rows_in_order, state_rows
from cq_engine.refresh.forms import decide, relied_on
from cq_engine.refresh.plan_cache import CachedPlan, PlanCache, Text, UnpreparedError
from cq_engine.refresh.recompute import recompute
from cq_engine.refresh.recomputed import recomputed_outcome
from cq_engine.refresh.relations import change_files, change_rows, write_changes
from cq_engine.refresh.report import Report
from cq_engine.refresh.result_keys import doubled, duplicate_key, two_rows
from cq_engine.spark.arrow_io import to_arrow
from cq_engine.spark.settings import small_settings
from cq_engine.spark.sql import SPARK_ERRORS, run_sql, translate_spark_error
from cq_engine.storage.rows import change_columns, conform

__all__ = ["Interval", "Outcome", "Refresh", "Refresher"]

_TOO_LARGE = "spark.driver.maxResultSize"
"""Named by the error of a job whose rows are more than the driver takes."""


@dataclass(frozen=True)
class Refresh:
    """What a refresh did. `plan` is the verdict it ran under and the form of its delta; `seconds` is wall-clock time."""

    query: str
    from_version: int
    to_version: int
    inserted: int = 0
    deleted: int = 0
    updated: int = 0
    plan: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Interval:
    """The commits (a, b] of a refresh and, by source table, what kinds of change they hold."""

    a: int
    b: int
    kinds: Mapping[str, frozenset[str]]
    rows: int

    @property
    def changed(self) -> frozenset[str]:
        return frozenset(self.kinds)

    @property
    def insert_only(self) -> bool:
        return all(kinds <= {"INSERT"} for kinds in self.kinds.values())


@dataclass(frozen=True)
class Outcome:
    """What a refresh writes: Arrow rows, or files written by executors, for the log and for each changed state."""

    log: pa.Table | Sequence[DataFile]
    states: Sequence[tuple[VersionedTable, pa.Table | Sequence[DataFile]]]
    counts: tuple[int, int, int]
    versions: tuple[int, int] = (0, 0)
    attempt: Attempt | None = None
    relation: pa.Table | Sequence[DataFile] = ()
    """Change rows of the result as a table, where other queries read it."""

    @property
    def kinds(self) -> frozenset[str]:
        """Which of INSERT, DELETE, UPDATE the log's rows are."""
        return frozenset(k for k, count in zip(("INSERT", "DELETE", "UPDATE"), self.counts) if count)


class _Statements:
    """Runs the statements of a refresh: prepared ones where there are any, else new ones.

    `lasting` is False where what a statement means may change from one refresh to the next.
    """

    def __init__(
        self,
        services: Services,
        kept: CachedPlan,
        binder: IntervalBinder,
        interval: Interval,
        *,
        lasting: bool,
    ) -> None:
        self.services = services
        self.kept = kept
        self.binder = binder
        self.exact = kept.serves(interval.changed, interval.insert_only)
        self.lasting = lasting

    def __call__(self, name: str, text: Text) -> pa.Table | None:
        """The statement's rows, or None where they are too many for the driver."""
        try:
            rows = self._rows(name, text)
        except SPARK_ERRORS as error:
            if _TOO_LARGE not in str(error):
                raise
            return None
        return rows if rows.num_rows <= self.services.limits.refresh_rows else None

    def _rows(self, name: str, text: Text) -> pa.Table:
        spark, binder, limit = self.services.spark(), self.binder, self.services.limits.refresh_rows + 1
        rows = self.kept.run(spark, name, text, binder, limit) if self.lasting else None
        if rows is None and not self.exact:
            self.kept.misses += 1
            raise UnpreparedError
        if rows is not None:
            self.kept.misses = 0
        if rows is None:
            frame = run_sql(spark, text(binder, binder.attach), binder.relations)
            rows = to_arrow(frame.limit(limit))
        return rows


class Refresher:
    """Runs refreshes. One object serves all queries; two refreshes of one query must not run at once."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.plans = PlanCache(services.limits)
        self.reports: dict[str, Report] = {}
        """By query what its last refresh did."""

    def interval(self, query: ContinuousQuery, compiled: Compiled, upto: int | None = None) -> Interval:
        """What is to be processed: from the query's position to the newest commit, or to `upto`."""
        catalog = self.services.catalog
        a = catalog.status(query.name).position
        b = catalog.newest_version if upto is None else min(upto, catalog.newest_version)
        kinds: dict[str, frozenset[str]] = {}
        rows = 0
        for name, table in compiled.sources.items():
            sets = (
                [s for s in catalog.layout(table.storage.id, a).changes if s.high > a and s.low <= b]
                if b > a
                else []
            )
            if sets:
                kinds[name] = frozenset().union(*(s.kinds for s in sets))
                rows += sum(s.rows for s in sets)
        return Interval(a, b, kinds, rows)

    def refresh(self, query: ContinuousQuery, compiled: Compiled, upto: int | None = None) -> Refresh:
        """Processes everything committed. Raises RefreshError; the query's position is then where it was."""
        started = time.monotonic()
        interval = self.interval(query, compiled, upto)
        if interval.b <= interval.a:
            return Refresh(query.name, interval.a, interval.a, plan=query.verdict)
        faults.point("refresh.begin")
        self.reports[query.name] = Report()
        outcome = self._computed(query, compiled, interval)
        faults.point("refresh.computed")
        report = self.reports.setdefault(query.name, Report())
        plan = f"{query.verdict}, {report.decision}" if outcome and compiled.node else query.verdict
        so_far = time.monotonic() - started
        counts = outcome.counts if outcome else (0, 0, 0)
        result = Refresh(query.name, interval.a, interval.b, *counts, plan, so_far)
        with report.step("write"):
            self._write(query, interval, outcome, result)
        faults.point("refresh.after_catalog")
        return replace(result, seconds=time.monotonic() - started)

    def tried(self, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> None:
        """Computes a refresh and writes nothing. Raises RefreshError where it fails."""
        outcome = self._computed(query, compiled, interval)
        if outcome is not None and outcome.attempt is not None:
            outcome.attempt.abandon()

    def _computed(self, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> Outcome | None:
        try:
            return self._related(query, interval, self._compute(query, compiled, interval))
        except SPARK_ERRORS as error:
            raise self._failed(query, interval, translate_spark_error(error)) from error
        except CQError as error:
            raise self._failed(query, interval, error) from error

    def _failed(self, query: ContinuousQuery, interval: Interval, error: CQError) -> RefreshError:
        if isinstance(error, RefreshError):
            return error
        return RefreshError(
            f"the refresh of {query.name} over versions {interval.a + 1} to {interval.b} failed: {error.message}",
            detail=error.detail,
            hint=error.hint or f"correct the data and ALTER CONTINUOUS QUERY {query.name} RESUME",
        )

    # ------------------------------------------------------------ computing

    def _compute(self, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> Outcome | None:
        if not interval.kinds:
            return None
        if compiled.node is None:
            return self._outcome(query, recompute(self.services, query, compiled, interval), ())
        what = (compiled, interval.changed, interval.insert_only, query.session)
        small = interval.rows <= self.services.limits.refresh_changes
        decision = decide(self.services, query, compiled, interval)
        prepared = small and not query.functions
        kept = self.plans.plan(*what, at_once=decision.undo) if prepared else self.plans.exact_plan(*what)
        if kept is None:
            return None
        if decision.form == "recompute":
            with self._report(query, decision).step("recompute"):
                return recomputed_outcome(self.services, query, compiled, interval)
        if small:
            with small_settings(self.services.spark()):
                try:
                    outcome = self._small(query, compiled, kept, interval, decision)
                except UnpreparedError:
                    kept = self.plans.exact_plan(*what)
                    if kept is None:
                        return None
                    outcome = self._small(query, compiled, kept, interval, decision)
            if outcome is not None:
                return outcome
        exact = self.plans.exact_plan(*what)
        if exact is None:
            return None
        binder = self.binder(query, compiled, interval, self._report(query, decision))
        with binder.report.step("delta and states, written by executors"):
            return write_outputs(self.services, query, exact.plan, binder, interval)

    def _report(self, query: ContinuousQuery, decision: Decision) -> Report:
        report = self.reports[query.name] = Report(decision)
        return report

    def binder(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval, report: Report
    ) -> IntervalBinder:
        """The relations of a delta plan of this query over this interval."""
        return IntervalBinder(
            self.services.reader,
            {name: table.storage for name, table in compiled.sources.items()},
            dict(query.states),
            interval.a,
            interval.b,
            query.mode == "COMPRESSED",
            relied_on(self.services, compiled),
            report,
            compiled.read,
        )

    def _small(
        self,
        query: ContinuousQuery,
        compiled: Compiled,
        kept: CachedPlan,
        interval: Interval,
        decision: Decision,
    ) -> Outcome | None:
        """The outputs through Arrow, or None where they are too many for the driver."""
        binder = self.binder(query, compiled, interval, self._report(query, decision))
        tables = dict(query.states)
        states: list[tuple[VersionedTable, pa.Table]] = []
        twice: list[Sequence[object]] = []
        run = _Statements(self.services, kept, binder, interval, lasting=not query.functions)
        for stage in kept.plan.stages:
            with binder.report.step(f"state {stage.stored.state.label}"):
                rows = self._stage_rows(stage, run)
            if rows is None:
                return None
            columns = (*stage.stored.columns, Column(FROM, "bigint"), Column(TO, "bigint"))
            binder.bind_rows(stage.node, rows, columns)
            if is_key_count(stage):
                twice += doubled(rows, stage.stored)
            states.append((tables[stage.stored.state.label], state_rows(rows, stage.stored, interval.b)))
        with binder.report.step("delta"):
            log = run("log", kept.plan.sql)
        if log is None:
            return None
        if twice:
            raise two_rows(query, twice[0], log)
        return self._outcome(query, log, states)

    def _stage_rows(self, stage: Stage, run: _Statements) -> pa.Table | None:
        """The stage's versions; groups whose accumulators could not be carried on are read again."""
        label = stage.stored.state.label
        rows = run(f"stage {label}", stage.sql)
        if rows is None or stage.hit is None:
            return rows
        wrong = pc.equal(rows.column(HIT), 1)
        hit, rows = rows.filter(wrong), rows.filter(pc.invert(wrong)).drop_columns([HIT])
        if hit.num_rows == 0:
            return rows
        if stage.stored.keys:
            keys = stage.stored.columns[: len(stage.stored.keys)]
            groups = hit.select(stage.stored.keys).group_by(list(stage.stored.keys)).aggregate([])
            run.binder.bind_rows(stage.hit, groups, keys)
        again = run(f"repair {label}", stage.repair_sql)
        return None if again is None else pa.concat_tables([rows, again.cast(rows.schema)])

    def _outcome(
        self, query: ContinuousQuery, log: pa.Table, states: Sequence[tuple[VersionedTable, pa.Table]]
    ) -> Outcome:
        if log.num_rows and pc.any(log.column("_duplicate")).as_py():
            raise duplicate_key(query, log.filter(log.column("_duplicate")))
        rows = log_rows_in_order(query.result, log, self.services)
        return Outcome(rows, [(t, r) for t, r in states if r.num_rows], counts_of(rows), bounds_of(rows))

    def _related(self, query: ContinuousQuery, interval: Interval, outcome: Outcome | None) -> Outcome | None:
        """The outcome with the change rows for the queries that read this one."""
        if outcome is None or query.relation is None or not outcome.kinds:
            return outcome
        table = query.relation.storage
        if isinstance(outcome.log, pa.Table):
            return replace(outcome, relation=change_rows(self.services, table, outcome.log, interval.a))
        assert outcome.attempt is not None
        try:
            files = change_files(self.services, table, outcome.log, interval.a, outcome.attempt)
        except BaseException:
            outcome.attempt.abandon()
            raise
        return replace(outcome, relation=files)

    # ------------------------------------------------------------ writing

    def _write(
        self, query: ContinuousQuery, interval: Interval, outcome: Outcome | None, result: Refresh
    ) -> None:
        catalog = self.services.catalog
        now = self.services.clock.now()
        with catalog.lock, catalog.write(outcome.attempt if outcome else None) as unit:
            if outcome is not None:
                low, high = outcome.versions
                if isinstance(outcome.log, pa.Table):
                    unit.add_changes(query.result, low, high, outcome.log)
                elif outcome.log:
                    unit.add_change_files(query.result, low, high, outcome.log, outcome.kinds)
                if query.relation is not None:
                    write_changes(unit, query.relation.storage, low, high, outcome.relation, outcome.kinds)
                for table, rows in outcome.states:
                    if isinstance(rows, pa.Table):
                        unit.add_changes(table, interval.b, interval.b, conform(rows, change_columns(table)))
                    else:
                        kinds = frozenset({"INSERT", "DELETE", "UPDATE"})
                        unit.add_change_files(table, interval.b, interval.b, rows, kinds)
            unit.set_status(query.name, QueryStatus(interval.b, catalog.status(query.name).state, "", now))
            unit.add_refresh(
                RefreshRecord(
                    query.name,
                    interval.a,
                    interval.b,
                    result.inserted,
                    result.deleted,
                    result.updated,
                    result.plan,
                    result.seconds,
                    now,
                )
            )
            faults.point("refresh.before_catalog")
