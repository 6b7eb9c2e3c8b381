"""Delta plans that are kept from one refresh of a query to the next, with their statements prepared.

A refresh of a few rows spends most of its time on Spark's analysis, optimisation and planning. Its statements are the
same every time but for the rows at their leaves. So from the second refresh on, the statements
are planned over plan inputs (`plan_inputs`), and a refresh puts its rows into them and runs what is there.

A plan runs again only where every operator of it is known to keep nothing (`operators`); another statement is planned
anew each time. Every leaf has one partition, so that plans need no shuffle.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from cq_engine.core.limits import Limits
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.delta_plan import DeltaPlan, Text, plan_delta
from cq_engine.refresh.binding import IntervalBinder
from cq_engine.refresh.prepared import PreparedStatements

__all__ = ["CachedPlan", "PlanCache"]


class PlanCache:
    """The delta plans of an engine's queries. Thread-safe.

    The first refresh of a query is planned as ever: it may be the only one. The second prepares, unless that was done in
    the background before (`general_plan`), a plan for changes of
    all kinds in all tables, which gives every interval's rows, so that no later one has to be planned. An interval of
    a kind that has come `Limits.own_plan_uses` times gets a plan of its own, which is smaller.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._plans: OrderedDict[_Key, CachedPlan] = OrderedDict()
        self._served: Counter[_Key] = Counter()
        self._seen: set[_Key] = set()
        self._guard = threading.Lock()

    def plan(
        self,
        compiled: Compiled,
        changed: frozenset[str],
        insert_only: bool,
        session: Hashable = (),
        *,
        at_once: bool = True,
    ) -> CachedPlan | None:
        """A plan that gives the rows of `plan_delta`; `session` are the settings that its statements run under, and
        `at_once` says whether the plan for all changes may be one for rows that the driver has.

        None where no change of these tables can change the result.
        """
        key = _Key(id(compiled), changed, insert_only, session)
        own = self._plan_for(key, compiled)
        whole = _whole(compiled, session, at_once)
        general = self._plan_for(whole, compiled)
        if own is None or general is None:
            return None
        smaller = own.plan.leaves < general.plan.leaves
        with self._guard:
            found = self._ready_plan(key, smaller)
            if found is not None:
                return found
            again = whole in self._seen
            self._seen.add(whole)
            enough = smaller and (not again or self._served[key] >= self._limits.own_plan_uses)
        if not general.prepare and not enough:
            general.prepare = True
            return general
        own.prepare = again
        return own

    def general_plan(
        self, compiled: Compiled, session: Hashable = (), *, at_once: bool = True
    ) -> CachedPlan | None:
        """The plan for all changes, whose statements are prepared when they run."""
        key = _whole(compiled, session, at_once)
        found = self._plan_for(key, compiled)
        if found is not None:
            with self._guard:
                self._seen.add(key)
                found.prepare = True
        return found

    def exact_plan(
        self, compiled: Compiled, changed: frozenset[str], insert_only: bool, session: Hashable = ()
    ) -> CachedPlan | None:
        """The plan that is no more than `plan_delta`."""
        return self._plan_for(_Key(id(compiled), changed, insert_only, session), compiled)

    def _plan_for(self, key: _Key, compiled: Compiled) -> CachedPlan | None:
        with self._guard:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = plan_delta(compiled, key.changed, key.insert_only, at_once=key.at_once)
        if plan is None:
            return None
        made = CachedPlan(plan, compiled, key.changed, key.insert_only, key.at_once)
        with self._guard:
            kept = self._plans.setdefault(key, made)
            gone = [self._take(next(iter(self._plans))) for _ in range(len(self._plans) - self._limits.plans)]
        for each in gone:
            each.clear()
        return kept

    def _take(self, key: _Key) -> CachedPlan:
        """Takes a plan out, with what is known of how it was asked for: its key may soon be that of another definition."""
        self._served.pop(key, None)
        self._seen.discard(key)
        return self._plans.pop(key)

    def keep(self, compiled: Collection[Compiled]) -> None:
        """Forgets the plans of all definitions but these."""
        numbers = {id(each) for each in compiled}
        with self._guard:
            gone = [self._take(key) for key in list(self._plans) if key.compiled not in numbers]
        for each in gone:
            each.clear()

    def _ready_plan(self, key: _Key, smaller: bool) -> CachedPlan | None:
        """A prepared plan that serves the interval; `smaller`: one of its own would read less than the general one."""
        ready = [
            k
            for k, kept in self._plans.items()
            if k.covers(key) and kept.is_ready(None if k == key else self._limits.plan_misses)
        ]
        if smaller and key not in ready and self._served[key] >= self._limits.own_plan_uses:
            return None
        best = min(ready, key=lambda k: self._plans[k].plan.leaves, default=None)
        if best is None:
            return None
        self._served[key] += best != key
        self._plans.move_to_end(best)
        return self._plans[best]

    def clear(self) -> None:
        """Forgets everything."""
        with self._guard:
            plans, self._plans = list(self._plans.values()), OrderedDict()
            self._served.clear()
            self._seen.clear()
        for each in plans:
            each.clear()


