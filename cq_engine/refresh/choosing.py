"""Which plan a refresh runs, and who runs it: the driver where rows are few, else the cluster."""

from __future__ import annotations

from dataclasses import replace

from cq_engine.catalog.model import PARTIAL, ContinuousQuery
from cq_engine.context.services import Services
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.partial import PartialPlan, plan_partial
from cq_engine.refresh.choice import Choice, NoChange, Place
from cq_engine.refresh.executors import Fallback
from cq_engine.refresh.interval import Interval, decide
from cq_engine.refresh.plan_cache import PlanCache
from cq_engine.refresh.recompute import Recomputation, plan_full, plan_recomputation
from cq_engine.storage.sizes import size_at

__all__ = ["Chooser"]


class Chooser:
    """Chooses among the plans of queries."""

    def __init__(self, services: Services, plans: PlanCache) -> None:
        self.services = services
        self.plans = plans

    def choose(self, query: ContinuousQuery, compiled: Compiled, interval: Interval) -> Choice | NoChange:
        """The plan for what changed, and who runs it, by how much that is."""
        if not interval.kinds:
            return NoChange.NO_ROWS
        if compiled.node is None:
            small = self._input_bytes(compiled, interval) <= self.services.limits.recompute_bytes
            place = Place.DRIVER if small else Place.CLUSTER
            return Choice(plan_full(self.services, query, compiled, interval), place, "FULL")
        if compiled.verdict == PARTIAL:
            return self._choose_partial(compiled, interval)
        decision = decide(self.services, query, compiled, interval)
        small = interval.rows <= self.services.limits.refresh_changes
        what = (compiled, interval.changed, interval.insert_only, query.session)
        prepared = small and not query.functions
        plan = self.plans.plan(*what, at_once=decision.undo) if prepared else self.plans.exact_plan(*what)
        if plan is None:
            return NoChange.NO_EFFECT
        if decision.form == "recompute":
            recomputation = plan_recomputation(self.services, query, compiled, interval)
            return Choice(recomputation, Place.CLUSTER, decision.form, decision)
        return Choice(
            plan, Place.DRIVER if small else Place.CLUSTER, f"{interval.rows} change rows", decision
        )

    def _input_bytes(self, compiled: Compiled, interval: Interval) -> int:
        tables = (table.storage for table in compiled.sources.values() if table.storage.kind != "constants")
        return size_at(self.services.catalog, tables, interval.b).bytes

    def _choose_partial(self, compiled: Compiled, interval: Interval) -> Choice | NoChange:
        plan = plan_partial(compiled, interval.changed)
        if plan is None:
            return NoChange.NO_EFFECT
        small = interval.rows <= self.services.limits.refresh_changes
        return Choice(plan, Place.DRIVER if small else Place.CLUSTER, f"{interval.rows} change rows")

    def fall_back(
        self, query: ContinuousQuery, compiled: Compiled, interval: Interval, choice: Choice, reason: Fallback
    ) -> Choice | NoChange:
        """The next way, where `choice` gave up."""
        place = Place.DRIVER if reason is Fallback.UNPREPARED else Place.CLUSTER
        if isinstance(choice.plan, Recomputation | PartialPlan):
            return replace(choice, place=place, why=reason.value)
        plan = self.plans.exact_plan(compiled, interval.changed, interval.insert_only, query.session)
        return NoChange.NO_EFFECT if plan is None else Choice(plan, place, reason.value, choice.decision)
