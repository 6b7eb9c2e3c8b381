"""Tables and continuous queries by name, or an error that says what the name is instead."""

from __future__ import annotations

from cq_engine.catalog.destinations import merged_by
from cq_engine.catalog.model import CatalogState, ContinuousQuery, Table
from cq_engine.core.errors import AnalysisError, CatalogError, Location, did_you_mean

__all__ = ["check_here", "check_snapshot", "find_query", "find_table"]


def find_table(state: CatalogState, name: str) -> Table:
    """The base table `name`."""
    found = state.tables.get(name.lower())
    if found is not None:
        return found
    if name.lower() in state.queries:
        raise CatalogError(f"{name} is a continuous query, not a table")
    query = merged_by(state, name)
    if query is not None:
        raise CatalogError(
            f"{name} is a destination, the result of {query.name}",
            detail="it can be read like a table; only the query's refreshes write it",
            hint=f"DROP DESTINATION {name} CASCADE takes it away",
        )
    raise CatalogError(
        f"there is no table {name}", hint=did_you_mean(name, (t.name for t in state.tables.values()))
    )


def find_query(state: CatalogState, name: str) -> ContinuousQuery:
    """The continuous query `name`."""
    found = state.queries.get(name.lower())
    if found is not None:
        return found
    if name.lower() in state.tables:
        raise CatalogError(f"{name} is a table, not a continuous query")
    query = merged_by(state, name)
    if query is not None:
        raise CatalogError(f"{name} is a destination, the result of {query.name}", hint=f"write {query.name}")
    raise CatalogError(
        f"there is no continuous query {name}",
        hint=did_you_mean(name, (q.name for q in state.queries.values())),
    )


def check_here(table: Table, doing: str, location: Location | None = None) -> None:
    """Raises AnalysisError where `doing` is not for a table that stays at its source."""
    if table.remote is not None:
        raise AnalysisError(
            f"{doing} is not for table {table.name}",
            detail=f"its rows stay at source {table.remote.source}: nothing of them is kept here, and nothing is written there",
            hint=f"SELECT reads them as they are now; CREATE CAPTURE ... INTO another table FROM {table.remote.source} keeps a copy",
            location=location,
        )


def check_snapshot(table: Table, doing: str, location: Location | None = None) -> None:
    """Raises AnalysisError where `doing` needs the rows of a table WITHOUT SNAPSHOT, or of one that stays at its source."""
    check_here(table, doing, location)
    if not table.has_snapshot:
        raise AnalysisError(
            f"{doing} is not for table {table.name}",
            detail="it was created WITHOUT SNAPSHOT: its changes are kept, its rows are not",
            hint=f"changes come by captures and engine.apply_changes; SELECT * FROM {table.name} CHANGES FROM VERSION 1 shows them",
            location=location,
        )
