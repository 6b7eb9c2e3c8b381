"""What the statements about continuous queries do, dispatched by their class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import singledispatch

from cq_engine.api import destinations
from cq_engine.api.explain import analyze_query, explain_query, explain_text
from cq_engine.api.warehouse import Warehouse, no_transaction
from cq_engine.core.errors import CatalogError
from cq_engine.grammar import (
    AdviseCapture,
    AlterCapture,
    AlterContinuousQuery,
    AlterDestination,
    AlterSource,
    CreateCapture,
    CreateContinuousQuery,
    CreateDestination,
    CreateSource,
    DropCapture,
    DropContinuousQuery,
    DropDestination,
    DropSource,
    DropTable,
    Explain,
    RefreshCapture,
    RefreshContinuousQuery,
    Statement,
    When,
)
from cq_engine.lifecycle.alter import alter_query
from cq_engine.lifecycle.create import create_query
from cq_engine.lifecycle.draining import has_news
from cq_engine.lifecycle.drop import drop_query, drop_table
from cq_engine.query.result import Result
from cq_engine.refresh.frontier import waiting_for
from cq_engine.schedule.periods import trigger_for

__all__ = ["execute"]


@singledispatch
def execute(statement: Statement, engine: Warehouse, sql: str) -> Result:
    """Runs `statement`, whose text is `sql`. Raises CQError's subclasses."""
    raise CatalogError(f"{type(statement).__name__} cannot be executed")


def check_when(when: When, now: datetime) -> None:
    """Raises AnalysisError for a period, timestamp or cron expression that is not valid, before anything is written."""
    trigger_for(when, now, timezone.utc)


@execute.register(DropTable)
def _drop_table(statement: DropTable, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "DROP TABLE")
    captures = engine.catalog.state.captures
    with _dropping(engine):
        said = drop_table(engine.queries.registry, statement)
    if engine.catalog.state.captures != captures:
        engine.capturing.schedule_all()
    return Result(message=said)


@contextmanager
def _dropping(engine: Warehouse) -> Iterator[None]:
    """Queries that are gone after the block are no longer scheduled, and nothing of them stays in memory."""
    before = engine.catalog.state
    yield
    after = engine.catalog.state
    for key, query in before.queries.items():
        if key not in after.queries:
            engine.scheduler.remove(query.name)
    for name in before.groups.keys() - after.groups.keys():
        engine.scheduler.remove(name)
    engine.forget_gone()


@execute.register(CreateContinuousQuery)
def _create_query(statement: CreateContinuousQuery, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "CREATE CONTINUOUS QUERY")
    check_when(statement.when, engine.now)
    engine.services.rights.check_stored(sql)
    message = _created(statement, engine)
    engine.schedule(statement.name, new=True)
    engine.cascade(statement.name)
    engine.prepare(statement.name)
    query = engine.queries.find(statement.name)
    if statement.start.point != "NOW" or has_news(engine.catalog, query):  # commits came while it was created
        engine.scheduler.wake(query.group or query.name)
    else:
        engine.queries.delivery.wake(query)  # one outside of the warehouse can be built now
    return Result(message=message)


def _created(statement: CreateContinuousQuery, engine: Warehouse) -> str:
    if statement.consistency is None:
        return create_query(engine.queries, statement)
    from cq_engine.lifecycle.remote_queries import create_remote_query  # and all that sources need

    message = create_remote_query(engine.queries, statement)
    engine.capturing.schedule_all()
    return message


@execute.register(CreateDestination)
@execute.register(AlterDestination)
@execute.register(DropDestination)
def _destination(
    statement: CreateDestination | AlterDestination | DropDestination, engine: Warehouse, sql: str
) -> Result:
    no_transaction(engine, f"{type(statement).__name__.removesuffix('Destination').upper()} DESTINATION")
    return Result(message=destinations.run(statement, engine, sql))


@execute.register(AlterCapture)
@execute.register(AlterSource)
@execute.register(CreateCapture)
@execute.register(CreateSource)
@execute.register(DropCapture)
@execute.register(DropSource)
@execute.register(RefreshCapture)
def _capture(statement: Statement, engine: Warehouse, sql: str) -> Result:
    words = re.findall("[A-Z][a-z]+", type(statement).__name__)
    no_transaction(engine, " ".join(words).upper())
    from cq_engine.api import captures

    return captures.run(statement, engine, sql)


@execute.register(AdviseCapture)
def _advise(statement: AdviseCapture, engine: Warehouse, sql: str) -> Result:
    from cq_engine.api import captures  # it changes nothing, here or there: any transaction may ask

    return captures.run(statement, engine, sql)


@execute.register(AlterContinuousQuery)
def _alter_query(statement: AlterContinuousQuery, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "ALTER CONTINUOUS QUERY")
    if statement.when is not None:
        check_when(statement.when, engine.now)
    engine.services.rights.check_stored(sql)
    captures = engine.catalog.state.captures
    message = alter_query(engine.queries, statement)
    if engine.catalog.state.captures != captures:
        engine.capturing.schedule_all()
    engine.schedule(statement.name)
    engine.cascade(statement.name)
    if statement.action == "RESUME":
        engine.scheduler.wake(engine.queries.find(statement.name).group or statement.name)
    elif statement.destinations is not None:
        engine.queries.delivery.wake(engine.queries.find(statement.name))
    return Result(message=message)


@execute.register(DropContinuousQuery)
def _drop_query(statement: DropContinuousQuery, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "DROP CONTINUOUS QUERY")
    captures = engine.catalog.state.captures
    with _dropping(engine):
        said = drop_query(engine.queries.registry, statement)
    if engine.catalog.state.captures != captures:
        engine.capturing.schedule_all()
    return Result(message=said)


@execute.register(RefreshContinuousQuery)
def _refresh(statement: RefreshContinuousQuery, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "REFRESH CONTINUOUS QUERY")
    done = engine.refresh(statement.name)
    said = f"{done.query}: {done.inserted} I, {done.deleted} D, {done.updated} U, version {done.to_version}"
    waits = waiting_for(engine.catalog, engine.queries.find(done.query))
    said += f"; {waits}" if waits else ""
    return Result(message=said, rowcount=done.inserted + done.deleted + done.updated)


@execute.register(Explain)
def _explain(statement: Explain, engine: Warehouse, sql: str) -> Result:
    if statement.name is not None and statement.analyze:
        no_transaction(engine, "EXPLAIN ANALYZE CONTINUOUS QUERY")
        engine.catalog.check_lease()
        return analyze_query(engine.queries, statement.name, engine.refresh, statement.format)
    if statement.name is not None:
        return explain_query(engine.queries, statement.name, statement.format)
    assert statement.text is not None
    return explain_text(engine.services, statement.text)
