"""Sources and captures in the catalog, as pure functions of a CatalogState. Names are compared without case."""

from __future__ import annotations

from dataclasses import replace

from cq_engine.catalog.model import Capture, CatalogState, ContinuousQuery, DeclaredSource, Table
from cq_engine.catalog.names import check_here, find_table
from cq_engine.core.errors import CatalogError, did_you_mean

__all__ = [
    "captures_into",
    "captures_of",
    "drop_capture",
    "drop_source",
    "find_capture",
    "find_source",
    "parts_of",
    "put_capture",
    "put_source",
    "remote_tables",
    "sweep_of",
    "without_parts",
]


def find_source(state: CatalogState, name: str) -> DeclaredSource:
    """The source `name`. Raises CatalogError."""
    found = state.sources.get(name.lower())
    if found is not None:
        return found
    names = (source.name for source in state.sources.values())
    raise CatalogError(
        f"there is no source {name}", hint=did_you_mean(name, names, "SHOW SOURCES lists them")
    )


def find_capture(state: CatalogState, name: str) -> Capture:
    """The capture `name`. Raises CatalogError."""
    found = state.captures.get(name.lower())
    if found is not None:
        return found
    names = (capture.name for capture in state.captures.values())
    raise CatalogError(
        f"there is no capture {name}", hint=did_you_mean(name, names, "SHOW CAPTURES lists them")
    )


def captures_of(state: CatalogState, source: str) -> list[Capture]:
    """The captures that read `source`."""
    remote = {table.name.lower() for table in remote_tables(state, source)}
    return [
        capture
        for capture in state.captures.values()
        if capture.source.lower() == source.lower() or not remote.isdisjoint(capture.tables)
    ]


def captures_into(state: CatalogState, table: str) -> list[Capture]:
    """The captures that fill `table`: one, or none."""
    return [capture for capture in state.captures.values() if capture.table.lower() == table.lower()]


def remote_tables(state: CatalogState, source: str) -> list[Table]:
    """The tables that stay at `source`."""
    return [
        table
        for table in state.tables.values()
        if table.remote is not None and table.remote.source.lower() == source.lower()
    ]


def parts_of(state: CatalogState, query: str) -> list[Table]:
    """The tables that have a query's part over tables that stay at their sources: one, or none."""
    return [t for t in state.tables.values() if t.part_of is not None and t.part_of.lower() == query.lower()]


def sweep_of(state: CatalogState, query: ContinuousQuery) -> Capture | None:
    """What maintains the part of a query over tables that stay at their sources; None for a query without."""
    if not query.remote:
        return None
    found = (c for part in parts_of(state, query.name) for c in captures_into(state, part.name))
    return next(found, None)


def without_parts(state: CatalogState, query: str) -> CatalogState:
    """Forgets these tables, and what fills them."""
    parts = parts_of(state, query)
    for capture in [each for part in parts for each in captures_into(state, part.name)]:
        state = drop_capture(state, capture.name)
    gone = {part.name.lower() for part in parts}
    return replace(state, tables={key: t for key, t in state.tables.items() if key not in gone})


def put_source(state: CatalogState, source: DeclaredSource) -> CatalogState:
    """Declares a source, or changes it."""
    return replace(state, sources={**state.sources, source.name.lower(): source})


def put_capture(state: CatalogState, capture: Capture) -> CatalogState:
    """Defines a capture, or changes it. Raises CatalogError where its source, its table or a column is not there, and
    where another capture fills the table."""
    find_source(state, capture.source)
    table = find_table(state, capture.table)
    check_here(table, "a capture")
    for other in captures_into(state, table.name):
        if other.name.lower() != capture.name.lower():
            raise CatalogError(
                f"capture {other.name} fills table {table.name} already",
                detail="each capture takes the table for a copy of what it reads, and would undo what the other brings",
                hint=f"fill another table, or DROP CAPTURE {other.name} first",
            )
    _check_columns(table, capture)
    return replace(state, captures={**state.captures, capture.name.lower(): capture})


def _check_columns(table: Table, capture: Capture) -> None:
    known = {column.name.lower() for column in table.columns}
    seen: set[str] = set()
    for column in capture.columns:
        target = column.target.lower()
        if target not in known:
            raise CatalogError(
                f"capture {capture.name}: table {table.name} has no column {column.target}",
                hint=did_you_mean(column.target, (each.name for each in table.columns)),
            )
        if target in seen:
            raise CatalogError(
                f"capture {capture.name} fills column {column.target} of {table.name} twice",
                hint="name each column of the table once",
            )
        seen.add(target)


def drop_source(state: CatalogState, name: str, cascade: bool = False) -> CatalogState:
    """Forgets a source; with `cascade` the captures that read it, too. The tables that they fill stay. Those that stay at the
    source the caller has dropped before."""
    found = find_source(state, name)
    users, tables = captures_of(state, name), remote_tables(state, name)
    if tables or (users and not cascade):
        shown = [f"capture {capture.name}" for capture in users]
        raise CatalogError(
            f"source {found.name} is in use",
            detail=f"by {', '.join([*(f'table {table.name}' for table in tables), *shown])}",
            hint="drop those first, or say CASCADE",
        )
    for capture in users:
        state = drop_capture(state, capture.name)
    return replace(state, sources={key: each for key, each in state.sources.items() if key != name.lower()})


def drop_capture(state: CatalogState, name: str) -> CatalogState:
    """Forgets a capture. The table that it fills stays as it is."""
    find_capture(state, name)
    return replace(state, captures={key: each for key, each in state.captures.items() if key != name.lower()})
