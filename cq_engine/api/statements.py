"""What each statement does, dispatched by its class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import singledispatch

from cq_engine.api import destinations, show
from cq_engine.api.explain import analyze_query, explain_query, explain_text
from cq_engine.api.warehouse import Warehouse
from cq_engine.catalog import apply
from cq_engine.catalog.functions import drop_function
from cq_engine.core.errors import AnalysisError, CatalogError, TransactionError, location_at
from cq_engine.core.options import RETENTION, check_set, option_value
from cq_engine.core.types import columns_of
from cq_engine.grammar import (
    AlterContinuousQuery,
    AlterDestination,
    AlterTable,
    Begin,
    CheckConstraints,
    ColumnSpec,
    Commit,
    CompactTable,
    CopyInto,
    CreateContinuousQuery,
    CreateDestination,
    CreateFunction,
    CreateTable,
    Describe,
    Dml,
    DropContinuousQuery,
    DropDestination,
    DropFunction,
    DropTable,
    Explain,
    Follow,
    Query,
    RefreshContinuousQuery,
    Rollback,
    SetOption,
    Show,
    Statement,
    Vacuum,
    When,
)
from cq_engine.lifecycle.alter import alter_query
from cq_engine.lifecycle.create import create_query
from cq_engine.lifecycle.draining import has_news
from cq_engine.lifecycle.drop import drop_query, drop_table
from cq_engine.planner.select_list import safe_name
from cq_engine.query.query import query_frame, run_query
from cq_engine.query.result import Result
from cq_engine.refresh.frontier import waiting_for
from cq_engine.schedule.periods import trigger_for
from cq_engine.spark.sql import translate_errors
from cq_engine.transactions.check_constraints import check_added_key, check_constraints
from cq_engine.transactions.transaction import Transaction

__all__ = ["execute"]


@singledispatch
def execute(statement: Statement, engine: Warehouse, sql: str) -> Result:
    """Runs `statement`, whose text is `sql`. Raises CQError's subclasses."""
    raise CatalogError(f"{type(statement).__name__} cannot be executed")


def _no_transaction(engine: Warehouse, what: str) -> None:
    engine.check_writable()
    if engine.session is not None:
        raise TransactionError(f"{what} cannot run inside a transaction", hint="COMMIT or ROLLBACK first")


def check_when(when: When, now: datetime) -> None:
    """Raises AnalysisError for a period, timestamp or cron expression that is not valid, before anything is written."""
    trigger_for(when, now, timezone.utc)


# ------------------------------------------------------------------------------------------------ rows


@execute.register(Query)
def _query(statement: Query, engine: Warehouse, sql: str) -> Result:
    return run_query(engine.services, statement.text, transaction=engine.session)


@execute.register(Dml)
@execute.register(CopyInto)
def _dml(statement: Dml | CopyInto, engine: Warehouse, sql: str) -> Result:
    engine.check_writable()
    if engine.session is not None:
        return engine.session.execute(statement, sql)
    transaction = Transaction(engine.services)
    try:
        result = transaction.execute(statement, sql)
    except BaseException:
        transaction.rollback()
        raise
    version = engine.commit(transaction)
    result.commit_version = version
    result.message += f" (version {version})" if version is not None else " (nothing changed)"
    return result


@execute.register(Begin)
def _begin(statement: Begin, engine: Warehouse, sql: str) -> Result:
    engine.check_writable()
    if engine.session is not None:
        raise TransactionError("a transaction is open already", hint="COMMIT or ROLLBACK it first")
    engine.session = Transaction(engine.services)
    return Result(message="transaction begun")


@execute.register(Commit)
def _commit(statement: Commit, engine: Warehouse, sql: str) -> Result:
    transaction = _open(engine, "COMMIT")
    engine.session = None
    version = engine.commit(transaction)
    said = f"committed as version {version}" if version is not None else "committed; nothing changed"
    return Result(message=said, commit_version=version)


@execute.register(Rollback)
def _rollback(statement: Rollback, engine: Warehouse, sql: str) -> Result:
    transaction = _open(engine, "ROLLBACK")
    engine.session = None
    transaction.rollback()
    return Result(message="rolled back")


def _open(engine: Warehouse, what: str) -> Transaction:
    if engine.session is None:
        raise TransactionError(f"{what} without a transaction", hint="BEGIN starts one")
    return engine.session


# ------------------------------------------------------------------------------------------------ tables


