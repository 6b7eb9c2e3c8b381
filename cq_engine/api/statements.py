"""What each statement does, dispatched by its class; those about continuous queries are in query_statements.py."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from cq_engine.api import show
from cq_engine.api.warehouse import Warehouse, no_transaction
from cq_engine.catalog import apply
from cq_engine.catalog.functions import drop_function
from cq_engine.core.errors import AnalysisError, TransactionError, location_at
from cq_engine.core.options import RETENTION, check_set, option_value
from cq_engine.core.types import columns_of
from cq_engine.grammar import (
    Ack,
    AlterCapture,
    AlterContinuousQuery,
    AlterDestination,
    AlterSource,
    AlterTable,
    Begin,
    CheckConstraints,
    ColumnSpec,
    Commit,
    CompactTable,
    CopyInto,
    CreateCapture,
    CreateContinuousQuery,
    CreateDestination,
    CreateFunction,
    CreateSource,
    CreateTable,
    Dequeue,
    Describe,
    Dml,
    DropCapture,
    DropContinuousQuery,
    DropDestination,
    DropFunction,
    DropSource,
    DropTable,
    Follow,
    Query,
    RefreshCapture,
    RefreshContinuousQuery,
    Reject,
    Rollback,
    SetOption,
    Show,
    Statement,
    Vacuum,
)
from cq_engine.query.query import query_frame, run_query
from cq_engine.query.result import Result
from cq_engine.spark.sql import translate_errors
from cq_engine.transactions.check_constraints import check_added_key, check_constraints
from cq_engine.transactions.transaction import Transaction

__all__ = ["OF_THE_DUTIES", "execute"]

OF_THE_DUTIES = (
    AlterCapture,
    AlterContinuousQuery,
    AlterDestination,
    AlterSource,
    CompactTable,
    CreateCapture,
    CreateContinuousQuery,
    CreateDestination,
    CreateSource,
    DropCapture,
    DropContinuousQuery,
    DropDestination,
    DropSource,
    DropTable,
    RefreshCapture,
    RefreshContinuousQuery,
    Vacuum,
)
"""Statements that the process with the duties runs, whoever says them."""


@singledispatch
def execute(statement: Statement, engine: Warehouse, sql: str) -> Result:
    """Runs `statement`, whose text is `sql`. Raises CQError's subclasses."""
    from cq_engine.api import query_statements  # which imports what commits do without

    return query_statements.execute(statement, engine, sql)


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
    no_transaction(engine, "CREATE TABLE")
    catalog = engine.catalog
    if statement.if_not_exists and statement.name.lower() in catalog.state.tables:
        return Result(message=f"table {statement.name} exists")
    option_value(RETENTION, {k.lower(): v for k, v in statement.options})
    if statement.query is not None:
        return _create_as(statement, engine)
    if statement.delta is not None or statement.remote is not None:
        from cq_engine.api import captures

        return captures.run(statement, engine, sql)
    with engine.queries.registry.ddl, catalog.lock, catalog.write(by_any=True) as unit:
        unit.set_state(apply.create_table(catalog.state, statement, catalog.newest_version))
    return Result(message=f"table {statement.name} created")


def _create_as(statement: CreateTable, engine: Warehouse) -> Result:
    from cq_engine.planner.select_list import safe_name

    assert statement.query is not None
    catalog = engine.catalog
    frame = query_frame(engine.services, statement.query)
    found = columns_of(frame.schema)
    columns = statement.columns or tuple(ColumnSpec(safe_name(c.name), c.type) for c in found)
    plain = replace(statement, columns=columns, query=None)
    with engine.queries.registry.ddl, catalog.lock, catalog.write(by_any=True) as unit:
        unit.set_state(apply.create_table(catalog.state, plain, catalog.newest_version))
    transaction = Transaction(engine.services)
    try:
        count = transaction.load(statement.name, frame.toDF(*(c.name for c in columns)))
        version = engine.commit(transaction)
    except BaseException:
        with engine.queries.registry.ddl, catalog.lock, catalog.write(by_any=True) as unit:
            unit.set_state(apply.drop_table(catalog.state, DropTable(statement.name)))
        raise
    return Result(
        message=f"table {statement.name} created with {count} rows", rowcount=count, commit_version=version
    )


