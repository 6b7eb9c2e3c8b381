"""A refresh: a plan for what changed is run by an executor, and what it gives is written with the new position in one
catalog transaction.

1. *What changed*: `interval.pending_interval`, from the catalog, without reading rows.
2. *Plan*: a delta plan (`plan_cache`), or a recomputation (`recompute`); `choosing` says which, and who runs it.
3. *Run*: `executors.execute`, by the driver (`driver`) where rows are few, else by the cluster (`cluster`). Where one
   gives up, the next way is taken.
4. *Write*: delta log, states, position and a record of the refresh.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from cq_engine.catalog.change_rows import EVENTS
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, QueryStatus, RefreshRecord
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import CQError, DiskError, RefreshError
from cq_engine.core.keeping import keep
from cq_engine.grammar import OnCommit
from cq_engine.planner.compiled import Compiled
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.choice import Choice, NoChange, Place
from cq_engine.refresh.choosing import Chooser
from cq_engine.refresh.cluster import Cluster
from cq_engine.refresh.driver import Driver
from cq_engine.refresh.driver_rows import DriverRows
from cq_engine.refresh.executors import Fallback, Outcome, execute
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.interval import (
    Interval,
    cut_interval,
    decide,
    first_slice,
    foreign_keys,
    interval_between,
    may_cut,
    pending_interval,
)
from cq_engine.refresh.mesh import Meshes, MeshRun, QueryMesh
from cq_engine.refresh.plan_cache import CachedPlan, PlanCache
from cq_engine.refresh.prefetch import Part, Prefetch
from cq_engine.refresh.relations import write_changes
from cq_engine.refresh.report import Report
from cq_engine.refresh.staged import stage_large
from cq_engine.refresh.sweeps import swept
from cq_engine.spark.failures import plain_errors

__all__ = ["Refresh", "Refresher"]

_UNFORESEEN = "this is a fault of cq-engine: report it; ALTER CONTINUOUS QUERY … RESUME tries again"

_DIVISIONS = 3
"""How often a part of a mesh join is divided before executors have what is left: each attempt is a scan."""


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

    def then(self, later: Refresh) -> Refresh:
        """Both as one, where `later` went on from where this one ended."""
        return replace(
            later,
            from_version=self.from_version,
            inserted=self.inserted + later.inserted,
            deleted=self.deleted + later.deleted,
            updated=self.updated + later.updated,
            plan=self.plan if later.from_version == later.to_version else later.plan,
            seconds=self.seconds + later.seconds,
        )


class Refresher:
    """Runs refreshes. One object serves all queries; two refreshes of one query must not run at once."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.plans = PlanCache(services.limits)
        self.chooser = Chooser(services, self.plans)
        self.meshes = Meshes(services.reader)
        self._prefetches: defaultdict[str, Prefetch] = defaultdict(Prefetch)
        """By query what is gathered before its refresh begins."""
        self.reports: dict[str, Report] = {}
        """By query what its last refresh did."""

    def forget_gone(self, compiled: Collection[Compiled]) -> None:
        """Takes what is kept of queries that the catalog does not have any more out of memory; `compiled` are the definitions
        in use."""
        state = self.services.catalog.state
        there = {query.name for query in state.queries.values()}
        there |= {group.query.name for group in state.groups.values()}
        keep(self.reports, there)
        for each in keep(self._prefetches, there):
            each.clear()
        self.meshes.forget_gone(there)
        self.plans.keep(compiled)

    def interval(self, query: ContinuousQuery, compiled: Compiled, upto: int | None = None) -> Interval:
        """What is to be processed: from the query's position to the newest commit, or to `upto`."""
        return pending_interval(self.services.catalog, query, compiled, upto)

    def refresh(self, query: ContinuousQuery, compiled: Compiled, upto: int | None = None) -> Refresh:
        """All `steps` as one. Raises what they raise."""
        at = self.services.catalog.status(query.name).position
        whole = Refresh(query.name, at, at, plan=query.verdict)
        for step in self.steps(query, compiled, upto):
            whole = whole.then(step)
        return whole

    def steps(
        self, query: ContinuousQuery, compiled: Compiled, upto: int | None = None
    ) -> Generator[Refresh, None, None]:
        """Processes everything committed, a large interval of a transactional query in slices of whole commits, one of a mesh
        join in parts that its window holds: each is a refresh by itself, and is there when a later one fails. Raises
        RefreshError, DiskError where it can be tried again as it is; the query's position is then where it was, or after the
        last slice. No step begins before it is asked for."""
        mesh = self.meshes.of(query)
        interval = self.interval(query, compiled, upto)
        if mesh is None or query.mode == "COMPRESSED":
            self._prefetches.pop(query.name, Prefetch()).clear()
            return self._slices(query, compiled, interval)
        return self._parts(query, compiled, mesh, interval.b)

    def _parts(
        self, query: ContinuousQuery, compiled: Compiled, mesh: QueryMesh, end: int
    ) -> Generator[Refresh, None, None]:
        """Part by part, each as many commits as the window of the mesh holds, fewer where the driver cannot have the rows of one; the next
        ones gather their rows meanwhile."""
        catalog, prefetch = self.services.catalog, self._prefetches[query.name]
        scans: list[MeshRun] = []
        usual = most = self.services.limits.refresh_changes
        divided = 0

        def plan(upto: int, after: int) -> Part | None:
            following = interval_between(catalog, compiled, after, upto)
            return self._prefetched_part(query, compiled, following, min(most, mesh.changes))

        def see(after: int) -> None:
            """What is committed while the scan goes on enters it, too, if the query follows commits."""
            upto = frontier(catalog, query.sources) if isinstance(query.when, OnCommit) else end
            prefetch.fill(query, compiled, after, self.services.limits.mesh_prefetch, partial(plan, upto))

        interval = self.interval(query, compiled, end)
        try:
            while interval.a < end:
                with self.services.foreground.busy():
                    part = prefetch.take(query, compiled, interval.a, end)
                    if part is not None:
                        interval = part.interval
                    else:
                        divisible = divided < _DIVISIONS
                        cut = (
                            partial(first_slice, self.services)
                            if divisible
                            else partial(cut_interval, catalog)
                        )
                        interval = cut(query, compiled, interval, min(most, mesh.changes))
                    with mesh.told(partial(see, interval.b)):
                        see(interval.b)
                        done = self._refresh(query, compiled, interval, part)
                if done is None:
                    prefetch.clear()
                    divided += 1  # where it does not help, as many rows match few keys as many
                    most = interval.rows // 2 if divided < _DIVISIONS else usual
                else:
                    if query.name in self.reports:  # another process may have dropped it
                        scans += self.reports[query.name].meshes
                        self.reports[query.name].meshes = list(scans)
                    yield done
                interval = self.interval(query, compiled, end)
        except BaseException:  # GeneratorExit, too: nobody asks for the rest
            prefetch.clear()
            raise

    def _prefetched_part(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval, most: int
    ) -> Part | None:
        """The first commits of an interval, with about `most` change rows, whose rows are being gathered; None where nothing is to be gathered."""
        if interval.b <= interval.a or not interval.kinds:
            return None
        interval = cut_interval(self.services.catalog, query, compiled, interval, most)
        choice = self.chooser.choose(query, compiled, interval)
        if not isinstance(choice, Choice) or choice.place is not Place.DRIVER:
            return None
        if not isinstance(choice.plan, CachedPlan):
            return None
        report = Report(choice.decision, str(choice))
        part = Part(interval, choice, self._binder(query, compiled, interval, report), report)
        part.start(choice.plan.plan)
        return part

    def _slices(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval
    ) -> Generator[Refresh, None, None]:
        """The interval as a whole, or slice by slice; smaller ones where the driver cannot have the rows of one."""
        end = interval.b
        services = self.services
        most = services.limits.slice_changes if may_cut(services, query, compiled, interval) else 0
        while interval.a < end:
            with services.foreground.busy():
                interval = first_slice(services, query, compiled, interval, most) if most else interval
                done = self._refresh(query, compiled, interval)
            if done is None:
                most = interval.rows // 2
            else:
                yield done
            interval = self.interval(query, compiled, end)

    def _refresh(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval, part: Part | None = None
    ) -> Refresh | None:
        """None where the interval is to be divided."""
        started = time.monotonic()
        if interval.b <= interval.a:
            return Refresh(query.name, interval.a, interval.a, plan=query.verdict)
        faults.point("refresh.begin")
        self.reports[query.name] = Report()
        outcome = self._compute(query, compiled, interval, part)
        if isinstance(outcome, Fallback):
            return None
        faults.point("refresh.computed")
        if isinstance(outcome, Outcome):
            with self._failing(query, interval):
                outcome = stage_large(self.services, query, interval, outcome)
        report = self.reports.setdefault(query.name, Report())
        result = Refresh(query.name, interval.a, interval.b, plan=query.verdict)
        if isinstance(outcome, Outcome):
            decided = compiled.node is not None and query.verdict != PARTIAL
            plan = f"{query.verdict}, {report.decision}" if decided else query.verdict
            plan += "" if report.shed is None else f"; {report.shed}"
            result = Refresh(query.name, interval.a, interval.b, *outcome.summary.counts, plan)
        cost = swept(self.services.catalog, query, interval.a, interval.b)
        result = replace(result, plan=f"{result.plan}; {cost}" if cost else result.plan)
        result = replace(result, seconds=time.monotonic() - started)
        with report.step("write"):
            self._write(query, interval, outcome, result)
        faults.point("refresh.after_catalog")
        return replace(result, seconds=time.monotonic() - started)

    def prepare(self, query: ContinuousQuery, compiled: Compiled, many: bool = False) -> None:
        """Plans the statements of later refreshes over few rows or `many`, and runs them over no rows: twice, since the
        second run asks Spark whether there may be more."""
        if compiled.node is None or query.functions or compiled.verdict == PARTIAL:
            return
        position = self.services.catalog.status(query.name).position
        interval = Interval(position, position, {}, 0)
        decision = decide(self.services, query, compiled, interval)
        plan = self.plans.general_plan(compiled, query.session, at_once=decision.undo)
        if plan is None or (plan.many if many else plan.few):
            return
        choice = Choice(plan, Place.DRIVER, "prepared", decision, many)
        with plain_errors(f"prepare {query.name}", self.services.catalog.warehouse):
            for _ in range(2):
                self._run(query, interval, choice, self._binder(query, compiled, interval, Report(decision)))

    def dry_run(self, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> None:
        """Computes a refresh and writes nothing. Raises RefreshError where it fails."""
        outcome = self._compute(query, compiled, interval)
        if isinstance(outcome, Outcome) and outcome.attempt is not None:
            outcome.attempt.abandon()

    def _compute(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval, part: Part | None = None
    ) -> Outcome | NoChange | Fallback:
        with self._failing(query, interval):
            return self._run_choices(query, compiled, interval, part)

    @contextmanager
    def _failing(self, query: ContinuousQuery, interval: Interval) -> Iterator[None]:
        """Whatever fails in the block is a RefreshError, but where the disk fails."""
        try:
            with plain_errors(f"refresh {query.name}", self.services.catalog.warehouse):
                yield
        except DiskError:
            raise  # of the machine, not of the query: it can be tried again
        except CQError as error:
            raise _refresh_error(query, interval, error) from error
        except Exception as error:
            unforeseen = CQError(f"internal error: {type(error).__name__}: {error}", hint=_UNFORESEEN)
            raise _refresh_error(query, interval, unforeseen) from error

    def _run_choices(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval, part: Part | None
    ) -> Outcome | NoChange | Fallback:
        choice = self.chooser.choose(query, compiled, interval) if part is None else part.choice
        while isinstance(choice, Choice):
            if part is not None and choice is part.choice:
                report, binder = part.report, part.binder
            else:
                report = Report(choice.decision, str(choice))
                binder = self._binder(query, compiled, interval, report, choice.place)
            self.reports[query.name] = report
            outcome = self._run(query, interval, choice, binder)
            if isinstance(outcome, Outcome) or outcome is Fallback.DIVIDE:
                return outcome
            choice = self.chooser.fall_back(query, compiled, interval, choice, outcome)
        return choice

    # ------------------------------------------------------------ run

    def _binder(
        self,
        query: ContinuousQuery,
        compiled: Compiled,
        interval: Interval,
        report: Report,
        place: Place = Place.DRIVER,
    ) -> IntervalBinder:
        rows = DriverRows(
            self.services.reader,
            {name: table.storage for name, table in compiled.sources.items()},
            dict(query.states),
            interval.a,
            interval.b,
            query.mode == "COMPRESSED",
            foreign_keys(self.services, compiled),
            report,
            compiled.read,
            self.meshes.of(query),
            place is Place.CLUSTER,
        )
        return IntervalBinder(rows)

    def _run(
        self, query: ContinuousQuery, interval: Interval, choice: Choice, binder: IntervalBinder
    ) -> Outcome | Fallback:
        cached = choice.plan if isinstance(choice.plan, CachedPlan) else None
        plan = choice.plan.plan if isinstance(choice.plan, CachedPlan) else choice.plan
        if choice.place is Place.DRIVER:
            return execute(plan, Driver(self.services, query, interval, binder, cached, choice.many))
        return execute(plan, Cluster(self.services, query, interval, binder))

    # ------------------------------------------------------------ write

    def _write(
        self, query: ContinuousQuery, interval: Interval, outcome: Outcome | NoChange, result: Refresh
    ) -> None:
        catalog = self.services.catalog
        now = self.services.clock.now()
        attempt = outcome.attempt if isinstance(outcome, Outcome) else None
        with catalog.lock, catalog.write(attempt) as unit:
            if isinstance(outcome, Outcome):
                low, high = outcome.summary.low, outcome.summary.high
                write_changes(unit, query.result, low, high, outcome.log, outcome.summary.kinds)
                if query.relation is not None:
                    relation, kinds = query.relation.storage, outcome.relation_kinds(query)
                    write_changes(unit, relation, low, high, outcome.relation, kinds)
                for table, rows in outcome.states:
                    write_changes(unit, table, interval.b, interval.b, rows, EVENTS)
            unit.set_status(query.name, QueryStatus(interval.b, catalog.status(query.name).state, "", now))
            unit.add_refresh(RefreshRecord(**vars(result), finished=now))
            faults.point("refresh.before_catalog")


def _refresh_error(query: ContinuousQuery, interval: Interval, error: CQError) -> RefreshError:
    if isinstance(error, RefreshError):
        return error
    return RefreshError(
        f"the refresh of {query.name} over versions {interval.a + 1} to {interval.b} failed: {error.message}",
        detail=error.detail,
        hint=error.hint or f"correct the data and ALTER CONTINUOUS QUERY {query.name} RESUME",
    )