@execute.register(CreateTable)
def _create_table(statement: CreateTable, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "CREATE TABLE")
    catalog = engine.catalog
    if statement.if_not_exists and statement.name.lower() in catalog.state.tables:
        return Result(message=f"table {statement.name} exists")
    option_value(RETENTION, {k.lower(): v for k, v in statement.options})
    if statement.query is not None:
        return _create_as(statement, engine)
    with engine.queries.registry.ddl, catalog.lock, catalog.write() as unit:
        unit.set_state(apply.create_table(catalog.state, statement, catalog.newest_version))
    return Result(message=f"table {statement.name} created")


def _create_as(statement: CreateTable, engine: Warehouse) -> Result:
    assert statement.query is not None
    catalog = engine.catalog
    frame = query_frame(engine.services, statement.query)
    found = columns_of(frame.schema)
    columns = statement.columns or tuple(ColumnSpec(safe_name(c.name), c.type) for c in found)
    plain = replace(statement, columns=columns, query=None)
    with engine.queries.registry.ddl, catalog.lock, catalog.write() as unit:
        unit.set_state(apply.create_table(catalog.state, plain, catalog.newest_version))
    transaction = Transaction(engine.services)
    try:
        count = transaction.load(statement.name, frame.toDF(*(c.name for c in columns)))
        version = engine.commit(transaction)
    except BaseException:
        with engine.queries.registry.ddl, catalog.lock, catalog.write() as unit:
            unit.set_state(apply.drop_table(catalog.state, DropTable(statement.name)))
        raise
    return Result(
        message=f"table {statement.name} created with {count} rows", rowcount=count, commit_version=version
    )


@execute.register(DropTable)
def _drop_table(statement: DropTable, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "DROP TABLE")
    with _dropping(engine):
        return Result(message=drop_table(engine.queries.registry, statement))


@contextmanager
def _dropping(engine: Warehouse) -> Iterator[None]:
    """Queries that are gone after the block are no longer scheduled."""
    before = engine.catalog.state
    yield
    after = engine.catalog.state
    for key, query in before.queries.items():
        if key not in after.queries:
            engine.scheduler.remove(query.name)
    for name in before.groups.keys() - after.groups.keys():
        engine.scheduler.remove(name)


@execute.register(AlterTable)
def _alter_table(statement: AlterTable, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "ALTER TABLE")
    catalog = engine.catalog
    with engine.queries.registry.ddl, catalog.lock, catalog.write() as unit:
        state = apply.alter_table(catalog.state, statement, catalog.newest_version)
        if statement.foreign_key is not None and statement.foreign_key.enforced:
            check_added_key(engine.services, apply.find_table(state, statement.name))
        unit.set_state(state)
    return Result(message=f"table {statement.name} altered")


@execute.register(CompactTable)
def _compact(statement: CompactTable, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "COMPACT TABLE")
    engine.compact(statement.name)
    return Result(message=f"table {statement.name} compacted at version {engine.catalog.newest_version}")


@execute.register(Vacuum)
def _vacuum(statement: Vacuum, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "VACUUM")
    done = engine.vacuum(statement.name, statement.retain)
    return Result(
        message=f"{done.forgotten} files are of no use any more, {done.removed} files were removed",
        rowcount=done.removed,
    )


@execute.register(CheckConstraints)
def _check(statement: CheckConstraints, engine: Warehouse, sql: str) -> Result:
    return check_constraints(engine.services, statement.table)


@execute.register(CreateFunction)
def _create_function(statement: CreateFunction, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "CREATE FUNCTION")
    catalog = engine.catalog
    if statement.if_not_exists and statement.name.lower() in catalog.state.functions:
        return Result(message=f"function {statement.name} exists")
    start = sql.find(statement.definition)
    engine.services.rights.check_definition(statement.definition, lambda at: location_at(sql, start + at))
    with engine.queries.registry.ddl, catalog.lock:
        state = engine.services.functions.create(statement, catalog.state, lambda: engine.spark)
        with catalog.write() as unit:
            unit.set_state(state)
    function = state.functions[statement.name.lower()]
    note = "" if function.deterministic else "; it is not deterministic, so no continuous query can call it"
    return Result(message=f"function {function.name} created{note}")


@execute.register(DropFunction)
def _drop_function(statement: DropFunction, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "DROP FUNCTION")
    catalog = engine.catalog
    if statement.if_exists and statement.name.lower() not in catalog.state.functions:
        return Result(message=f"there is no function {statement.name}")
    with engine.queries.registry.ddl, catalog.lock, catalog.write() as unit:
        unit.set_state(drop_function(catalog.state, statement.name))
    return Result(message=f"function {statement.name} dropped")


