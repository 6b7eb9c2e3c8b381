"""EXPLAIN: the verdict and the delta plan of a continuous query, or Spark's plan of a statement."""

from __future__ import annotations

from collections.abc import Callable

import sqlglot

from cq_engine.algebra.dialect import CQSpark
from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import Changes, Given, History, Node, StateRows
from cq_engine.api.explanation import Explanation
from cq_engine.catalog.groups import group_of
from cq_engine.catalog.model import PARTIAL, ContinuousQuery, QueryGroup
from cq_engine.catalog.sources import sweep_of
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError
from cq_engine.grammar import Query, parse
from cq_engine.lifecycle.queries import Queries
from cq_engine.planner.compiled import Compiled
from cq_engine.planner.delta_plan import DeltaPlan, plan_delta
from cq_engine.planner.partial import plan_partial
from cq_engine.planner.terms import terms
from cq_engine.query.query import Resolver
from cq_engine.query.result import Result, text_result
from cq_engine.refresh.frontier import frontier
from cq_engine.refresh.interval import decide, statistics
from cq_engine.refresh.refresh import Refresh
from cq_engine.refresh.report import Report

__all__ = ["analyze_query", "explain_query", "explain_text", "plan_text"]


def _leaf(leaf: Node) -> str:
    if isinstance(leaf, Changes):
        fields, relation, extra = leaf.scan.fields, f"changes_of_{leaf.scan.table}", ("_v", "_w")
    elif isinstance(leaf, History):
        fields, relation, extra = leaf.scan.fields, f"history_of_{leaf.scan.table}", ("_from", "_to")
    elif isinstance(leaf, Given):
        return leaf.name
    else:
        assert isinstance(leaf, StateRows)
        return f"state_{leaf.label}"
    shown = [f"{quote(source)} AS {quote(name)}" for name, source in fields]
    return f"(SELECT {', '.join([*shown, *extra])} FROM {relation})"


def plan_text(compiled: Compiled) -> str:
    """The delta plan for an interval in which every source has changes of every kind, as formatted Spark SQL."""
    if compiled.node is None:
        return _pretty(compiled.text)
    changing = frozenset(n for n, table in compiled.sources.items() if table.storage.kind != "constants")
    if compiled.verdict == PARTIAL:
        partial = plan_partial(compiled, changing)
        return "-- the result never changes" if partial is None else _pretty(partial.sql(_leaf, _alone))
    plan = plan_delta(compiled, changing, False, at_once=True)
    return "-- the result never changes" if plan is None else _plan_sql(plan)


def _plan_sql(plan: DeltaPlan) -> str:
    parts = []
    for stage in plan.stages:
        parts.append(f"-- {stage.node.name}: {', '.join(stage.columns)}\n{_pretty(stage.sql(_leaf, _alone))}")
        if stage.hit is not None:
            again = _pretty(stage.repair_sql(_leaf, _alone))
            parts.append(
                f"-- {stage.node.name}, the groups with _hit = 1 (as {stage.hit.name}), if any\n{again}"
            )
    return "\n".join([*parts, f"-- the delta\n{_pretty(plan.sql(_leaf, _alone))}"])


def _alone(emitter: Emitter) -> None:
    """No CTEs come along: leaves are shown by name."""


def _pretty(text: str) -> str:
    return sqlglot.transpile(text, read=CQSpark, write=CQSpark, pretty=True)[0]


def explain_query(queries: Queries, name: str, form: str = "TEXT") -> Result:
    """EXPLAIN CONTINUOUS QUERY: verdict, reasons, key; for what is pending the form of its delta, why, and its SQL."""
    query = queries.find(name)
    group = group_of(queries.services.catalog.state, query)
    compiled = queries.registry.compiled(query) if group is None else queries.groups.compiled(group)
    stored = query.states if group is None else group.query.states
    key = "none: a multiset" if query.key is None else f"({', '.join(query.key)})"
    facts = {
        "blocks": list(query.reasons),
        "result key": f"{key}{', every touched key is checked' if query.key_checked else ''}",
        "reading it": queries.results.source(query),
        "states": {label: ", ".join(c.name for c in table.columns) for label, table in stored},
        "query group": _sharing(queries, group),
        **_meshes(queries, query, compiled),
        **_sweeps(queries, query, ran=False),
    }
    pending, title, sql = _pending(queries, query if group is None else group.query, compiled)
    head = f"continuous query {query.name}: {query.verdict}, {query.mode}"
    explanation = Explanation(
        query.name, query.verdict, query.mode, head, {**facts, **pending}, title, sql, compiled.node, query.sources
    )  # fmt: skip
    return text_result("plan", explanation.render(form))