class _Key(NamedTuple):
    """What a plan is made for."""

    compiled: int
    changed: frozenset[str]
    insert_only: bool
    session: Hashable
    at_once: bool = False

    def covers(self, other: _Key) -> bool:
        """Does a plan for this serve the other, too?"""
        return (
            (self.compiled, self.session) == (other.compiled, other.session)
            and self.changed >= other.changed
            and (other.insert_only or not self.insert_only)
        )


def _whole(compiled: Compiled, session: Hashable, at_once: bool) -> _Key:
    tables = frozenset(n for n, table in compiled.sources.items() if table.storage.kind != "constants")
    return _Key(id(compiled), tables, False, session, at_once)


@dataclass
class CachedPlan:
    """A delta plan, and its statements by name as far as they are prepared."""

    plan: DeltaPlan
    compiled: Compiled
    """What it is a plan of, which stays in memory as long as the plan: keys hold its identity."""
    changed: frozenset[str]
    insert_only: bool
    at_once: bool = False
    """Is it for rows that the driver has, and no others?"""
    prepare: bool = False
    """Are its statements prepared when they run?"""
    only_spark: set[str] = field(default_factory=set)
    """Its statements that have something in them that only Spark evaluates."""
    overflows: Counter[str] = field(default_factory=Counter)
    """How many intervals in a row had values or joins that were too large for Arrow, by statement."""
    misses: int = 0
    """How many intervals of fewer changes it could not serve."""
    few: PreparedStatements = field(default_factory=partial(PreparedStatements, many=False))
    many: PreparedStatements = field(default_factory=partial(PreparedStatements, many=True))

    def is_ready(self, most_misses: int | None) -> bool:
        """Are its statements prepared, or will they be? `most_misses`: for an interval of fewer changes."""
        missed = most_misses is not None and self.misses >= most_misses
        return self.prepare and self.few.all_run_again and self.many.all_run_again and not missed

    def note_overflow(self, name: str, most: int) -> None:
        """The rows of a statement had something that was too large for Arrow; after `most` times in a row nobody tries."""
        self.overflows[name] += 1
        if self.overflows[name] >= most:
            self.only_spark.add(name)

    def serves(self, changed: frozenset[str], insert_only: bool) -> bool:
        """May its statements be planned anew for such an interval? A plan for more changes, or for rows at the driver,
        might then read a table for changes that are not there."""
        return not self.at_once and (self.changed, self.insert_only) == (changed, insert_only)

    def run(
        self, spark: SparkSession, name: str, text: Text, binder: IntervalBinder, limit: int, many: bool
    ) -> pa.Table | None:
        """The first `limit` rows of the statement `name` from what is prepared for few rows, or for `many`, or where there
        are many; None where nothing can be.

        PySpark's exceptions pass through.
        """
        if not self.prepare:
            return None
        known = next((each for each in (self.few, self.many) if name in each), self.few)
        rows = None if many else known.source_rows(name, binder)
        if rows is not None and rows.row_count > binder.reader.limits.compiled_rows:
            known = self.many
        return (self.many if many else known).run(spark, name, text, binder, limit, rows)

    def clear(self) -> None:
        """Forgets the statements; of a plan that runs, when it has run."""
        self.few.clear()
        self.many.clear()