# ------------------------------------------------------------------------------------------------ queries


@execute.register(CreateContinuousQuery)
def _create_query(statement: CreateContinuousQuery, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "CREATE CONTINUOUS QUERY")
    check_when(statement.when, engine.now)
    message = create_query(engine.queries, statement)
    engine.schedule(statement.name, new=True)
    engine.cascade(statement.name)
    engine.prepare(statement.name)
    query = engine.queries.find(statement.name)
    if statement.start.point != "NOW" or has_news(engine.catalog, query):  # commits came while it was created
        engine.scheduler.wake(query.group or query.name)
    return Result(message=message)


@execute.register(AlterContinuousQuery)
def _alter_query(statement: AlterContinuousQuery, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "ALTER CONTINUOUS QUERY")
    if statement.when is not None:
        check_when(statement.when, engine.now)
    message = alter_query(engine.queries, statement)
    engine.schedule(statement.name)
    engine.cascade(statement.name)
    if statement.action == "RESUME":
        engine.scheduler.wake(engine.queries.find(statement.name).group or statement.name)
    return Result(message=message)


@execute.register(DropContinuousQuery)
def _drop_query(statement: DropContinuousQuery, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "DROP CONTINUOUS QUERY")
    with _dropping(engine):
        return Result(message=drop_query(engine.queries.registry, statement))


@execute.register(RefreshContinuousQuery)
def _refresh(statement: RefreshContinuousQuery, engine: Warehouse, sql: str) -> Result:
    _no_transaction(engine, "REFRESH CONTINUOUS QUERY")
    done = engine.refresh(statement.name)
    said = f"{done.query}: {done.inserted} I, {done.deleted} D, {done.updated} U, version {done.to_version}"
    waits = waiting_for(engine.catalog, engine.queries.find(done.query))
    said += f"; {waits}" if waits else ""
    return Result(message=said, rowcount=done.inserted + done.deleted + done.updated)


@execute.register(Follow)
def _follow(statement: Follow, engine: Warehouse, sql: str) -> Result:
    if engine.session is not None:
        raise TransactionError("FOLLOW cannot run inside a transaction", hint="COMMIT or ROLLBACK first")
    return engine.follow_rows(statement.name, statement.start.version, statement.start.point == "SNAPSHOT")


@execute.register(CreateDestination)
@execute.register(AlterDestination)
@execute.register(DropDestination)
def _destination(
    statement: CreateDestination | AlterDestination | DropDestination, engine: Warehouse, sql: str
) -> Result:
    _no_transaction(engine, f"{type(statement).__name__.removesuffix('Destination').upper()} DESTINATION")
    return Result(message=destinations.run(statement, engine, sql))


@execute.register(Show)
def _show(statement: Show, engine: Warehouse, sql: str) -> Result:
    if statement.what == "DESTINATIONS":
        return destinations.show(engine)
    if statement.what == "FUNCTIONS":
        return show.functions(engine.services.functions.rows(engine.catalog.state))
    return show.show(engine.overview(), engine.catalog, statement, engine.scheduler.waiting)


@execute.register(Describe)
def _describe(statement: Describe, engine: Warehouse, sql: str) -> Result:
    if statement.kind == "DESTINATION":
        return destinations.describe(engine, statement.name)
    return show.describe(engine.overview(), engine.catalog, statement)


@execute.register(Explain)
def _explain(statement: Explain, engine: Warehouse, sql: str) -> Result:
    if statement.name is not None and statement.analyze:
        _no_transaction(engine, "EXPLAIN ANALYZE CONTINUOUS QUERY")
        return analyze_query(engine.queries, statement.name, engine.refresh, statement.format)
    if statement.name is not None:
        return explain_query(engine.queries, statement.name, statement.format)
    assert statement.text is not None
    return explain_text(engine.services, statement.text)


@execute.register(SetOption)
def _set(statement: SetOption, engine: Warehouse, sql: str) -> Result:
    try:
        check_set(statement.name, statement.value)
        if statement.name.startswith("spark."):
            engine.services.rights.check_set(statement.name)
    except AnalysisError as error:
        error.location = location_at(sql, sql.lower().find(statement.name.lower()))
        raise
    if statement.name.startswith("spark."):
        with translate_errors():
            engine.spark.conf.set(statement.name, statement.value)
        engine.conf[statement.name] = statement.value  # for a Spark that takes this one's place
    else:
        engine.conf[statement.name.lower()] = statement.value
    return Result(message=f"{statement.name} = {statement.value}")