def _pending(
    queries: Queries, query: ContinuousQuery, compiled: Compiled
) -> tuple[dict[str, object], str, str]:
    """What the next refresh would do: facts, and a heading and the SQL of the delta."""
    end = frontier(queries.services.catalog, query.sources)
    interval = queries.refresher.interval(query, compiled, end)
    if compiled.node is None:
        return {}, "the result, which is computed anew and compared:", plan_text(compiled)
    if not interval.kinds:
        return {"pending": "nothing"}, "delta, where every source has changed:", plan_text(compiled)
    versions = {"from version": interval.a + 1, "to version": interval.b}
    if compiled.verdict == PARTIAL:
        return {"pending": versions}, "delta:", plan_text(compiled)
    found = statistics(queries.services, query, compiled, interval)
    decision = decide(queries.services, query, compiled, interval)
    facts: dict[str, object] = {
        "pending": {
            **versions,
            "tables": [str(table) for table in found.tables],
        },
        "delta": {
            "form": decision.form,
            "pre-image by": decision.pre_image,
            "reasons": list(decision.reasons),
        },
    }
    few = interval.rows <= queries.services.limits.refresh_changes
    at_once = few and decision.undo and not query.functions
    plan = plan_delta(compiled, interval.changed, interval.insert_only, at_once=at_once)
    if decision.form == "recompute":
        return facts, "the result, before and after:", _pretty(compiled.text)
    if plan is None:
        return {**facts, "result": "does not change"}, "", ""
    roots = [*(stage.root for stage in plan.stages), plan.root]
    return (
        {**facts, "base tables": [str(t) for t in terms(roots, found, decision)]},
        "delta:",
        _plan_sql(plan),
    )


def analyze_query(
    queries: Queries, name: str, refresh: Callable[[str], Refresh], form: str = "TEXT"
) -> Result:
    """EXPLAIN ANALYZE CONTINUOUS QUERY: does `refresh`, as REFRESH does, and says what that read and took."""
    query = queries.find(name)
    group = group_of(queries.services.catalog.state, query)
    compiled = queries.registry.compiled(query) if group is None else queries.groups.compiled(group)
    done = refresh(name)
    report = queries.refresher.reports.get(query.group or query.name, Report())
    changed = f"{done.inserted} I, {done.deleted} D, {done.updated} U"
    said = f"nothing was pending at version {done.to_version}"
    if done.to_version > done.from_version:
        said = f"refreshed over versions {done.from_version + 1} to {done.to_version}, {changed}"
    facts = {
        "plan": done.plan,
        "reasons": list(report.decision.reasons),
        "run by": f"the {report.run}" if report.run else "",
        "evaluated in Arrow": report.in_arrow,
        **_sweeps(queries, query, ran=True),
        "look-ups": [str(look_up) for look_up in report.look_ups],
        "shed": "" if report.shed is None else str(report.shed),
        "mesh joins": [str(run) for run in report.meshes],
        "read": [str(read) for read in report.reads],
        "steps": {step: f"{seconds:.3f} s" for step, seconds in report.steps},
        "altogether": f"{done.seconds:.3f} s",
    }
    explanation = Explanation(
        query.name, query.verdict, query.mode, f"continuous query {query.name}: {said}", facts, plan=compiled.node,
        sources=query.sources,
    )  # fmt: skip
    return text_result("plan", explanation.render(form))


def _meshes(queries: Queries, query: ContinuousQuery, compiled: Compiled) -> dict[str, object]:
    """What serves the look-ups of a query that may have a mesh join, and what the cost model predicts."""
    mesh = queries.refresher.meshes.of(query)
    if mesh is None:
        return {}
    position = queries.services.catalog.status(query.name).position
    return {"joins": [str(plan) for plan in mesh.explain(compiled, position)]}


def _sweeps(queries: Queries, query: ContinuousQuery, *, ran: bool) -> dict[str, object]:
    """How the part of a query over tables that stay at their sources is maintained; after a refresh what that has cost."""
    if not query.remote:
        return {}
    from cq_engine.sources.remote.report import counted, explained

    catalog = queries.services.catalog
    capture = sweep_of(catalog.state, query)
    assert capture is not None
    if ran:
        return {"at the sources": counted(catalog.capture_status(capture.name))}
    return {"at the sources": explained(catalog.state, capture)}


def _sharing(queries: Queries, group: QueryGroup | None) -> str:
    if group is None:
        return ""
    count = len(queries.groups.members(group))
    return f"one of {count} queries of {group.name}, over a table of their constants"


def explain_text(services: Services, text: str) -> Result:
    """EXPLAIN of a query: Spark's plan."""
    statement = parse(text)
    if not isinstance(statement, Query):
        raise AnalysisError(
            "only queries and continuous queries are explained",
            hint="EXPLAIN CONTINUOUS QUERY name explains a continuous query that is there",
        )
    return text_result("plan", Resolver(services).explain(statement.text))
