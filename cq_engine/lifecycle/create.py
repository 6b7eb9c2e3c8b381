"""CREATE [OR REPLACE] CONTINUOUS QUERY: in the place of another query, attached to a query group, or new."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from cq_engine.catalog import apply
from cq_engine.catalog.graph import sheds
from cq_engine.catalog.groups import query_options
from cq_engine.catalog.model import ContinuousQuery, QueryStatus
from cq_engine.core import faults
from cq_engine.core.errors import CatalogError
from cq_engine.definition.analysis import define
from cq_engine.definition.rules import (
    add_own_commit,
    check_options,
    check_shed,
    notes,
    start_version,
    with_destinations,
    without,
)
from cq_engine.definition.start import prepare_start
from cq_engine.grammar import CreateContinuousQuery, StartFrom, format_statement
from cq_engine.lifecycle.queries import Queries
from cq_engine.lifecycle.redefine import redefine, try_refresh
from cq_engine.lifecycle.sources import hold_sources

__all__ = ["create_over", "create_query"]


def create_query(queries: Queries, statement: CreateContinuousQuery) -> str:
    """CREATE CONTINUOUS QUERY; the message for a person."""
    statement = replace(statement, options=query_options(statement.options))
    catalog = queries.services.catalog
    with queries.registry.ddl:
        known = catalog.state.queries.get(statement.name.lower())
        if known is not None and statement.if_not_exists:
            return f"continuous query {known.name} exists"
        if known is not None and known.remote:
            raise CatalogError(
                f"{known.name} cannot be replaced",
                detail="it has a part over tables that stay at their sources",
                hint=f"DROP CONTINUOUS QUERY {known.name} first",
            )
        if known is not None and not statement.or_replace:
            raise CatalogError(
                f"{statement.name} exists already",
                hint="choose another name, or CREATE OR REPLACE CONTINUOUS QUERY",
            )
        if known is not None:
            return _replace(queries, statement, queries.groups.detach(known))
        message = queries.attacher.attach(statement)
        if message is not None:
            return message
        with hold_sources(queries, statement, None):
            return _create(queries, statement, None, "")


def create_over(
    queries: Queries,
    statement: CreateContinuousQuery,
    written: CreateContinuousQuery,
    remote: tuple[str, ...],
) -> str:
    """A new query over the table that has its part over tables that stay at their sources, `remote`; it was `written` over
    those. The message for a person."""
    statement = replace(statement, options=query_options(statement.options))
    with hold_sources(queries, statement, None):
        return _create(queries, statement, None, "", written=written, remote=remote)


def _replace(queries: Queries, statement: CreateContinuousQuery, known: ContinuousQuery) -> str:
    """With the difference to the old result where there is one, else anew."""
    goes_on = statement.start == StartFrom()
    if goes_on:
        try_refresh(queries, known)
    with hold_sources(queries, statement, known):
        if not goes_on:
            return _create(queries, statement, known, "")
        with queries.services.catalog.lock:
            message, why = redefine(queries, known, statement, "ACTIVE")
        return message or _create(queries, statement, known, why)


def _create(
    queries: Queries,
    statement: CreateContinuousQuery,
    known: ContinuousQuery | None,
    why: str,
    *,
    written: CreateContinuousQuery | None = None,
    remote: tuple[str, ...] = (),
) -> str:
    """A new query; in the place of `known`, which goes in the same transaction, where there is one.

    What it starts from is computed at a version that is chosen first, while others go on committing: their
    commits are its first deltas. Definitions cannot change meanwhile.
    """
    services, catalog = queries.services, queries.services.catalog
    with ExitStack() as held:
        if catalog.newest_version == 0:  # the query may make commit 1, which nobody else must take
            held.enter_context(catalog.lock)
        before = catalog.state if known is None else without(catalog.state, known, why)
        state, query, compiled = define(services, before, statement)
        if written is not None:
            text = format_statement(written)
            query = replace(query, statement=text, consistency=written.consistency, remote=remote)
        check_options(query)
        check_shed(query, compiled)
        with catalog.lock:
            delivery = queries.delivery
            kept = delivery.includes_result(query.destinations) or delivery.keeps_rows(query, state)
            kept = kept or sheds(query)
            version = start_version(services, statement.start, query, compiled, kept=kept)
            new_version = version > catalog.newest_version
            held.enter_context(services.read_holds.held(version))
        query = replace(query, created_version=version)
        query, state, made = with_destinations(queries.delivery, query, state)
        state = apply.add_query(state, query)
        if kept:
            state = apply.with_relation(state, query, version)
            query = apply.find_query(state, query.name)
        state = apply.without_unread(state)
        snapshot = statement.start.point == "SNAPSHOT"
        start = prepare_start(services, query, compiled, version, snapshot, relation=kept)
        faults.point("create.computed")
        with catalog.lock, catalog.write(start.attempt) as unit:
            if new_version:
                add_own_commit(services, unit, version)
            unit.set_state(state)
            start.write(unit)
            unit.set_status(query.name, QueryStatus(version, "ACTIVE", "", services.now()))
            queries.delivery.begin(unit, query, version - 1 if snapshot else version)
        faults.point("create.after_catalog")
    queries.registry.remember(query, compiled)
    said = [f"continuous query {query.name} {'created' if known is None else 'replaced'}: {query.verdict}"]
    said += [*query.reasons, *notes(services, query, made)]
    if known is not None:
        said.append(
            f"it starts from version {version} with a new delta log, without the difference to the old result"
            + (f": {why}" if why else "")
        )
    return "\n  ".join(said)
