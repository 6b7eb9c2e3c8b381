"""A query that goes on as another one: another defining query, or its states built again at a later version."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from cq_engine.catalog import apply
from cq_engine.catalog.graph import sheds, upstreams
from cq_engine.catalog.model import PARTIAL, CatalogState, ContinuousQuery, QueryStatus, RefreshRecord
from cq_engine.catalog.unit import UnitOfWork
from cq_engine.context.services import Services
from cq_engine.core.errors import AnalysisError, RefreshError
from cq_engine.definition.analysis import define
from cq_engine.definition.comparison import not_comparable, with_old_values
from cq_engine.definition.rules import (
    add_own_commit,
    check_current,
    check_options,
    notes,
    start_version,
    with_destinations,
)
from cq_engine.definition.start import keep_difference, prepare_start, wide
from cq_engine.grammar import CreateContinuousQuery, StartFrom
from cq_engine.lifecycle.queries import Queries
from cq_engine.lifecycle.sources import hold_sources
from cq_engine.refresh.frontier import REDEFINED, SKIPPED
from cq_engine.refresh.recompute import difference, result_at

__all__ = ["redefine", "redefine_as", "restart", "try_refresh"]


def redefine_as(queries: Queries, query: ContinuousQuery, text: str) -> str:
    """ALTER CONTINUOUS QUERY ... AS. Raises AnalysisError where the new result cannot be compared with the old."""
    catalog = queries.services.catalog
    statement = CreateContinuousQuery(
        query.name, text, query.key if query.declared else None, query.mode, query.markers, query.when,
        query.destinations, options=query.options,
    )  # fmt: skip
    try_refresh(queries, query)
    paused = catalog.status(query.name).state == "PAUSED"
    with hold_sources(queries, statement, query), catalog.lock:
        message, why = redefine(queries, query, statement, "PAUSED" if paused else "ACTIVE")
    if not message:
        raise AnalysisError(
            f"the new query of {query.name} gives another kind of result",
            detail=why,
            hint="CREATE OR REPLACE CONTINUOUS QUERY starts anew, without the difference",
        )
    return message


def try_refresh(queries: Queries, query: ContinuousQuery) -> None:
    """Brings a query that is to be redefined up to date; where it cannot, the difference covers what is missing."""
    if queries.services.catalog.status(query.name).state == "ACTIVE":
        with suppress(RefreshError):
            queries.refreshes.bring_up_to_date(query.name)


def redefine(
    queries: Queries, query: ContinuousQuery, statement: CreateContinuousQuery, status: str
) -> tuple[str, str]:
    """Another defining query, with the difference of the results as a delta at a version of its own.

    The message; or, where the results cannot be compared, why.
    """
    services, started = queries.services, time.monotonic()
    catalog = services.catalog
    known = queries.find(query.name)
    state, new, compiled = define(services, catalog.state, statement)
    if statement.primary_key is None and set(new.key or ()) < set(known.key or ()) and new.key is not None:
        # the old key identifies the new rows, too
        statement = replace(statement, primary_key=known.key)
        state, new, compiled = define(services, catalog.state, statement)
    why = not_comparable(known, new)
    if why:
        return "", why
    new = replace(
        new, id=known.id, created_version=known.created_version, relation=known.relation,
        result=replace(known.result, columns=new.result.columns),
    )  # fmt: skip
    check_options(new)
    check_current(services, new)
    version = catalog.newest_version + 1
    new, state, made = with_destinations(queries.delivery, replace(new, defined_version=version), state)
    state = apply.without_unread(apply.replace_query(state, new))
    position = catalog.status(known.name).position
    start = prepare_start(services, new, compiled, version, False)
    before = queries.registry.compiled(known)
    with wide(services, start, compiled, *((table.storage, position) for table in before.sources.values())):
        old = result_at(services, before, position)
        sides = with_old_values(services, new, old), result_at(services, compiled, version)
        rows = difference(services, *sides, new.key, version, start.parts)
        counts = keep_difference(services, start, new, rows, relation_at=position)
    with catalog.write(start.attempt) as unit:
        add_own_commit(services, unit, version)
        unit.set_state(state)
        start.write(unit)
        unit.set_status(new.name, QueryStatus(version, status, "", services.now()))
        queries.delivery.change(unit, known, new, version)
        _record(services, unit, new, position, version, REDEFINED, counts, time.monotonic() - started)
    queries.registry.remember(new, compiled)
    queries.delivery.deliver(new)
    inserted, deleted, updated = counts
    said = [
        f"continuous query {new.name} redefined: {new.verdict}",
        *new.reasons,
        *notes(services, new, made),
    ]
    said.append(f"difference to the old result: {inserted} I, {deleted} D, {updated} U at version {version}")
    return "\n  ".join(said), ""


def restart(queries: Queries, query: ContinuousQuery, start: StartFrom) -> str:
    """RESUME FROM: the states are built again at a later version; the interval between is skipped.

    Queries that read this one see the result go from one version to the other in one step. Raises AnalysisError for an
    earlier version.
    """
    catalog = queries.services.catalog
    queries.refreshes.refresh_sources(query.sources)
    above = [each.name for each in upstreams(catalog.state, query.sources)]
    with queries.registry.hold([query.name, *above]), catalog.lock:
        return _restart(queries, queries.find(query.name), start)


def _restart(queries: Queries, query: ContinuousQuery, start: StartFrom) -> str:
    services = queries.services
    catalog = services.catalog
    compiled = queries.registry.compiled(query)
    before = catalog.status(query.name).position
    version = start_version(services, start, query, compiled)
    if version < before:
        raise AnalysisError(
            f"{query.name} has processed version {before}; it cannot go back to {version}",
            hint="create another query with START FROM VERSION",
        )
    if query.verdict == PARTIAL and query.relation is not None and version > before:
        raise AnalysisError(
            f"{query.name} cannot skip versions {before + 1} to {version}",
            detail="its rows are kept for a destination that is merged, and nothing but those changes says what they are",
            hint="correct what made it fail and RESUME, or create the query anew",
        )
    if sheds(query) and version > before:
        raise AnalysisError(
            f"{query.name} cannot skip versions {before + 1} to {version}",
            detail="which of its rows were left out (shed) is known from its deltas only",
            hint="correct what made it fail and RESUME, or create the query anew",
        )
    state, again = _fresh_states(catalog.state, query)
    snapshot = start.point == "SNAPSHOT"
    if snapshot and version == before:
        # destinations have had this version, and would not look at it again
        check_current(services, query)
        version = catalog.newest_version + 1
    new_version = version > catalog.newest_version
    begun = prepare_start(services, again, compiled, version, snapshot)
    if query.relation is not None and version > before:
        table = query.relation.storage
        old = services.reader.image(table, before).select(*(f"`{c.name}`" for c in table.columns))
        new = result_at(services, compiled, version).select(*old.columns)
        with wide(services, begun, compiled, (table, before)):
            rows = difference(services, old, new, query.key, version, begun.parts)
            keep_difference(services, begun, again, rows, log=False, relation_at=before)
    with catalog.write(begun.attempt) as unit:
        if new_version:
            add_own_commit(services, unit, version)
        unit.set_state(apply.replace_query(state, again))
        begun.write(unit)
        unit.set_status(query.name, QueryStatus(version, "ACTIVE", "", services.clock.now()))
        _record(services, unit, query, before, version, SKIPPED, (0, 0, 0), 0.0)
    skipped = f"; versions {before + 1} to {version} are skipped" if version > before else ""
    return f"{query.name} goes on from version {version}{skipped}"


def _record(
    services: Services,
    unit: UnitOfWork,
    query: ContinuousQuery,
    a: int,
    b: int,
    plan: str,
    counts: tuple[int, int, int],
    seconds: float,
) -> None:
    unit.add_refresh(RefreshRecord(query.name, a, b, *counts, plan, seconds, services.clock.now()))


def _fresh_states(state: CatalogState, query: ContinuousQuery) -> tuple[CatalogState, ContinuousQuery]:
    states = []
    for label, table in query.states:
        state, number = apply.allocate_id(state)
        states.append((label, replace(table, id=number)))
    return state, replace(query, states=tuple(states))