@execute.register(AlterTable)
def _alter_table(statement: AlterTable, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "ALTER TABLE")
    catalog = engine.catalog
    with engine.queries.registry.ddl, catalog.lock, catalog.write(by_any=True) as unit:
        state = apply.alter_table(catalog.state, statement, catalog.newest_version)
        if statement.foreign_key is not None and statement.foreign_key.enforced:
            check_added_key(engine.services, apply.find_table(state, statement.name))
        unit.set_state(state)
    return Result(message=f"table {statement.name} altered")


@execute.register(CompactTable)
def _compact(statement: CompactTable, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "COMPACT TABLE")
    engine.compact(statement.name)
    return Result(message=f"table {statement.name} compacted at version {engine.catalog.newest_version}")


@execute.register(Vacuum)
def _vacuum(statement: Vacuum, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "VACUUM")
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
    no_transaction(engine, "CREATE FUNCTION")
    catalog = engine.catalog
    if statement.if_not_exists and statement.name.lower() in catalog.state.functions:
        return Result(message=f"function {statement.name} exists")
    start = sql.find(statement.definition)
    engine.services.rights.check_definition(statement.definition, lambda at: location_at(sql, start + at))
    with engine.queries.registry.ddl, catalog.lock:
        state = engine.services.functions.create(statement, catalog.state, lambda: engine.spark)
        with catalog.write(by_any=True) as unit:
            unit.set_state(state)
    function = state.functions[statement.name.lower()]
    note = "" if function.deterministic else "; it is not deterministic, so no continuous query can call it"
    return Result(message=f"function {function.name} created{note}")


@execute.register(DropFunction)
def _drop_function(statement: DropFunction, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "DROP FUNCTION")
    catalog = engine.catalog
    if statement.if_exists and statement.name.lower() not in catalog.state.functions:
        return Result(message=f"there is no function {statement.name}")
    with engine.queries.registry.ddl, catalog.lock, catalog.write(by_any=True) as unit:
        unit.set_state(drop_function(catalog.state, statement.name))
    return Result(message=f"function {statement.name} dropped")


# ------------------------------------------------------------------------------------------------ looking and setting


@execute.register(Follow)
def _follow(statement: Follow, engine: Warehouse, sql: str) -> Result:
    if engine.session is not None:
        raise TransactionError("FOLLOW cannot run inside a transaction", hint="COMMIT or ROLLBACK first")
    return engine.follow_rows(statement.name, statement.start.version, statement.start.point == "SNAPSHOT")


@execute.register(Dequeue)
def _dequeue(statement: Dequeue, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, "DEQUEUE")
    return engine.dequeue(statement, sql)


@execute.register(Ack)
@execute.register(Reject)
def _settle(statement: Ack | Reject, engine: Warehouse, sql: str) -> Result:
    no_transaction(engine, type(statement).__name__.upper())
    return engine.settle(statement, sql)


@execute.register(Show)
def _show(statement: Show, engine: Warehouse, sql: str) -> Result:
    if statement.what == "DESTINATIONS":
        from cq_engine.api import destinations

        return destinations.show(engine)
    if statement.what in ("SOURCES", "CAPTURES"):
        from cq_engine.api import captures

        return (
            captures.show_sources(engine) if statement.what == "SOURCES" else captures.show_captures(engine)
        )
    if statement.what == "FUNCTIONS":
        return show.functions(engine.services.functions.rows(engine.catalog.state))
    if statement.what == "PROCESSES":
        return show.processes(engine.catalog)
    return show.show(engine.overview(), engine.catalog, statement, engine.scheduler.waiting)


@execute.register(Describe)
def _describe(statement: Describe, engine: Warehouse, sql: str) -> Result:
    if statement.kind in ("SOURCE", "CAPTURE"):
        from cq_engine.api import captures

        of = captures.describe_source if statement.kind == "SOURCE" else captures.describe_capture
        return of(engine, statement.name)
    if statement.kind == "DESTINATION":
        from cq_engine.api import destinations

        return destinations.describe(engine, statement.name)
    return show.describe(engine.overview(), engine.catalog, statement)


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
