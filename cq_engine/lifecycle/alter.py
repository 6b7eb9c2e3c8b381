"""ALTER CONTINUOUS QUERY."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from cq_engine.catalog import apply
from cq_engine.catalog.graph import sheds
from cq_engine.catalog.groups import query_options
from cq_engine.catalog.model import CatalogState, ContinuousQuery
from cq_engine.catalog.sources import put_capture, sweep_of
from cq_engine.core.errors import AnalysisError, CatalogError
from cq_engine.core.options import SHED
from cq_engine.definition.rules import check_options, check_targets, with_destinations
from cq_engine.grammar import AlterContinuousQuery
from cq_engine.lifecycle.queries import Queries
from cq_engine.lifecycle.redefine import redefine_as, restart
from cq_engine.lifecycle.sources import keep_own_result

__all__ = ["alter_query"]


def alter_query(queries: Queries, statement: AlterContinuousQuery) -> str:
    """ALTER CONTINUOUS QUERY ... PAUSE | RESUME [FROM ...] | SET ... | AS query; the message for a person."""
    with queries.registry.ddl:
        query = queries.find(statement.name)
        if query.remote and (statement.query is not None or statement.start is not None):
            raise CatalogError(
                f"{query.name} cannot get another defining query or start",
                detail="it has a part over tables that stay at their sources",
                hint=f"DROP CONTINUOUS QUERY {query.name}, and create it anew",
            )
        result = queries.delivery.includes_result(statement.destinations or ())
        if query.group is not None:
            if statement.action == "RESUME" and statement.start is None:
                return _resume_member(queries, query, query.group)
            if statement.action != "SET" or statement.when is not None or statement.options or result:
                query = queries.groups.detach(query)
        if statement.query is not None:
            return redefine_as(queries, query, statement.query)
        if statement.action == "RESUME" and statement.start is not None:
            return restart(queries, query, statement.start)
        if statement.destinations:  # which may take their time to answer
            named = replace(query, destinations=statement.destinations)
            check_targets(queries.delivery, named, queries.services.catalog.state)
        with ExitStack() as held:
            held.enter_context(queries.registry.hold([query.name]))
            if result:
                held.enter_context(keep_own_result(queries, query.name))
            held.enter_context(queries.services.catalog.exclusive())
            return _alter(queries, queries.find(statement.name), statement)


def _resume_member(queries: Queries, query: ContinuousQuery, group: str) -> str:
    """RESUME of a member: where its query group has failed, all of its members go on."""
    with queries.registry.hold([query.name]):
        queries.groups.resume(queries.groups.find(group))
    return f"{query.name} goes on from version {queries.services.catalog.status(query.name).position}"


def _alter(queries: Queries, query: ContinuousQuery, statement: AlterContinuousQuery) -> str:
    catalog = queries.services.catalog
    status = catalog.status(query.name)
    if statement.action == "PAUSE":
        queries.registry.set_status(query, replace(status, state="PAUSED", error=""))
        return f"{query.name} is paused at version {status.position}"
    if statement.action == "RESUME":
        queries.registry.set_status(query, replace(status, state="ACTIVE", error=""))
        return f"{query.name} goes on from version {status.position}"
    changed = replace(
        query,
        when=statement.when or query.when,
        markers=statement.markers or query.markers,
        destinations=query.destinations if statement.destinations is None else statement.destinations,
        options=query_options((*query.options, *statement.options)),
    )
    check_options(changed)
    if sheds(changed) and not sheds(query):
        raise AnalysisError(
            f"{query.name} was created without {SHED}",
            detail="rows can be left out only where the result is kept from the beginning",
            hint=f"CREATE OR REPLACE the query WITH ({SHED} = 'off'), which can be changed later",
        )
    changed, state, _ = with_destinations(queries.delivery, changed, catalog.state, checked=True)
    with catalog.write() as unit:
        state = apply.without_unread(apply.replace_query(state, changed))
        unit.set_state(_with_schedule(state, changed) if changed.remote else state)
        queries.delivery.change(unit, query, changed, status.position)
    return f"{query.name} altered"


def _with_schedule(state: CatalogState, query: ContinuousQuery) -> CatalogState:
    """The sources of a query are looked at as its schedule says."""
    from cq_engine.lifecycle.remote_queries import capture_schedule

    capture = sweep_of(state, query)
    return (
        state if capture is None else put_capture(state, replace(capture, when=capture_schedule(query.when)))
    )
