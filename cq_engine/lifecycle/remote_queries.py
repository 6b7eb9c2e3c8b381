"""CREATE CONTINUOUS QUERY ... CONSISTENCY: a query over tables that stay at their sources.

The join of these tables becomes a table of the warehouse, `<query>_remote`, with the capture of this name that maintains it by
sweeps. The query is an ordinary one over that table. All of it comes, and goes, with the query.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace

from sqlglot import exp

from cq_engine.algebra.dialect import write
from cq_engine.catalog import apply
from cq_engine.catalog.model import Capture, CatalogState, DeclaredSource, Table
from cq_engine.catalog.sources import find_source, put_capture
from cq_engine.core.errors import AnalysisError, CatalogError, CQError
from cq_engine.definition.analysis import shape_of
from cq_engine.grammar import (
    ColumnSpec,
    CreateContinuousQuery,
    CreateTable,
    OnCommit,
    OnDemand,
    OnDml,
    PrimaryKeySpec,
    When,
)
from cq_engine.grammar.clauses import CapturedColumn, CaptureMethod, EveryInterval
from cq_engine.lifecycle.captures import prepare, released
from cq_engine.lifecycle.create import create_over
from cq_engine.lifecycle.queries import Queries
from cq_engine.sources.kinds import method_of
from cq_engine.sources.remote.capture import SWEEP
from cq_engine.sources.remote.split import Split, remote_names, split
from cq_engine.sources.tick import Tick

__all__ = ["capture_schedule", "create_remote_query"]


def create_remote_query(queries: Queries, statement: CreateContinuousQuery) -> str:
    """CREATE CONTINUOUS QUERY ... CONSISTENCY; the message for a person.

    Raises AnalysisError for what cannot be maintained so, with the reason and the place, SourceError where a source cannot be
    read or its log not be installed, CatalogError where a name is taken. Nothing is left then, here or there.
    """
    catalog = queries.services.catalog
    with queries.registry.ddl:
        known = catalog.state.queries.get(statement.name.lower())
        if known is not None and statement.if_not_exists:
            return f"continuous query {known.name} exists"
        if known is not None:
            raise CatalogError(
                f"{statement.name} exists already",
                hint="a query with CONSISTENCY takes the place of none: DROP CONTINUOUS QUERY first, or choose another name",
            )
        parts = _split(queries, statement)
        capture, notes = _begin(queries, statement, parts)
        try:
            source = find_source(catalog.state, capture.source)
            prepare(queries.registry, source, capture)
            tick = Tick(queries.services, capture)
            method_of(source, capture, catalog.state).run(tick, source)
            message = create_over(
                queries, replace(statement, query=parts.query), statement, tuple(_names(parts))
            )
        except BaseException:
            _take_back(queries, capture)
            raise
    sources = ", ".join(dict.fromkeys(_source_names(parts)))
    return "\n  ".join([message, f"the join at {sources} is kept in table {parts.table}", *notes])


def capture_schedule(when: When) -> When:
    """When sources are looked at for a query: each second where it is refreshed ON COMMIT, else by its refreshes."""
    return EveryInterval(1, "SECOND") if isinstance(when, OnCommit) else OnDemand()


def _split(queries: Queries, statement: CreateContinuousQuery) -> Split:
    services = queries.services
    state, text = services.catalog.state, statement.query
    names = remote_names(state, text)
    if not names:
        raise AnalysisError(
            f"CONSISTENCY {statement.consistency} is for queries over tables that stay at their sources",
            hint="leave it out: over tables of the warehouse every delta is complete",
        )
    if isinstance(statement.when, OnDml) and set(names) & {name.lower() for name in statement.when.tables}:
        raise AnalysisError(
            "ON INSERT, DELETE or UPDATE TO is not for tables that stay at their sources",
            hint="say EVERY n SECONDS, or ON COMMIT: their sources are asked each second then",
        )
    here = _as_if_here(state, names)
    shape_of(services, here, text)  # what Spark does not understand is said in the words of the query

    def name_of(select: exp.Select) -> str:
        return shape_of(services, here, write(select)).columns[0].name

    return split(state, text, _free_name(state, statement.name), name_of)


def _as_if_here(state: CatalogState, names: list[str]) -> CatalogState:
    """The definitions with these tables as if they were of the warehouse."""
    tables = {name: replace(state.tables[name], remote=None) for name in names}
    return replace(state, tables={**state.tables, **tables})


def _free_name(state: CatalogState, query: str) -> str:
    name = f"{query}_remote"
    taken = name.lower() in state.tables or name.lower() in state.queries or name.lower() in state.captures
    if taken or query.lower() in state.tables:
        raise CatalogError(
            f"{name if taken else query} exists already",
            detail=f"the rows of the join at the sources would be kept in table {name}",
            hint="choose another name for the query",
        )
    return name


def _names(parts: Split) -> dict[str, None]:
    return dict.fromkeys(table.name.lower() for table in parts.view.tables.values())


def _source_names(parts: Split) -> list[str]:
    return [table.remote.source for table in parts.view.tables.values() if table.remote is not None]


def _begin(queries: Queries, statement: CreateContinuousQuery, parts: Split) -> tuple[Capture, list[str]]:
    """Declares table and capture, which are checked before."""
    catalog = queries.services.catalog
    kinds = {
        (alias, column.name): column for alias, table in parts.view.tables.items() for column in table.columns
    }
    specs = tuple(
        ColumnSpec(c.name, kinds[c.alias, c.column].type, kinds[c.alias, c.column].nullable)
        for c in parts.columns
    )
    made = CreateTable(parts.table, specs, PrimaryKeySpec(parts.key))
    capture = Capture(
        parts.table,
        _source_names(parts)[0],
        parts.table,
        CaptureMethod(SWEEP, query=parts.view.sql),
        capture_schedule(statement.when),
        columns=tuple(CapturedColumn(c.name, c.name) for c in parts.columns),
        options=(("consistency", statement.consistency or ""),),
        tables=tuple(_names(parts)),
    )
    state = apply.create_table(catalog.state, made, catalog.newest_version)
    table = replace(apply.find_table(state, parts.table), part_of=statement.name)
    source: DeclaredSource = find_source(state, capture.source)
    _, notes = method_of(source, capture, catalog.state).check(source, capture, table, lambda _: None)
    with catalog.lock, catalog.write() as unit:
        unit.set_state(
            put_capture(_with_part(catalog.state, made, statement.name, catalog.newest_version), capture)
        )
    return capture, notes


def _with_part(state: CatalogState, made: CreateTable, query: str, version: int) -> CatalogState:
    state = apply.create_table(state, made, version)
    table: Table = replace(apply.find_table(state, made.name), part_of=query)
    return replace(state, tables={**state.tables, made.name.lower(): table})


def _take_back(queries: Queries, capture: Capture) -> None:
    """Removes what was declared, and what was installed."""
    catalog = queries.services.catalog
    with ExitStack() as steps:
        with suppress(CQError):
            steps.enter_context(released(queries.registry, [capture]))
        with suppress(CQError), catalog.lock, catalog.write() as unit:
            state = catalog.state
            rest = {name: c for name, c in state.captures.items() if name != capture.name.lower()}
            tables = {name: t for name, t in state.tables.items() if name != capture.table.lower()}
            unit.set_state(replace(state, captures=rest, tables=tables))
