"""Declared destinations in the catalog, as pure functions of a CatalogState.

A destination that only a DESTINATION clause names has the defaults, and can be looked at and altered like one that was
declared. With `mode = 'merge'` a table destination is the current result of its one query, under a name of its own: what
is stored for the queries that read it (`ContinuousQuery.relation`). Such a reference has the kind MERGE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cq_engine.catalog.model import CatalogState, ContinuousQuery, DeclaredDestination
from cq_engine.core.errors import CatalogError, did_you_mean
from cq_engine.grammar.clauses import DestinationRef

__all__ = [
    "MERGE",
    "check_unread",
    "deliverers",
    "drop_destination",
    "find_destination",
    "is_merge",
    "merged_by",
    "merged_names",
    "merges",
    "put_destination",
    "reference",
]

MERGE = "MERGE"


def merges(destination: DeclaredDestination) -> bool:
    """Whether it has the current result of its query, and not the history of its deltas."""
    return dict(destination.options).get("mode", "").lower() == "merge"


def is_merge(destination: DeclaredDestination) -> bool:
    """Whether it is itself the current result of its query, inside the warehouse."""
    return destination.type == "TABLE" and merges(destination)


def find_destination(state: CatalogState, name: str) -> DeclaredDestination:
    """The destination `name`, declared or named by a query. Raises CatalogError."""
    found = state.destinations.get(name.lower())
    if found is not None:
        return found
    for query in deliverers(state, name):
        ref = reference(query, name)
        if ref is not None:
            return DeclaredDestination(ref.name, ref.kind or "TABLE")
    names = [d.name for d in state.destinations.values()]
    names += [ref.name for query in state.queries.values() for ref in query.destinations]
    raise CatalogError(
        f"there is no destination {name}", hint=did_you_mean(name, names, "SHOW DESTINATIONS lists them")
    )


def deliverers(state: CatalogState, name: str) -> list[ContinuousQuery]:
    """The queries that deliver to the destination `name`."""
    return [query for query in state.queries.values() if reference(query, name) is not None]


def reference(query: ContinuousQuery, name: str) -> DestinationRef | None:
    """The query's reference to the destination `name`."""
    return next((ref for ref in query.destinations if ref.name.lower() == name.lower()), None)


def put_destination(state: CatalogState, destination: DeclaredDestination) -> CatalogState:
    """Declares a destination, or changes it. Raises CatalogError where the name means something else already."""
    name = destination.name
    taken = "continuous query" if name.lower() in state.queries else ""
    taken = "table" if is_merge(destination) and name.lower() in state.tables else taken
    if taken and destination.type == "TABLE":
        raise CatalogError(
            f"there is a {taken} {name} already",
            detail="the destination is read under this name",
            hint="choose another name"
            + (", or mode = 'history' to append to the table" if taken == "table" else ""),
        )
    for query in deliverers(state, name):
        ref = reference(query, name)
        wanted = MERGE if is_merge(destination) else destination.type
        if ref is not None and ref.kind not in (None, wanted):
            raise CatalogError(
                f"{query.name} delivers to {ref.kind} {ref.name} already",
                hint=f"choose another name, or ALTER CONTINUOUS QUERY {query.name} SET NO DESTINATION first",
            )
    return replace(state, destinations={**state.destinations, name.lower(): destination})


def drop_destination(state: CatalogState, name: str, cascade: bool) -> CatalogState:
    """Forgets a destination; with `cascade` queries no longer deliver to it. A table of the warehouse stays."""
    found = find_destination(state, name)
    users = deliverers(state, name)
    if users and not cascade:
        raise CatalogError(
            f"destination {found.name} is in use",
            detail=f"{_listed(query.name for query in users)} deliver{'s' if len(users) == 1 else ''} to it",
            hint="ALTER CONTINUOUS QUERY ... SET DESTINATION or SET NO DESTINATION first, or say CASCADE",
        )
    if is_merge(found):
        check_unread(state, found.name, "the query itself")
    changed = {
        query.name.lower(): replace(
            query, destinations=tuple(ref for ref in query.destinations if ref.name.lower() != name.lower())
        )
        for query in users
    }
    rest = {key: each for key, each in state.destinations.items() if key != name.lower()}
    return replace(state, queries={**state.queries, **changed}, destinations=rest)


# ---------------------------------------------------------------- results under another name


def check_unread(state: CatalogState, name: str, instead: str) -> None:
    """Raises CatalogError where queries read a result under the name `name`; the hint says what to read `instead`."""
    users = [q.name for q in state.queries.values() if name.lower() in (s.lower() for s in q.sources)]
    if users:
        raise CatalogError(
            f"destination {name} is in use",
            detail=f"read by {_listed(users)}",
            hint=f"drop these first, or let them read {instead}",
        )


def merged_by(state: CatalogState, name: str) -> ContinuousQuery | None:
    """The query whose current result the destination `name` is, or None."""
    found = state.destinations.get(name.lower())
    if found is None or not is_merge(found):
        return None
    return next(iter(deliverers(state, name)), None)


def merged_names(query: ContinuousQuery) -> list[str]:
    """The names of the destinations that are the query's current result."""
    return [ref.name for ref in query.destinations if ref.kind == MERGE]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
